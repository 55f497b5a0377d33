"""A prefill and a decode engine in one process, as cheap as Python makes them.

    python -m benchmarks.router.mock --prefill PORT --decode PORT [--events-per-s RATE]

As in an engine's step, each round writes one event to every running stream.
"""

import argparse
import asyncio
import gc
import signal
import time
from collections import Counter, deque
from functools import partial
from typing import Literal, cast

import orjson
import uvloop

from benchmarks.router import replies
from benchmarks.router.replies import Asked
from benchmarks.router.wire import BadMessage, Request, RequestReader
from runtime.engine_api import RELEASE_PATH

Role = Literal["prefill", "decode"]

_BACKLOG = 4096
_PACED_TICK_S = 0.005
_MAX_ROUNDS_AT_ONCE = 4
_HELD_BACK_S = 0.001
_FIRST_STEP_S = 0.001
"""From the role chunk to the first token. On its shared core the client would else see the
first byte only when the mock has written the whole answer."""
_JSON_HEAD = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_METRICS = (
    b"# TYPE vllm:cache_config_info gauge\n"
    b'vllm:cache_config_info{block_size="32",num_gpu_blocks="100000"} 1.0\n'
    b'vllm:num_requests_running{model_name="mock"} 0.0\n'
    b'vllm:num_requests_waiting{model_name="mock"} 0.0\n'
    b'vllm:kv_cache_usage_perc{model_name="mock"} 0.0\n'
)
_CARD = (
    b'{"object":"list","data":[{"id":"mock","object":"model","owned_by":"vllm",'
    b'"max_model_len":131072}]}'
)
_JSON = b"application/json"
_PAGES = {
    b"/health": (b"", _JSON),
    b"/v1/models": (_CARD, _JSON),
    b"/version": (b'{"version":"0.33.0"}', _JSON),
    b"/metrics": (_METRICS, b"text/plain; version=0.0.4; charset=utf-8"),
}

counts: Counter[str] = Counter()
"""What the engines have been asked for; GET /mock/counts."""


def _reply(body: bytes, kind: bytes = _JSON, status: bytes = b"200 OK") -> bytes:
    return _JSON_HEAD % (status, kind, len(body)) + body


def _handle(asked: Asked) -> bytes:
    return replies.handle(asked.prompt_tokens, is_pinned=asked.wants_pin)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Stream:
    """A running answer on one connection."""

    __slots__ = ("_asked", "_at", "_engine", "_template")

    def __init__(self, engine: "Engine", asked: Asked, template: bytes) -> None:
        self._engine, self._asked, self._at = engine, asked, 0
        self._template = template
        engine.send(_STREAM_HEAD + _chunk(replies.ROLE % asked.number))

    @property
    def is_held_back(self) -> bool:
        """The reader is behind, as with an engine's own server."""
        return self._engine.is_paused

    @property
    def is_gone(self) -> bool:
        """The reader has closed the connection."""
        return self._engine.is_closed

    def write_next(self) -> bool:
        """Write one event; False when it was the last."""
        asked, at = self._asked, self._at
        self._at += 1
        if self._at < asked.events:
            self._engine.send(self._template % (asked.number, asked.number, at))
            return True
        last = replies.last_event(asked.number, at, _handle(asked))
        self._engine.send(_chunk(last))
        self._engine.send(_chunk(replies.DONE) + b"0\r\n\r\n")
        self._engine.ended()
        return False


