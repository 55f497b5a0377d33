"""Plays blocks of conversations against a router: who is next, who waits, when to give up."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from runtime.bench.client import run_turn
from runtime.bench.history import history
from runtime.bench.order import Block, Part
from runtime.bench.turn import TurnRequest, TurnResult
from runtime.bench.workloads.conversation import Conversation
from runtime.contract.bench import BenchSpec
from runtime.contract.http import END_PATH
from runtime.errors import EngineDied

MOST_FAILED_CONVERSATIONS = 5
"""One after another without a turn that succeeded: then nothing is measured any more."""
LATE_MS = 50.0
BUSY_SHARE = 0.8
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Target:
    """Where turns go.

    Attributes:
        router_url: address without a path.
        run_id: part of every conversation id and cache salt, so that two runs against one
            fleet share nothing.
        allowed_token_ids: the only ids answers may hold; empty: all.
        api_key: a client's key, where the router wants one.
    """

    router_url: str
    served_model_name: str
    run_id: str
    allowed_token_ids: tuple[int, ...] = ()
    api_key: str | None = field(default=None, repr=False)


@dataclass
class Player:
    """Plays blocks, one after the other.

    Attributes:
        aborts: after how many tokens the client leaves, by (conversation, turn).
        began_s: `perf_counter()` when the pass began.
        latest_ms: by how much the latest start of an open loop came late.
    """

    target: Target
    bench: BenchSpec
    session: aiohttp.ClientSession
    aborts: dict[tuple[int, int], int] = field(default_factory=dict)
    began_s: float = field(default_factory=perf_counter)
    latest_ms: float = 0.0
    _cpu_began_s: float = field(default_factory=process_time)
    _failed: int = 0
    _tells_ends: bool = True

    async def play(self, block: Block, record: Callable[[TurnResult], None]) -> None:
        """Play a block: its parts one after the other, each until its last turn is over.

        A failed turn of the first part ends its conversation for all of them: nothing
        after it could be compared. A failed turn of a later one does not: its history is
        the first part's. What D keeps for the conversations is given back after each
        part, so that none of it lies in the next one's way.

        Raises:
            EngineDied: nothing succeeds any more.
        """
        answers: dict[int, list[str]] = {}
        for part in block.parts:
            await _Playing(self, block, part, answers, record).run()
            if part.arm == "bidirectional":
                await self._end(self.key(block, part, each) for each in block.conversations)

    def begin(self, aborts: dict[tuple[int, int], int]) -> None:
        """The pass begins now: times, failures and the client's load count from here."""
        self.began_s, self._cpu_began_s = perf_counter(), process_time()
        self.aborts, self._failed, self.latest_ms = aborts, 0, 0.0

    def client_load(self) -> dict[str, Any]:
        """How busy this process was, and what that puts in doubt."""
        busy = (process_time() - self._cpu_began_s) / max(perf_counter() - self.began_s, 1e-9)
        warnings = []
        if busy > BUSY_SHARE:
            warnings.append(
                f"the client used {busy:.0%} of a core: its times may be its own; use fewer clients"
            )
        if self.latest_ms > LATE_MS:
            warnings.append(
                f"a conversation began {self.latest_ms:.0f} ms after its moment: "
                "the client did not keep up with the arrivals"
            )
        return {
            "cpu_share": round(busy, 3),
            "latest_start_ms": round(self.latest_ms, 1),
            "warnings": warnings,
        }

    def key(self, block: Block, part: Part, conversation: Conversation) -> str:
        """Conversation id and cache salt: of this conversation, arm and repeat alone."""
        kind = "w" if conversation.is_warmup else "c"
        again = "-again" if part.is_again else ""
        run = f"{self.target.run_id}-{block.repeat}"
        return f"{run}-{kind}{conversation.index}-{part.arm}{again}"

    def count(self, results: Sequence[TurnResult]) -> None:
        """Take note of a conversation that was played.

        Raises:
            EngineDied: it is one too many without success.
        """
        if not results:
            return
        is_good = any(each.outcome in ("successful", "aborted") for each in results)
        self._failed = 0 if is_good else self._failed + 1
        if self._failed >= MOST_FAILED_CONVERSATIONS:
            raise EngineDied(
                f"no turn of {self._failed} conversations one after another succeeded",
                got=str(results[-1].error),
                allowed="a fleet that answers",
                fix="look into the logs of router and engines; what was measured is kept",
            )

    async def _end(self, keys: Iterable[str]) -> None:
        """Tell the router that conversations are over; another router may not know how."""
        timeout = aiohttp.ClientTimeout(total=_END_TIMEOUT_S)
        base = self.target.router_url.rstrip("/")
        for key in keys:
            if not self._tells_ends:
                return
            path = END_PATH.format(id=quote(key, safe=""))
            try:
                async with self.session.post(
                    URL(base + path, encoded=True), timeout=timeout
                ) as told:
                    self._tells_ends = told.status != 404
            except (aiohttp.ClientError, TimeoutError):
                return  # a router that is gone shows in the next turns


