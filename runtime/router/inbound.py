"""HTTP/1.1 from clients: connections, each with one request at a time.

A general server's cost per request is several times that of the parsing; this one keeps
what a router needs.
"""

import asyncio
import logging
import ssl
import time
from collections import deque

import httptools

from runtime.router.exchange import Handler, Headers, Request, Response, Sent, head_of
from runtime.router.failure import JSON_TYPE, RequestFailed, error_body

_VERSIONS = ("1.0", "1.1")
_MOST_HEADER_BYTES = 64 * 1024
_TOO_LONG = f"more than {_MOST_HEADER_BYTES} bytes of headers"
_PIECE_BYTES = 32 * 1024
"""So much is parsed at once: the smallest requests are a thousand even then."""
_MOST_UNREAD_BYTES = 256 * 1024
"""Of a body that nobody waits for."""
_MOST_REQUESTS = 4
"""That a client may send before the first of them is answered."""
_BACKLOG = 4096
_LAST_S = 1.0
"""For writing out what stands in buffers, and for reading what is not wanted."""
_IDLE_S = 75.0
"""How long a connection stays open for a next request."""
_SWEEP_S = 0.25
_LARGE_BYTES = 32 * 1024
"""From here on, a body is not copied behind its head."""

logger = logging.getLogger("turnback.router")


class Unreadable(Exception):
    """What came is no request."""


