"""A raw server that plays one script per connection, and a client that asks it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from runtime.router.wire import EngineClient, EngineReply
from tests.router.fleet import HOST, until


@dataclass
class Peer:
    """A raw server, and what it has seen."""

    url: str = ""
    connections: int = 0
    closed: int = 0
    heads: list[bytes] = field(default_factory=list)
    sent_bytes: int = 0


class Line:
    """One connection, as the server sees it."""

    def __init__(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._peer, self._reader, self._writer = peer, reader, writer

    async def request(self) -> bytes:
        """The next request's head and body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        self._peer.heads.append(head)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head + await self._reader.readexactly(int(length or 0))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self._peer.sent_bytes += len(data)

    async def until_gone(self) -> None:
        """Until the client has ended the connection."""
        await self._reader.read()


Script = Callable[[Line], Awaitable[None]]


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Peer]:
    """Run a script for each connection; leaving it closes the connection."""
    peer = Peer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.connections += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await script(Line(peer, reader, writer))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            peer.closed += 1

    server = await asyncio.start_server(serve, HOST, 0)
    peer.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        server.close()
        await until(lambda: peer.closed == peer.connections)


class Ask:
    """Sends requests to one server."""

    def __init__(self, client: EngineClient, peer: Peer, timeout_s: float) -> None:
        self.client, self._peer, self._timeout_s = client, peer, timeout_s

    async def head(self, body: bytes = b"{}") -> EngineReply:
        return await self.client.send(
            "POST", self._peer.url, "/v1/x", body=body, timeout_s=self._timeout_s
        )

    async def whole(self, body: bytes = b"{}") -> bytes:
        return await (await self.head(body)).read()


@asynccontextmanager
async def connected(script: Script, timeout_s: float = 1.0) -> AsyncIterator[tuple[Ask, Peer]]:
    """A server and a client that asks it."""
    client = EngineClient(0.2)
    async with serving(script) as peer:
        try:
            yield Ask(client, peer, timeout_s), peer
        finally:
            await client.close()


def ok(body: bytes, *more: bytes) -> bytes:
    """A reply with a length."""
    lines = (b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *more)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    """A reply in chunks."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


TO_THE_END = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


async def echo(line: Line) -> None:
    """Answer each request with its body."""
    while True:
        request = await line.request()
        await line.send(ok(request.partition(b"\r\n\r\n")[2]))


def answering(reply: bytes, *, stays: bool = False) -> Script:
    """Send these bytes for one request; then close, or wait."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(reply)
        if stays:
            await line.until_gone()

    return script
