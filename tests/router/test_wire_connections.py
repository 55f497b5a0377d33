"""HTTP to engines: which connections are reused, and what is sent over them."""

import asyncio
import errno
import socket
from contextlib import ExitStack
from typing import NoReturn

import pytest

from runtime.router import wire
from runtime.router.connection import Broken
from runtime.router.wire import EngineClient, NotConnected, Origin, origin_of
from tests.router.fleet import HOST, until, unused_port
from tests.router.peer import TO_THE_END, Line, answering, connected, echo, ok


@pytest.fixture(autouse=True)
def _quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SWEEP_S", 0.01)


# Connections


async def test_connection_is_kept_for_the_next_request() -> None:
    """Two requests in turn cost one connection, and each gets its own reply."""
    async with connected(echo) as (ask, peer):
        assert [await ask.whole(b"1"), await ask.whole(b"2")] == [b"1", b"2"]
        assert peer.connections == 1
        assert ask.client.busy_count == 0


async def test_connection_closed_while_idle_is_not_reused() -> None:
    """An engine that closes an idle connection costs no request."""
    has_read = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await line.send(ok(b"x"))
        await has_read.wait()

    async with connected(script) as (ask, peer):
        assert await ask.whole() == b"x"
        has_read.set()
        await until(lambda: peer.closed == 1)
        assert await ask.whole() == b"x"
        assert peer.connections == 2


async def test_long_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is kept until the engine's own limit: the client ends it before."""
    monkeypatch.setattr(wire, "_IDLE_S", 0.0)
    async with connected(echo) as (ask, peer):
        await ask.whole()
        await until(lambda: peer.closed == 1)
        await ask.whole()
        assert peer.connections == 2


async def test_connection_is_not_kept_against_the_engines_word() -> None:
    """After `Connection: close` the next request opens another connection."""
    script = answering(ok(b"x", b"Connection: close"), stays=True)
    async with connected(script) as (ask, peer):
        assert await ask.whole() == b"x"
        assert await ask.whole() == b"x"
        assert peer.connections == 2


async def test_headers_outlive_the_reply() -> None:
    """A reply's headers stay its own when its connection serves the next request."""

    async def script(line: Line) -> None:
        for word in (b"one", b"two"):
            await line.request()
            await line.send(ok(b"", b"Retry-After: " + word))

    async with connected(script) as (ask, _):
        first = await ask.head()
        await first.read()
        second = await ask.head()
        assert (first.header("retry-after"), second.header("retry-after")) == ("one", "two")


@pytest.mark.parametrize("size_bytes", [10, (1 << 20) + 1])
async def test_reply_closed_unread_leaves_a_clean_connection(size_bytes: int) -> None:
    """Whatever stood unread, the next request gets its own reply and nothing else."""

    async def script(line: Line) -> None:
        await line.request()
        await line.send(ok(b"a" * size_bytes))
        await echo(line)

    async with connected(script) as (ask, _):
        unread = await ask.head()
        await until(lambda: unread.is_complete)
        unread.close()
        assert await ask.whole(b"mine") == b"mine"


async def test_second_reply_to_one_request_is_not_served() -> None:
    """Bytes after a reply's end reach nobody, and their connection is not used again."""
    script = answering(ok(b"first") + ok(b"of another"), stays=True)
    async with connected(script) as (ask, peer):
        assert await ask.whole() == b"first"
        assert await ask.whole() == b"first"
        assert peer.connections == 2


async def test_cancelled_request_closes_its_connection() -> None:
    """A client that leaves ends the engine's request."""
    async with connected(answering(b"", stays=True), timeout_s=30) as (ask, peer):
        task = asyncio.create_task(ask.head())
        await until(lambda: peer.heads)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: peer.closed == 1)
        assert ask.client.busy_count == 0


