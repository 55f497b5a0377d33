"""The load: a closed loop of clients that play conversations and check every byte.

    python -m benchmarks.router.client PLAN_JSON

Prints `begin` and `end` around the measured time, then one JSON line of results.
"""

import asyncio
import gc
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import cast

import orjson
import uvloop

from benchmarks.router.processes import API_KEY
from benchmarks.router.replies import MODEL, StreamCheck, answer_text
from benchmarks.router.summary import percentile
from benchmarks.router.wire import BadMessage, ReplyReader
from runtime.contract.http import PIN_HEADER

_AFTER_ERROR_S = 0.02
_MAX_PROBLEMS = 5
_FILLER = "the quick brown fox jumps over the lazy dog and runs on "
_USER = '{{"role":"user","content":"turn {} of {}: {}"}}'
_ASSISTANT = '{{"role":"assistant","content":"{}"}}'
_BODY = '{{"model":"{}","stream":true,"max_tokens":{},"seed":{},"temperature":0.0,"messages":[{}]}}'
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n"
    f"Authorization: Bearer {API_KEY}\r\n"
    "Content-Type: application/json\r\nX-Session-ID: {}\r\nX-Conversation-ID: {}\r\n"
    "{}Content-Length: {}\r\n\r\n"
)
_LAST = f"{PIN_HEADER}: off\r\n"


@dataclass(frozen=True)
class Plan:
    """One run of the load.

    Attributes:
        port: of the router, or of the decode engine itself.
        clients: conversations at a time.
        events: events with a token per answer, at least 2.
        spread: each answer's events vary by up to this part of them.
        first_bytes: length of each conversation's first message.
        turns: answers per conversation.
        says_last: the last one is asked for as such, so that no handle is left behind.
        ramp_s: the clients start spread over this time.
        warm_s: then this long without measuring.
        measure_s: the measured time.
        drain_s: how long running answers may take to end after it.
        first_number: of the answers; runs that share engines take different ones.
    """

    port: int
    clients: int
    events: int
    measure_s: float
    spread: float = 0.0
    first_bytes: int = 200
    turns: int = 4
    says_last: bool = False
    ramp_s: float = 0.0
    warm_s: float = 1.0
    drain_s: float = 15.0
    first_number: int = 1


@dataclass
class Load:
    """Results of one run; the lists hold the measured time's answers only.

    Attributes:
        errored: answers that failed or differed, warm-up included.
        incomplete: answers that had not ended when the run gave up waiting.
    """

    plan: Plan
    events: int = 0
    errored: int = 0
    incomplete: int = 0
    leaks: int = 0
    is_measuring: bool = False
    is_over: bool = False
    problems: list[str] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)

    def fail(self, problem: str) -> None:
        """Count an answer that is not what it must be."""
        self.errored += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem[:600])


