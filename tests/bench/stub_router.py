"""A router that answers with words of its own, does wrong as told, and keeps what it was asked."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter
from typing import Any

from aiohttp import web

from runtime.bench.folder import PassFolder, PassInfo
from runtime.bench.player import Target
from runtime.bench.run import run_pass
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile

Events = Callable[[Sequence[int], Sequence[str], int], list[bytes]]

MODEL = "tiny"
ANSWER_TOKENS = 4


@dataclass
class Asked:
    """One request for tokens."""

    headers: dict[str, str]
    body: dict[str, Any]
    began_s: float
    ended_s: float | None = None
    answer: str = ""

    @property
    def key(self) -> str:
        """Salt and conversation id."""
        assert self.body["cache_salt"] == self.headers["X-Conversation-ID"]
        return str(self.body["cache_salt"])

    @property
    def contents(self) -> list[Any]:
        """What its messages say."""
        return [message["content"] for message in self.body["messages"]]


@dataclass
class StubRouter:
    """The router.

    Attributes:
        fails: whether the request of this number (from 0) gets a 500.
        hang_at: number of the request that is never answered.
        gate: awaited before each answer.
        pause_s: before each event.
        api_key: without it there is a 401.
        end_status: of the reply to an end of a conversation.
        asked: requests for tokens, in order of arrival.
        keys: of all requests, what they had for an Authorization.
    """

    events: Events
    fails: Callable[[int], bool] = lambda _: False
    hang_at: int | None = None
    gate: Callable[[], Awaitable[None]] | None = None
    pause_s: float = 0.0
    api_key: str | None = None
    models_status: int = 200
    end_status: int = 200
    asked: list[Asked] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    most_at_a_time: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        self.keys.append(request.headers.get("Authorization"))
        if self.api_key and self.keys[-1] != f"Bearer {self.api_key}":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": MODEL}]}, status=self.models_status)
        if request.path.endswith("/end"):
            self.ends.append(request.match_info["path"].split("/")[1])
            return web.json_response({"released": 0}, status=self.end_status)
        number = len(self.asked)
        asked = Asked(dict(request.headers), await request.json(), perf_counter())
        self.asked.append(asked)
        running = [each for each in self.asked if each.ended_s is None]
        self.most_at_a_time = max(self.most_at_a_time, len(running))
        try:
            return await self._answer(request, number, asked)
        finally:
            asked.ended_s = perf_counter()

    async def _answer(self, request: web.Request, number: int, asked: Asked) -> web.StreamResponse:
        if self.fails(number):
            return web.Response(status=500, text="stub failure")
        if number == self.hang_at:
            self.hanging.set()
            await asyncio.Event().wait()
        if self.gate is not None:
            await self.gate()
        ids = range(number * ANSWER_TOKENS, (number + 1) * ANSWER_TOKENS)
        words = [f" w{token}" for token in ids]
        asked.answer = "".join(words)
        response = web.StreamResponse(headers={"X-Turnback-Path": "cold"})
        await response.prepare(request)
        for event in self.events(ids, words, 100 + number):
            await response.write(event)
            await asyncio.sleep(self.pause_s)
        asked.ended_s = perf_counter()
        return response


def talk(index: int, *, turns: int = 3, is_warmup: bool = False, point: int = 0) -> Conversation:
    """A conversation with texts of its own."""
    name = f"{'warm-up' if is_warmup else 'talk'} {index}"
    return Conversation(
        index,
        is_warmup,
        ({"role": "system", "content": "be short"},),
        tuple(
            PlannedTurn(({"role": "user", "content": f"{name} turn {turn}"},), ANSWER_TOKENS)
            for turn in range(1, turns + 1)
        ),
        point=point,
    )


def info_of(profile: Profile, bench: BenchSpec, **more: Any) -> PassInfo:
    """Of a pass that a test plays."""
    return PassInfo("caching off", "2026-11-30T00:00:00", profile, bench, "test", False, **more)


async def play(
    url: str,
    folder: PassFolder,
    conversations: Sequence[Conversation],
    info: PassInfo,
    *,
    api_key: str | None = None,
    **more: Any,
) -> list[TurnResult]:
    """Play a pass."""
    target = Target(url, MODEL, "run", api_key=api_key)
    return await run_pass(target, conversations, folder, info, **more)


def runs(asked: Sequence[Asked]) -> list[tuple[str, int]]:
    """Keys of requests in their order, and how many follow each other."""
    return [(key, len(list(some))) for key, some in groupby(each.key for each in asked)]


def counted(results: Sequence[TurnResult]) -> Counter[tuple[str, bool]]:
    """How many turns of each arm, and of A/A."""
    return Counter((each.arm, each.is_again) for each in results)