class Inbound(asyncio.Protocol):
    """One connection.

    Args:
        server: whose it is.
    """

    transport: asyncio.Transport

    def __init__(self, server: "Inbounds") -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request | RequestFailed] = deque()
        self._coming: Request | None = None
        self._served: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_deaf = self._is_paused = False
        self._is_stopping = self._is_over = False
        self.deadline_s = self._lingers_until_s = float("inf")
        self._unread, self._unparsed_bytes, self._told_bytes = b"", 0, 0
        self.on_message_begin()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TCP gives a full one
        self.deadline_s = time.monotonic() + self._server.client_timeout_s
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_deaf:
            self._unread += data
            self._read_on()

    def _read_on(self) -> None:
        """Parse what has come, as far as it is wanted by now; the rest waits, here or there."""
        while self._unread and not self._is_full and not self._is_deaf:
            piece, self._unread = self._unread[:_PIECE_BYTES], self._unread[_PIECE_BYTES:]
            self._take(piece)
        if self._task is None:
            self._serve_next()
        is_held = not self._is_deaf and (self._is_full or bool(self._unread))
        if is_held != self._is_paused and not self._is_closing:
            self._is_paused = is_held
            (self.transport.pause_reading if is_held else self.transport.resume_reading)()

    def _take(self, data: bytes) -> None:
        try:
            if self._unparsed_bytes:
                self._take_unparsed(data)
            else:
                self._parse(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._take_upgraded(data[upgrade.args[0] :])
        except (httptools.HttpParserError, Unreadable) as error:
            self._refuse(str(error.__context__ or error))
        if self._coming is not None:
            self._coming.wake()

    def _parse(self, data: bytes) -> None:
        self._is_getting_on = False
        self._parser.feed_data(data)
        # Heads, what follows chunks and what stands beside their sizes: all of it is told
        # late or never, and would be gathered until then.
        self._told_bytes = 0 if self._is_getting_on else self._told_bytes + len(data)
        if self._told_bytes > _MOST_HEADER_BYTES:
            raise Unreadable(_TOO_LONG)

    def _take_upgraded(self, rest: bytes) -> None:
        """The parser leaves to others what follows the head of a request to upgrade."""
        request = self._waiting[-1]
        assert isinstance(request, Request)  # noqa: S101 - its head has just been parsed
        request.keep_alive = False  # nothing else is spoken here
        request.is_complete, self._coming = False, request
        if request.content_length is None:
            self._refuse("chunks after a request to upgrade")
        else:
            self._unparsed_bytes = request.content_length
            self._take_unparsed(rest)

    def _take_unparsed(self, data: bytes) -> None:
        """A body whose end is known by its length, the last of its connection."""
        self.on_body(data[: self._unparsed_bytes])
        self._unparsed_bytes -= min(self._unparsed_bytes, len(data))
        if not self._unparsed_bytes:
            self.on_message_complete()
            self._is_deaf, self._unread = True, b""

    def eof_received(self) -> None:
        """Who sends no more, reads no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self.lost.set_result(None)
        del self._parser  # it holds this object, which what has come holds: back it goes now
        self._is_deaf, self._unread = True, b""
        self._waiting.clear()
        for request in (self._coming, self._served):
            if request is not None:
                request.is_lost = True
                request.wake()
        self._coming = None
        if self._task is not None and self._served is not None:
            if self._served.on_left is not None:
                self._served.on_left(self._task)
            else:
                self._task.cancel()

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # httptools' callbacks
    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > _MOST_HEADER_BYTES:
            raise Unreadable(_TOO_LONG)

    def on_message_begin(self) -> None:
        self._is_getting_on = True
        self._target, self._headers, self._is_head_read = b"", dict[str, str](), False
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if not self._is_head_read:  # what follows chunks tells nothing that is asked for
            told = value.rstrip(b" \t").decode("utf-8", "surrogateescape")
            self._headers.setdefault(name.decode("latin-1").lower(), told)

    def on_headers_complete(self) -> None:
        parser = self._parser
        version = parser.get_http_version()
        if version not in _VERSIONS:
            raise Unreadable(f"HTTP/{version}")
        self._is_getting_on = True
        self._coming = Request(
            self,
            method=parser.get_method().decode("latin-1"),
            target=self._target.decode("utf-8", "surrogateescape"),
            headers=Headers(self._headers),
            is_http_11=version == "1.1",
            keep_alive=parser.should_keep_alive(),
        )
        self._is_head_read, self._head_bytes = True, 0
        self._waiting.append(self._coming)

    def on_body(self, data: bytes) -> None:
        self._is_getting_on = True
        if self._coming is not None:
            self._coming.add(data)

    def on_message_complete(self) -> None:
        self._is_getting_on = True
        if self._coming is not None:
            self._coming.is_complete = True
            self._coming.wake()
            self._coming = None

    # Requests, one after another
    def _refuse(self, problem: str) -> None:
        """Nothing that comes from now on can be read."""
        self._is_deaf, self._unread = True, b""
        refused = RequestFailed(
            "the request is not one the router can read",
            status=400,
            got=problem[:200],
            allowed=f"HTTP/1.1 with headers of at most {_MOST_HEADER_BYTES} bytes",
            fix="correct the request and send it again",
        )
        if self._coming is not None:
            self._coming.problem = refused
        else:
            self._waiting.append(refused)

    @property
    def _is_full(self) -> bool:
        if len(self._waiting) > _MOST_REQUESTS:
            return True
        if self._coming is None or self._coming.is_wanted:
            return False
        return self._coming.come_bytes > _MOST_UNREAD_BYTES

    def wants_body(self) -> None:
        """Somebody waits for the rest of a body."""
        self._read_on()

    def _serve_next(self) -> None:
        if not self._waiting or self._is_closing:
            return
        request = self._waiting.popleft()
        if isinstance(request, RequestFailed):
            self._write(_refusal(request), stays=False, is_head=False)
            self._close()
            return
        self._served = request
        self.deadline_s = float("inf")
        self._task = asyncio.get_running_loop().create_task(self._serve(request))
        self._server.tasks.add(self._task)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._server.tasks.discard(task)
        self._task = self._served = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionResetError):
            logger.error("an answer could not be written", exc_info=error)
        if task.cancelled() or error is not None:
            self.transport.abort()
        elif not self._is_over:
            self.deadline_s = time.monotonic() + _IDLE_S
            self._read_on()

    @property
    def _is_closing(self) -> bool:
        return self.transport.is_closing()

    async def _serve(self, request: Request) -> None:
        try:
            reply = await self._server.handle(request)
        except ConnectionResetError:
            self._close()
            return
        stays = request.keep_alive and request.is_complete
        stays = stays and not self._is_stopping and not self._server.is_stopping
        if isinstance(reply, Sent):
            stays = stays and reply.stays
        else:
            self._write(reply, stays=stays, is_head=request.method == "HEAD", request=request)
            if self._drained is not None:
                self.deadline_s = time.monotonic() + self._server.client_timeout_s
                await self.drain()
        if not stays:
            self._close()

    def _write(
        self, reply: Response, *, stays: bool, is_head: bool, request: Request | None = None
    ) -> None:
        if self._is_closing:
            return
        headers = reply.headers | {"Content-Length": str(len(reply.body))}
        is_11 = request is None or request.is_http_11
        head = head_of(reply.status, headers, is_http_11=is_11, stays=stays)
        if is_head:
            self.transport.write(head)
        elif len(reply.body) < _LARGE_BYTES:
            self.transport.write(head + reply.body)
        else:
            self.transport.writelines((head, reply.body))

    async def drain(self) -> None:
        """Wait while much is unread.

        Raises:
            ConnectionResetError: the client has left.
        """
        while self._drained is not None:
            await asyncio.shield(self._drained)
        if self._is_closing:
            raise ConnectionResetError("the client has left")

    def _close(self) -> None:
        """End the connection; a client that still sends gets to read its answer first."""
        is_all_read = self._coming is None and not self._is_deaf and not self._is_paused
        self.deadline_s = time.monotonic() + self._server.client_timeout_s
        self._is_deaf = self._is_over = True
        self._unread = b""
        if is_all_read or self._is_closing or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self._read_on()
            self.transport.write_eof()
            self._lingers_until_s = time.monotonic() + _LAST_S

    def sweep(self, now_s: float) -> None:
        """End what is late; who still reads the last answer has the time for it."""
        is_read = self._lingers_until_s < now_s and not self.transport.get_write_buffer_size()
        if self.deadline_s < now_s or is_read:
            self.transport.abort()

    def stop(self) -> None:
        """Close, now or after the running request."""
        self._is_stopping = True
        if self._task is None and not self._is_over:
            self.transport.close()


class Inbounds:
    """All connections.

    Args:
        handle: answers a request; ConnectionResetError ends the connection.
        client_timeout_s: longest wait for a first request, and for a reply to be read.
    """

    def __init__(self, handle: Handler, client_timeout_s: float) -> None:
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.handle, self.client_timeout_s = handle, client_timeout_s
        self.connections: set[Inbound] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; the port.

        Raises:
            OSError: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Inbound(self), host, port, ssl=tls, backlog=_BACKLOG
        )
        self._sweeper = loop.create_task(self._sweep())
        return int(self._server.sockets[0].getsockname()[1])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = time.monotonic()
            for connection in list(self.connections):
                connection.sweep(now_s)

    async def stop(self) -> None:
        """Take no more; what runs has a moment to end."""
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.stop()
        ends = {*self.tasks, *(connection.lost for connection in self.connections)}
        if ends:
            await asyncio.wait(ends, timeout=_LAST_S)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)


def _refusal(refused: RequestFailed) -> Response:
    return Response(refused.status, error_body(refused), {"Content-Type": JSON_TYPE})
