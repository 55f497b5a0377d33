"""Conversations of a soak, and whether each reply is one the client may get."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from runtime.local.mock_tokens import MockTokens
from tests.router.fleet import LONG_TEXT, MODEL, Fleet, Message, TurnReply

_ERROR_FIELDS = {"message", "type", "code"}
_LEAVE_WITHIN_S = 0.02
_HANGS_AFTER_S = 8.0
"""Below the client's own limit, so that what everybody waits for can still be told."""
_TOKENS = 4


@dataclass
class Outcome:
    """What clients saw.

    Attributes:
        counts: turns by outcome.
        paths: successful turns by the router's path.
        problems: replies that no client may get.
    """

    counts: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """All turns so far."""
        return sum(self.counts.values())


class Player:
    """One client, one conversation after another.

    Args:
        fleet: the router.
        tokens: says what the right answer is.
        rng: decides.
        number: of the player; in each of its texts.
        outcome: takes what it sees.
    """

    def __init__(
        self, fleet: Fleet, tokens: MockTokens, rng: random.Random, number: int, outcome: Outcome
    ) -> None:
        self._fleet, self._tokens, self._rng = fleet, tokens, rng
        self._number, self._outcome = number, outcome
        self._conversations = 0

    async def play(self, turns: int) -> None:
        """Conversations until all players together have had so many turns."""
        while self._outcome.turns < turns:
            self._conversations += 1
            name = f"{self._number}-{self._conversations}"
            key = name if self._rng.random() < 0.5 else None
            history: list[Message] = []
            for turn in range(self._rng.randint(1, 6)):
                text = f"{name} {turn} {LONG_TEXT if turn == 0 else 'and then'}"
                history.append({"role": "user", "content": text})
                again = self._rng.random() < 0.1  # a branch: the same question twice at once
                answer, *_ = await asyncio.gather(
                    *(self._turn(history, key) for _ in range(2 if again else 1))
                )
                if answer is None:
                    break
                history.append({"role": "assistant", "content": answer})
            if key is not None and self._rng.random() < 0.3:
                async with self._fleet.session.post(f"{self._fleet.url}/conversations/{key}/end"):
                    pass

    async def _turn(self, history: list[Message], key: str | None) -> str | None:
        """One turn; None when it gave no answer."""
        stream = self._rng.random() < 0.5
        body = {"model": MODEL, "messages": history, "max_tokens": _TOKENS, "stream": stream}
        sending = asyncio.create_task(self._fleet.post(body, key=key))
        leaves = self._rng.random() < 0.08
        limit_s = self._rng.random() * _LEAVE_WITHIN_S if leaves else _HANGS_AFTER_S
        done, _ = await asyncio.wait({sending}, timeout=limit_s)
        if not done:
            self._outcome.counts["left" if leaves else "hung"] += 1
            if not leaves:
                told = "\n".join([f"no reply within {limit_s:g} s; all tasks:", *all_tasks()])
                self._outcome.problems.append(told)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            return None
        try:
            reply = sending.result()
        except aiohttp.ClientError as error:
            self._outcome.counts["broken"] += 1
            self._outcome.problems.append(f"the connection broke: {error!r}")
            return None
        return self._judged(reply, history, stream=stream)

    def _judged(self, reply: TurnReply, history: list[Message], *, stream: bool) -> str | None:
        if reply.status != 200:
            self._outcome.counts[str(reply.status)] += 1
            self._check_error(reply.raw)
            return None
        if stream and reply.events[-1] != "[DONE]":
            self._outcome.counts["broken_stream"] += 1
            self._check_error(orjson.dumps(reply.events[-1]))
            return None
        self._outcome.counts["answered"] += 1
        self._outcome.paths[str(reply.path)] += 1
        expected = self._expected(history)
        if reply.text != expected:
            self._outcome.problems.append(f"another answer: {reply.text!r}, not {expected!r}")
        return reply.text

    def _expected(self, history: list[Message]) -> str:
        choices = self._tokens.answer(self._tokens.prompt_ids(history), _TOKENS)
        return self._tokens.text([choice.token_id for choice in choices])

    def _check_error(self, raw: bytes) -> None:
        try:
            error: Any = orjson.loads(raw)["error"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            error = None
        if not isinstance(error, dict) or not set(error) >= _ERROR_FIELDS:
            self._outcome.problems.append(f"an error in another shape: {raw[:200]!r}")


def all_tasks() -> Iterator[str]:
    """Where each task of this loop stands: file, line and function, outermost first."""
    for task in asyncio.all_tasks():
        places: list[str] = []
        waits_for: Any = task.get_coro()
        while waits_for is not None:
            frame = getattr(waits_for, "cr_frame", None) or getattr(waits_for, "ag_frame", None)
            if frame is not None:
                place = frame.f_code
                places.append(f"{Path(place.co_filename).name}:{frame.f_lineno} {place.co_name}")
            waits_for = getattr(waits_for, "cr_await", None) or getattr(waits_for, "ag_await", None)
        yield " > ".join(places)
