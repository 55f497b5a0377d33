"""How clients' connections end: who reads slowly gets all, and nobody holds one for ever."""

import asyncio
import gc
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.router import inbound
from runtime.router.exchange import Handler, Request, Response
from runtime.router.inbound import Inbounds
from tests.router.fleet import HOST, until

BODY = b"x" * 60_000
"""Less than a transport takes before it says that it is full; more than small sockets hold."""


async def large(_request: Request) -> Response:
    """Answer anything at once."""
    return Response(200, BODY)


@asynccontextmanager
async def serving(handle: Handler, client_timeout_s: float = 5.0) -> AsyncIterator[Inbounds]:
    """A server whose sockets hold little."""
    server = Inbounds(handle, client_timeout_s)
    await server.start(HOST, 0, None)
    with socket.socket(fileno=os.dup(listener(server).fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted ones have it too
    async with asyncio.timeout(10):
        try:
            yield server
        finally:
            await server.stop()


def listener(server: Inbounds) -> socket.socket:
    """The socket that connections come from."""
    assert server._server is not None
    return server._server.sockets[0]


@asynccontextmanager
async def connected(server: Inbounds, sent: bytes) -> AsyncIterator[socket.socket]:
    """A client whose socket holds little and is read by the test alone."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listener(server).getsockname())
        await loop.sock_sendall(client, sent)
        yield client


async def all_of(client: socket.socket) -> bytes:
    """What comes until the server's end."""
    got = b""
    while data := await asyncio.get_running_loop().sock_recv(client, 65536):
        got += data
    return got


async def stuck(server: Inbounds) -> inbound.Inbound:
    """The one connection, once it has answered and cannot write it all."""
    await until(lambda: server.connections and not server.tasks)
    (one,) = server.connections
    await until(lambda: one.transport.get_write_buffer_size() and one._task is None)
    return one


async def test_client_that_does_not_read_its_last_answer_is_cut_off() -> None:
    """The connection is closing, and what is unsent would keep it for ever."""
    sent = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    async with serving(large, client_timeout_s=0.3) as server, connected(server, sent):
        await stuck(server)
        await until(lambda: not server.connections, 2.0)


async def test_slow_client_whose_body_is_not_wanted_reads_its_whole_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The moment that its body is read for begins when the answer is out."""
    monkeypatch.setattr(inbound, "_LAST_S", 0.1)
    async with serving(large) as server:
        sent = b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\nhalf"
        async with connected(server, sent) as client:
            await stuck(server)
            await asyncio.sleep(0.6)  # the sweep has come by
            assert (await all_of(client)).endswith(BODY)
            await until(lambda: not server.connections, 1.0)


async def test_stop_waits_for_what_is_written_already() -> None:
    """A request that has ended is not yet one whose client has its answer."""
    async with serving(large) as server, connected(server, b"GET / HTTP/1.1\r\n\r\n") as client:
        await stuck(server)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.1)
        assert (await all_of(client)).endswith(BODY)
        await stopping


async def test_stop_does_not_take_the_answer_from_a_client_that_still_sends() -> None:
    """Its body is read on until its end, or for a second."""
    async with serving(large) as server:
        sent = b"POST / HTTP/1.1\r\nContent-Length: 900000\r\n\r\n"
        async with connected(server, sent) as client:
            await stuck(server)
            stopping = asyncio.create_task(server.stop())
            for _ in range(20):
                await asyncio.get_running_loop().sock_sendall(client, b"x" * 10_000)
            assert (await all_of(client)).endswith(BODY)
            client.close()
            await stopping


async def test_stop_ends_after_a_moment_whoever_does_not_read() -> None:
    """A router that stops has a deadline of its own."""
    async with serving(large) as server, connected(server, b"GET / HTTP/1.1\r\n\r\n"):
        await stuck(server)
        began_s = time.monotonic()
        await server.stop()
        assert 0.9 < time.monotonic() - began_s < 2.0
        assert not server.connections


async def test_requests_of_a_client_that_has_left_are_not_begun() -> None:
    """Their answers could not be written: no engine has to work for them."""
    seen: list[str] = []
    going_on = asyncio.Event()

    async def answer(request: Request) -> Response:
        seen.append(request.path)
        if request.path == "/slow":
            await going_on.wait()
        return Response(200, BODY)

    async with serving(answer) as server:
        sent = b"".join(b"GET /%b HTTP/1.1\r\n\r\n" % one for one in (b"first", b"slow", b"late"))
        async with connected(server, sent) as client:
            await until(lambda: len(seen) == 2)
            (one,) = server.connections
            client.shutdown(socket.SHUT_WR)
            await until(one.transport.is_closing)
            going_on.set()
            await until(lambda: not server.tasks)
            await asyncio.sleep(0.02)
            assert seen == ["/first", "/slow"]


async def test_connection_that_has_ended_is_gone_at_once() -> None:
    """With what had come on it; the collector seldom looks, and does not see how large it is."""

    async def read(request: Request) -> Response:
        return Response(200, await request.read(1 << 20))

    gc.disable()
    try:
        async with serving(read) as server:
            async with connected(server, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"):
                await until(lambda: server.tasks)
                gone = weakref.ref(next(iter(server.connections)))
            await until(lambda: not server.connections and not server.tasks)
            await until(lambda: gone() is None, 1.0)
    finally:
        gc.enable()
