"""How far the benchmark's client is from the truth, and what it costs.

    python -m benchmarks.client [--streams 256] [--events-per-s 10] [--seconds 12]

A mock server in another process streams answers shaped as an engine's, with two logprobs a
token, and writes into each first token when it was sent. Both processes read the same clock
(CLOCK_MONOTONIC). Bars: the client's first-token moment minus that one under 1 ms at p50, and
the client under one core. Exits 1 when a bar is missed.
"""

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import orjson
import uvloop
from aiohttp import web

from benchmarks.router.summary import percentile
from runtime.bench.client import open_session, run_turn
from runtime.bench.run import on_uvloop
from runtime.bench.turn import TurnRequest, TurnResult

BAR_MS, BAR_CORES = 1.0, 1.0
HOST = "127.0.0.1"
HISTORY_BYTES = 20_000
WARM_S = 2.0
"""Of the run's beginning: left out of both figures."""


@dataclass(frozen=True)
class Pace:
    """What the mock does: so many events with a token, so many a second."""

    events: int
    gap_s: float


def chunk(**choice: object) -> bytes:
    """An event with one choice, in vLLM's shape."""
    event = {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "mock",
        "choices": [{"index": 0, "finish_reason": None, **choice}],
    }
    return b"data: " + orjson.dumps(event) + b"\n\n"


def token(text: str, finish_reason: str | None = None) -> bytes:
    """An event with one token, its id, and the best two logprobs."""
    tops = [
        {"token": text, "logprob": -0.25, "bytes": list(text.encode())},
        {"token": " other", "logprob": -1.75, "bytes": list(b" other")},
    ]
    entry = {**tops[0], "top_logprobs": tops}
    return chunk(
        delta={"content": text},
        logprobs={"content": [entry]},
        token_ids=[1234],
        finish_reason=finish_reason,
    )


LAST = (
    token(" end", "length")
    + b'data: {"choices":[],"usage":{"prompt_tokens":5000,"completion_tokens":1}}\n\n'
    + b"data: [DONE]\n\n"
)
ROLE, NEXT = chunk(delta={"role": "assistant", "content": ""}), token(" word")


async def serve(pace: Pace) -> None:
    """Answer until the process is ended; prints the port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(ROLE)
        # Else all streams that began together would send together.
        await asyncio.sleep(random.uniform(0, pace.gap_s))  # noqa: S311 - a pace
        await response.write(token(f"{time.perf_counter()!r}"))
        for _ in range(pace.events - 2):
            await asyncio.sleep(pace.gap_s)
            await response.write(NEXT)
        await asyncio.sleep(pace.gap_s)
        await response.write(LAST)
        return response

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, backlog=1024).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def mock(pace: Pace) -> AsyncIterator[str]:
    """The server in a process of its own; yields its address."""
    argv = [sys.executable, "-m", "benchmarks.client", "--serve", str(pace.events), str(pace.gap_s)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe from the mock")
        yield f"http://{HOST}:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


async def measure(streams: int, pace: Pace, seconds: float) -> tuple[list[TurnResult], float]:
    """Keep so many streams open; the turns that began after the warm-up, and cores used."""
    request = TurnRequest(
        conversation=0,
        turn=1,
        arm="bidirectional",
        model="mock",
        messages=({"role": "user", "content": "x" * HISTORY_BYTES},),
        answer_tokens=pace.events,
        allowed_token_ids=(),
        conversation_key="client",
    )
    results: list[TurnResult] = []
    end_s = time.perf_counter() + seconds

    async def stream(number: int) -> None:
        await asyncio.sleep(WARM_S / 2 * number / streams)
        while time.perf_counter() < end_s:
            results.append(await run_turn(session, url, replace(request, conversation=number)))

    async with mock(pace) as url, open_session() as session:
        playing = [asyncio.create_task(stream(number)) for number in range(streams)]
        await asyncio.sleep(WARM_S)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(end_s - began_s)
        cores = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
        await asyncio.gather(*playing)
    return [each for each in results if each.started_s >= began_s], cores


def lag_ms(result: TurnResult) -> float:
    """From the moment that the first token's text tells to the client's."""
    sent_s = float(result.text.split(" ", 1)[0])
    return (result.started_s - sent_s) * 1000 + (result.ttft_ms or 0.0)


def report(results: list[TurnResult], cores: float) -> bool:
    """Print the figures; whether both bars hold and no turn failed."""
    failed = [each.error for each in results if not each.is_successful]
    lags = [lag_ms(each) for each in results if each.is_successful]
    p50, p99 = percentile(lags, 50), percentile(lags, 99)
    sys.stdout.write(
        f"turns                       {len(results)}, {len(failed)} failed {failed[:1]}\n"
        f"TTFT minus send time, p50   {p50:.3f} ms (bar {BAR_MS:g} ms); p99 {p99:.3f} ms\n"
        f"client CPU                  {cores:.2f} cores (bar {BAR_CORES:g})\n"
    )
    return bool(lags) and not failed and p50 < BAR_MS and cores < BAR_CORES


def main() -> int:
    """Measure; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--events-per-s", type=float, default=10.0)
    parser.add_argument("--events", type=int, default=20, help="tokens of one answer")
    parser.add_argument("--seconds", type=float, default=14.0)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        uvloop.run(serve(Pace(int(asked.serve[0]), float(asked.serve[1]))))
        return 0
    pace = Pace(asked.events, 1 / asked.events_per_s)
    return 0 if report(*on_uvloop(measure(asked.streams, pace, asked.seconds))) else 1


if __name__ == "__main__":
    sys.exit(main())