async def test_reply_closed_early_closes_its_connection() -> None:
    """A stream that nobody reads any more ends on the engine, too."""
    async with connected(answering(TO_THE_END + b"data: 1\n\n", stays=True)) as (ask, peer):
        reply = await ask.head()
        assert await reply.chunk() == b"data: 1\n\n"
        reply.close()
        await until(lambda: peer.closed == 1)


# Not connected


async def test_refused_port_is_not_connected() -> None:
    """Where nothing listens nothing was sent, and on_write is not called."""
    client, written = EngineClient(1.0), []
    url = f"http://{HOST}:{unused_port()}"
    with pytest.raises(NotConnected):
        await client.send("GET", url, "/", timeout_s=1, on_write=lambda: written.append(1))
    assert not written
    await client.close()


async def test_connect_timeout_is_not_connected() -> None:
    """A host that does not answer costs the connect timeout and no more."""
    client = EngineClient(0.05)
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(4):  # fill the queue of a server that accepts nobody
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(NotConnected, match=r"0\.05 s"):
            await client.send("GET", f"http://{HOST}:{full.getsockname()[1]}", "/", timeout_s=1)
    await client.close()


@pytest.mark.parametrize("url", ["http://host:99999", "http://[::1", "http://a..b:80"])
async def test_unusable_address_is_not_connected(url: str) -> None:
    """A configured address that cannot be one is a node that cannot be reached, no crash."""
    client = EngineClient(1.0)
    with pytest.raises(NotConnected):
        await client.send("GET", url, "/", timeout_s=1)
    await client.close()


@pytest.mark.parametrize(
    ("url", "origin", "header"),
    [
        ("http://10.0.0.1:8000", Origin("10.0.0.1", 8000, False), "10.0.0.1:8000"),
        ("http://[::1]:8000/", Origin("::1", 8000, False), "[::1]:8000"),
        ("https://engine.internal", Origin("engine.internal", 443, True), "engine.internal:443"),
        ("http://engine", Origin("engine", 80, False), "engine:80"),
    ],
)
def test_origin_of_url(url: str, origin: Origin, header: str) -> None:
    """Host, port and TLS come from the URL; an IPv6 host stands in brackets."""
    assert origin_of(url) == origin
    assert origin.header == header


# The request


async def test_request_on_the_wire() -> None:
    """Host, the caller's headers, and the body's length and type; on_write is called once."""
    calls: list[int] = []
    async with connected(echo) as (ask, peer):

        def on_write() -> None:
            calls.append(len(peer.heads))

        reply = await ask.client.send(
            "POST",
            peer.url,
            "/v1/x",
            headers={"X-Request-Id": "7"},
            body=b"{}",
            timeout_s=1,
            on_write=on_write,
        )
        assert await reply.read() == b"{}"
        host = peer.url.removeprefix("http://").encode()
        assert peer.heads[0].split(b"\r\n")[:-2] == [
            b"POST /v1/x HTTP/1.1",
            b"Host: " + host,
            b"X-Request-Id: 7",
            b"Content-Type: application/json",
            b"Content-Length: 2",
        ]
    assert calls == [0]  # before the engine could see anything


async def test_closing_the_client_ends_requests() -> None:
    """A router that stops leaves no request waiting."""
    async with connected(answering(b"", stays=True), timeout_s=30) as (ask, peer):
        task = asyncio.create_task(ask.head())
        await until(lambda: peer.heads)
        await ask.client.close()
        with pytest.raises(Broken, match="stops"):
            await task


async def test_no_file_is_left_for_the_timer_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node counts as not reached, nothing is left behind, and the next try finds it."""
    tasks = len(asyncio.all_tasks())
    async with connected(answering(ok(b"x"), stays=True)) as (ask, _):
        with monkeypatch.context() as patch:
            patch.setattr(wire, "Ticks", _no_more_files)
            for _ in range(3):
                with pytest.raises(NotConnected, match="Too many open files"):
                    await ask.head()
        assert await ask.whole() == b"x"
    assert len(asyncio.all_tasks()) == tasks


def _no_more_files(_after_s: float) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")
