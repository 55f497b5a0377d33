"""HTTP/1.1 to the engines: few system calls per request, and exact failures.

A general client's cost per request is several times that of the parsing; this one keeps
what a router needs: keep-alive connections, whole and streamed replies, and whether a
request that failed had reached the engine.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from urllib.parse import urlsplit

from runtime.router.connection import Broken, Connection, Sink
from runtime.router.ticks import TICK_S, Ticks

_IDLE_S = 3.0
"""Below the 5 s after which uvicorn closes idle connections: a POST on one that has
just been closed fails, and a leg that was sent is never sent again."""

_SWEEP_S = 0.25
_LARGE_BYTES = 32 * 1024
"""From here on, a body is not copied behind its head."""

JSON_TYPE = "application/json"


class NotConnected(Exception):
    """The engine was not reached; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens."""

    host: str
    port: int
    is_tls: bool

    @property
    def header(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@lru_cache(maxsize=4096)
def origin_of(url: str) -> Origin:
    """Split an engine's base URL."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return Origin(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls)


class EngineReply:
    """A reply whose head has come.

    Attributes:
        status: HTTP status.
        content_type: as the engine wrote it.
    """

    def __init__(self, client: "EngineClient", origin: Origin, connection: Connection) -> None:
        self._client, self._origin, self._connection = client, origin, connection
        self._is_open = True
        self._parts: list[bytes] = []
        self.status = connection.status
        self._headers = connection.headers  # the connection's next reply has others
        self.content_type = self._headers.get("content-type", JSON_TYPE)

    def header(self, name: str) -> str | None:
        """A header's value, by lower-case name."""
        return self._headers.get(name)

    def give_until(self, seconds: float) -> None:
        """The reply breaks when its next bytes take longer than this."""
        self._connection.deadline_s = time.monotonic() + seconds

    @property
    def is_at_end(self) -> bool:
        """Whether all of the body has been given out."""
        return self._connection.is_drained

    @property
    def is_complete(self) -> bool:
        """Whether all of the body has come."""
        return self._connection.is_complete

    def push_to(self, sink: Sink) -> None:
        """From now on, give the sink what comes while somebody waits in `chunk`."""
        self._connection.sink = sink

    def hold(self, seconds: float) -> None:
        """Read nothing for so long: then more comes at once, with fewer system calls."""
        self._connection.hold(seconds)

    async def chunk(self) -> bytes:
        """The next bytes of the body; empty at its end.

        Raises:
            Broken: the connection failed before the end.
        """
        try:
            data = await self._connection.chunk()
        except Broken:
            self.close()
            raise
        if not data:
            self.close()
        return data

    async def read(self) -> bytes:
        """The body to its end; a read that was cancelled can be done again.

        Raises:
            Broken: the connection failed before the end.
        """
        while data := await self.chunk():
            self._parts.append(data)
        return b"".join(self._parts)

    def close(self) -> None:
        """Keep the connection if the reply has ended, else end it: the engine then aborts."""
        if self._is_open:
            self._is_open = False
            self._client.done(self._origin, self._connection)


class EngineClient:
    """Connections to all engines.

    Args:
        connect_timeout_s: longest wait for a connection.
        tls: for https engines; None for the system's defaults.
    """

    def __init__(self, connect_timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._connect_timeout_s, self._tls = connect_timeout_s, tls
        self._idle: dict[Origin, deque[Connection]] = {}
        self._busy: set[Connection] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._ticks: Ticks | None = None

    @property
    def busy_count(self) -> int:
        """Requests whose reply has not ended."""
        return len(self._busy)

    async def send(
        self,
        method: str,
        url: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float,
        on_write: Callable[[], None] | None = None,
    ) -> EngineReply:
        """Send a request and wait for the head of its reply.

        Args:
            method: GET, POST or PUT.
            url: the engine's base URL, without a path.
            path: with a leading slash.
            headers: besides Host, Content-Type and Content-Length.
            body: JSON.
            timeout_s: for the head; the body has it again, see EngineReply.give_until.
            on_write: called when the engine may see the request from now on.

        Raises:
            NotConnected: the engine was not reached.
            Broken: the request was sent, and no head came.
        """
        try:
            origin = origin_of(url)
        except ValueError as error:
            raise NotConnected(f"the address cannot be used: {error}") from error
        connection = self._reuse(origin) or await self._connect(origin)
        connection.begin(time.monotonic() + timeout_s)
        self._busy.add(connection)
        try:
            assert connection.transport is not None  # noqa: S101 - it is connected
            if on_write is not None:
                on_write()
            head = _head(method, path, origin, headers or {}, len(body))
            if len(body) < _LARGE_BYTES:
                connection.transport.write(head + body)
            else:
                connection.transport.writelines((head, body))
            await connection.head()
        except BaseException:  # cancellation too: the engine's request must end
            self.done(origin, connection)
            raise
        connection.deadline_s = time.monotonic() + timeout_s
        return EngineReply(self, origin, connection)

    def _reuse(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        oldest_s = time.monotonic() - _IDLE_S
        while idle:
            connection = idle.pop()
            if connection.is_usable and connection.idle_since_s > oldest_s:
                return connection
            if connection.transport is not None:
                connection.transport.close()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        if origin.is_tls and self._tls is None:
            self._tls = ssl.create_default_context()  # reads all certificates: once
        tls = self._tls if origin.is_tls else None
        try:
            if self._ticks is None:  # a file of its own: there may be none left
                self._ticks = Ticks(TICK_S)
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    partial(Connection, self._ticks), origin.host, origin.port, ssl=tls
                )
        except TimeoutError as error:
            raise NotConnected(f"no connection within {self._connect_timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host name
            raise NotConnected(str(error)) from error
        if not connection.is_usable:
            raise NotConnected("the connection was closed at once")
        return connection

    def done(self, origin: Origin, connection: Connection) -> None:
        """A request has ended, well or not."""
        self._busy.discard(connection)
        connection.deadline_s = None
        if connection.is_kept_alive and connection.is_usable:
            connection.resume()
            connection.idle_since_s = time.monotonic()
            self._idle.setdefault(origin, deque()).append(connection)
        elif connection.transport is not None:
            connection.transport.abort()

    async def _sweep(self) -> None:
        """Break what is late: one timer for all requests in place of one for each read."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = time.monotonic()
            for connection in list(self._busy):
                if connection.deadline_s is not None and connection.deadline_s < now_s:
                    connection.fail("no answer in time", is_late=True)
            for idle in self._idle.values():  # of nodes that have gone, too
                while idle and idle[0].idle_since_s < now_s - _IDLE_S:
                    idle.popleft().fail("idle")

    def break_all(self, problem: str) -> None:
        """End all running requests; who waits for them is told."""
        for connection in list(self._busy):
            connection.fail(problem, is_late=True)

    async def close(self) -> None:
        """End every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in [*self._busy, *(c for idle in self._idle.values() for c in idle)]:
            connection.fail("the router stops")
        self._idle.clear()
        if self._ticks is not None:
            self._ticks.close()
            self._ticks = None


def _head(
    method: str, path: str, origin: Origin, headers: Mapping[str, str], body_bytes: int
) -> bytes:
    """A request as it goes over the wire, up to its body."""
    lines = [f"{method} {path} HTTP/1.1\r\nHost: {origin.header}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    if body_bytes or method != "GET":
        lines.append(f"Content-Type: {JSON_TYPE}\r\nContent-Length: {body_bytes}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("utf-8", "surrogateescape")