@dataclass(frozen=True)
class _Playing:
    """One arm's pass through a block.

    Attributes:
        answers: of the first part, by conversation; filled by it.
    """

    player: Player
    block: Block
    part: Part
    answers: dict[int, list[str]]
    record: Callable[[TurnResult], None]

    async def run(self) -> None:
        """Play all conversations to their end."""
        block, bench = self.block, self.player.bench
        if bench.arrivals_per_s is not None:
            began_s = perf_counter()
            await together(
                self._arrive(each, began_s + start_s)
                for each, start_s in zip(block.conversations, block.starts_s, strict=True)
            )
            return
        waiting = iter(block.conversations)

        async def client() -> None:
            for conversation in waiting:
                await self._conversation(conversation)

        await together(client() for _ in range(min(bench.clients, len(block.conversations))))

    async def _arrive(self, conversation: Conversation, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, moment_s - perf_counter()))
        late_ms = (perf_counter() - moment_s) * 1000
        self.player.latest_ms = max(self.player.latest_ms, late_ms)
        await self._conversation(conversation)

    async def _conversation(self, conversation: Conversation) -> None:
        is_first = self.part is self.block.parts[0]
        answers = self.answers.setdefault(conversation.index, [])
        turns = len(conversation.turns) if is_first else len(answers)
        results = []
        for turn in range(1, turns + 1):
            result = await self._turn(conversation, turn, answers)
            self.record(result)
            results.append(result)
            if is_first:
                if result.outcome not in ("successful", "aborted"):
                    break
                answers.append(result.text)
        self.player.count(results)

    async def _turn(
        self, conversation: Conversation, turn: int, answers: Sequence[str]
    ) -> TurnResult:
        player, planned = self.player, conversation.turns[turn - 1]
        think_s = planned.think_s * player.bench.think_scale if turn > 1 else 0.0
        request = TurnRequest(
            conversation=conversation.index,
            turn=turn,
            arm=self.part.arm,
            model=player.target.served_model_name,
            messages=history(conversation, turn, answers),
            answer_tokens=planned.answer_tokens,
            allowed_token_ids=player.target.allowed_token_ids,
            conversation_key=player.key(self.block, self.part, conversation),
            timeout_s=player.bench.timeout_s,
            tools=conversation.tools,
            abort_after_tokens=player.aborts.get((conversation.index, turn)),
            is_again=self.part.is_again,
            is_edited=planned.edit is not None,
            point=conversation.point,
            repeat=self.block.repeat,
            block=self.block.number,
            think_s=think_s,
        )
        if think_s:
            await asyncio.sleep(think_s)
        return await run_turn(player.session, player.target.router_url, request, player.began_s)


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them all; the first failure, and a cancellation, ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