class Link(asyncio.Protocol):
    """One kept connection, one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._done: asyncio.Future[None] | None = None
        self.first_s = 0.0
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def ask(self, request: bytes, check: StreamCheck) -> "asyncio.Future[None]":
        """Send a request; the future is done when the reply has come whole."""
        self._reply, self._check, self.first_s = ReplyReader(), check, 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        """Check what has come."""
        done = self._done
        if done is None or done.done():
            self.close()
            return
        try:
            body = self._reply.feed(data)
            if body:
                if not self.first_s:
                    self.first_s = time.perf_counter()
                if self._reply.status != 200:
                    raise BadMessage(f"HTTP {self._reply.status}: {body[:300]!r}")
                self._load.events += self._check.feed(body)
            if self._reply.is_done:
                done.set_result(None)
                if self._reply.closes:
                    self.close()
        except (BadMessage, ValueError) as error:
            done.set_exception(error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """A reply that has not ended has failed."""
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(BadMessage(f"the connection ended: {exc!r}"))

    def close(self) -> None:
        """End the connection."""
        self.is_open = False
        self._transport.close()


class Client:
    """One of the clients: plays conversations until the run is over."""

    def __init__(self, load: Load, index: int, numbers: "count[int]") -> None:
        self._load, self._plan, self._index, self._numbers = load, load.plan, index, numbers
        self._random = random.Random(index)  # noqa: S311 - lengths, not secrets
        self._link: Link | None = None

    async def play(self) -> None:
        """Conversations, one after the other."""
        await asyncio.sleep(self._plan.ramp_s * self._index / self._plan.clients)
        while not self._load.is_over:
            await self._conversation()
        if self._link is not None:
            self._link.close()

    async def _conversation(self) -> None:
        plan = self._plan
        key = f"bench-{self._index}-{next(self._numbers)}"
        filler = (_FILLER * (plan.first_bytes // len(_FILLER) + 1))[: plan.first_bytes]
        messages: list[str] = []
        for turn in range(plan.turns):
            if self._load.is_over:
                return
            messages.append(_USER.format(turn, key, "" if turn else filler))
            number = next(self._numbers)
            events = max(2, int(plan.events * (1 + plan.spread * self._random.uniform(-1, 1))))
            body = _BODY.format(MODEL, events, number, ",".join(messages)).encode()
            is_last = plan.says_last and turn == plan.turns - 1
            head = _HEAD.format(plan.port, key, key, _LAST if is_last else "", len(body)).encode()
            if not await self._turn(head + body, StreamCheck(number, events)):
                return
            messages.append(_ASSISTANT.format(answer_text(number, events)))

    async def _turn(self, request: bytes, check: StreamCheck) -> bool:
        load = self._load
        try:
            link = await self._open()
            began_s = time.perf_counter()
            await link.ask(request, check)
        except (OSError, ValueError) as error:
            load.fail(f"{type(error).__name__}: {error}")
            self._link = None
            await asyncio.sleep(_AFTER_ERROR_S)
            return False
        ended_s = time.perf_counter()
        before = check.at
        problem = check.finish()
        load.events += check.at - before
        load.leaks += check.leaks
        if problem is not None:
            load.fail(problem)
        elif load.is_measuring:
            load.first_ms.append((link.first_s - began_s) * 1000)
            load.total_ms.append((ended_s - began_s) * 1000)
        return problem is None

    async def _open(self) -> Link:
        if self._link is None or not self._link.is_open:
            loop = asyncio.get_running_loop()
            _, self._link = await loop.create_connection(
                lambda: Link(self._load), "127.0.0.1", self._plan.port
            )
        return self._link


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def run(plan: Plan) -> dict[str, object]:
    """Play a plan to its end."""
    load = Load(plan)
    numbers = count(plan.first_number)
    playing = [asyncio.create_task(Client(load, at, numbers).play()) for at in range(plan.clients)]
    await asyncio.sleep(plan.ramp_s + plan.warm_s)
    load.is_measuring = True
    began_s, events = time.perf_counter(), load.events
    _say("begin")
    await asyncio.sleep(plan.measure_s)
    load.is_measuring, load.is_over = False, True
    took_s, events = time.perf_counter() - began_s, load.events - events
    _say("end")
    ended, running = await asyncio.wait(playing, timeout=plan.drain_s)
    for task in running:
        task.cancel()
    for task in ended:
        if (error := task.exception()) is not None:
            load.fail(f"client ended: {error!r}")
    load.incomplete += len(running)
    return result(load, took_s, events)


def result(load: Load, took_s: float, events: int) -> dict[str, object]:
    """The figures of a run."""
    answers = len(load.total_ms)
    return {
        "plan": asdict(load.plan),
        "answers": answers,
        "errored": load.errored,
        "incomplete": load.incomplete,
        "problems": load.problems,
        "leaks": load.leaks,
        "took_s": took_s,
        "req_s": answers / took_s,
        "events_s": events / took_s,
        "p50_ms": percentile(load.first_ms, 50),
        "p99_ms": percentile(load.first_ms, 99),
        "total_p50_ms": percentile(load.total_ms, 50),
    }


def main() -> None:
    """Play the plan of the command line."""
    plan = Plan(**orjson.loads(sys.argv[1]))
    gc.set_threshold(100_000, 50, 50)
    _say(orjson.dumps(uvloop.run(run(plan))).decode())


if __name__ == "__main__":
    main()
