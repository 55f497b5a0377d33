"""One connection to an engine: HTTP/1.1 parsed as it comes."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httptools

from runtime.router.ticks import Ticks

_SEND_BYTES = 1 << 20
"""A prompt of this size leaves in one write, without waiting for the engine in between."""

_BUFFER_BYTES = 1 << 20
"""Reading stops while a slow client leaves this much unread."""

_LOOP_TICK_S = 0.001
"""uvloop's timers count milliseconds."""


class Broken(Exception):
    """The connection failed after the request may have been sent.

    Args:
        problem: what was seen.
        is_silent: not one byte of a reply had come, and the time was not up.
    """

    def __init__(self, problem: str, *, is_silent: bool) -> None:
        super().__init__(problem)
        self.is_silent = is_silent


Sink = Callable[[bytes], bool]
"""Takes body bytes as they come, without waking who reads; False when it will not."""


class Connection(asyncio.Protocol):
    """One connection; one request at a time.

    Args:
        ticks: for short pauses of reading.
    """

    def __init__(self, ticks: Ticks) -> None:
        self.transport: asyncio.Transport | None = None
        self._ticks = ticks
        self.idle_since_s = 0.0
        self._clear()

    def _clear(self) -> None:
        self._chunks: list[bytes] = []
        # An engine sends each token as a chunk of its own: a method of ours would cost more.
        self.on_body = self._chunks.append
        self.parser: Any = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.is_kept_alive = False
        self.is_begun = False
        self.is_late = False
        self.problem: str | None = None
        self.deadline_s: float | None = None
        self.sink: Sink | None = None
        self._buffered_bytes = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TCP gives a full one
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)

    def data_received(self, data: bytes) -> None:
        self.is_begun = True
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(f"the reply is not HTTP: {error}")
        if self._is_pushed():
            return
        self._buffered_bytes += len(data)
        if self._buffered_bytes > _BUFFER_BYTES and not self._is_paused and self.transport:
            self.transport.pause_reading()
            self._is_paused = True
        self._wake()

    def _is_pushed(self) -> bool:
        """Whether the sink took all that has come; the end is left to who waits for it."""
        is_waited_for = self._waiter is not None and self._chunks and self.sink is not None
        if not is_waited_for or self.is_complete or self.problem is not None:
            return False
        if self.sink is None or not self.sink(b"".join(self._chunks)):
            return False
        self._chunks.clear()
        self._buffered_bytes = 0
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        is_to_the_end = self.status and not (
            "content-length" in self.headers or "transfer-encoding" in self.headers
        )
        if is_to_the_end and exc is None and self.problem is None:
            self.is_complete = True
        if not self.is_complete and self.problem is None:
            told = f"{type(exc).__name__}: {exc}" if exc else "the connection was closed"
            self.problem = told
        self._wake()

    # httptools' callbacks
    def on_message_begin(self) -> None:
        if self.is_complete:  # nobody has asked: no reply to any request
            raise ValueError("more than one reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.is_complete = True
            self.is_kept_alive = self.parser.should_keep_alive()  # it tells only now
        else:  # 100 Continue and its like: the reply is still to come
            self.status, self.headers = 0, {}

    # for the client below
    def begin(self, deadline_s: float | None) -> None:
        self._clear()
        self.deadline_s = deadline_s

    def fail(self, problem: str, *, is_late: bool = False) -> None:
        """End the connection; whoever waits is told."""
        self.is_late = is_late
        if not self.is_complete and self.problem is None:
            self.problem = problem
        if self.transport is not None:
            self.transport.abort()
        self._wake()

    @property
    def is_usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_drained(self) -> bool:
        return self.is_complete and not self._chunks

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def hold(self, seconds: float) -> None:
        """Read nothing for so long; below what the loop counts, until the next tick."""
        if self.transport is not None and not self._is_paused and self.is_usable:
            self._is_paused = True
            self.transport.pause_reading()
            if seconds < _LOOP_TICK_S:
                self._ticks.call(self.resume)
            else:
                asyncio.get_running_loop().call_later(seconds, self.resume)

    def resume(self) -> None:
        if self._is_paused and self.is_usable and self.transport is not None:
            self._is_paused = False
            self.transport.resume_reading()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self.status:
            if self.problem is not None:
                raise Broken(self.problem, is_silent=not self.is_begun and not self.is_late)
            await self._wait()

    async def chunk(self) -> bytes:
        """All body bytes that have come since the last call; empty at the end."""
        while not self._chunks:
            if self.is_complete:
                return b""
            if self.problem is not None:
                raise Broken(self.problem, is_silent=False)
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        is_full = self._buffered_bytes > _BUFFER_BYTES
        self._buffered_bytes = 0
        if is_full:
            self.resume()
        return data