class Rounds:
    """Writes the events of all streams in turn.

    Args:
        loop: the process's loop.
        events_per_s: rate of all streams together over `shared_by`; None is unpaced.
        shared_by: streams that share the rate; fewer get their part of it.
        template: an event in vLLM's chunk framing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        events_per_s: float | None,
        shared_by: int,
        template: bytes,
    ) -> None:
        self._loop = loop
        self._per_stream_s = None if events_per_s is None else events_per_s / shared_by
        self.template = _chunk(template % (0, 0, 0)).replace(template % (0, 0, 0), template)
        self._streams: deque[Stream] = deque()
        self._is_running = False
        self._last_s, self._owed = 0.0, 0.0

    def add(self, stream: Stream) -> None:
        """Begin to write a stream at the next step."""
        self._loop.call_later(_FIRST_STEP_S, self._join, stream)

    def _join(self, stream: Stream) -> None:
        self._streams.append(stream)
        if not self._is_running:
            self._is_running = True
            self._last_s = time.perf_counter()
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        written = self._write(self._due())
        if not self._streams:
            self._is_running = False
        elif self._per_stream_s is not None:
            self._loop.call_later(_PACED_TICK_S, self._round)
        elif written:
            self._loop.call_soon(self._round)
        else:
            self._loop.call_later(_HELD_BACK_S, self._round)

    def _due(self) -> int:
        if self._per_stream_s is None:
            return len(self._streams)
        now_s = time.perf_counter()
        owed = self._owed + (now_s - self._last_s) * self._per_stream_s * len(self._streams)
        self._last_s = now_s
        due = min(int(owed), _MAX_ROUNDS_AT_ONCE * len(self._streams))
        self._owed = min(owed - due, float(len(self._streams)))
        return due

    def _write(self, due: int) -> int:
        streams, written = self._streams, 0
        for _ in range(due):
            if not streams:
                break
            stream = streams.popleft()
            if stream.is_gone:
                continue
            if stream.is_held_back:
                streams.append(stream)
                continue
            written += 1
            if stream.write_next():
                streams.append(stream)
        counts["events"] += written
        return written


class Engine(asyncio.Protocol):
    """One connection to either engine."""

    def __init__(self, role: Role, rounds: Rounds) -> None:
        self._role, self._rounds = role, rounds
        self._reader = RequestReader()
        self._waiting: deque[Request] = deque()
        self._is_streaming = False
        self.is_paused = False
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.send = self._transport.write

    def pause_writing(self) -> None:
        """The reader is behind."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Streams that still run end with it."""
        self.is_closed = True
        counts["aborted"] += self._is_streaming

    def data_received(self, data: bytes) -> None:
        """Serve the requests in it, one after the other."""
        try:
            self._waiting.extend(self._reader.feed(data))
        except BadMessage as error:
            self.send(_reply(str(error).encode(), status=b"501 Not Implemented"))
            self._transport.close()
            return
        self._serve_waiting()

    def ended(self) -> None:
        """The running stream has been written."""
        self._is_streaming = False
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and not self._is_streaming:
            request = self._waiting.popleft()
            self._serve(request)
            if request.closes and not self._is_streaming:
                self._transport.close()

    def _serve(self, request: Request) -> None:
        path = request.path.partition(b"?")[0]
        if path == b"/v1/chat/completions":
            self._chat(Asked(request.body))
        elif path == RELEASE_PATH.encode():
            counts["releases"] += 1
            self.send(_reply(b"{}", status=b"202 Accepted"))
        elif path in _PAGES:
            self.send(_reply(*_PAGES[path]))
        elif path == b"/mock/counts":
            self.send(_reply(orjson.dumps(counts)))
        else:
            self.send(_reply(b'{"detail":"Not Found"}', status=b"404 Not Found"))

    def _chat(self, asked: Asked) -> None:
        counts[self._role] += 1
        if self._role == "prefill":
            counts["warm"] += asked.has_handle
            self.send(_reply(replies.whole_reply(asked, replies.p_dict(asked.prompt_tokens))))
            return
        counts["with_p_dict"] += asked.has_p_dict
        if asked.is_stream:
            self._is_streaming = True
            self._rounds.add(Stream(self, asked, self._rounds.template))
        else:
            self.send(_reply(replies.whole_reply(asked, _handle(asked))))


async def serve(options: argparse.Namespace) -> None:
    """Listen on both ports until SIGTERM."""
    loop = asyncio.get_running_loop()
    template = replies.EVENT_WITH_NULL if options.null_params else replies.EVENT
    rounds = Rounds(loop, options.events_per_s, options.shared_by, template)
    ports: dict[Role, int] = {"prefill": options.prefill, "decode": options.decode}
    for role, port in ports.items():
        await loop.create_server(partial(Engine, role, rounds), "127.0.0.1", port, backlog=_BACKLOG)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    await stopped.wait()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=int, required=True, help="port of P")
    parser.add_argument("--decode", type=int, required=True, help="port of D")
    parser.add_argument("--events-per-s", type=float, help="of all streams together")
    parser.add_argument("--shared-by", type=int, default=1, help="streams that share the rate")
    parser.add_argument("--null-params", action="store_true", help="events as vLLM 0.33's")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
