"""HTTP to engines: what comes back, and how it breaks."""

import asyncio
import time

import pytest

from runtime.router import wire
from runtime.router.connection import Broken
from tests.router.fleet import until
from tests.router.peer import TO_THE_END, Line, answering, chunked, connected, echo, ok

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_SWEEP_S", 0.01)


@pytest.mark.parametrize(
    "raw",
    [
        ok(b"hello, world"),
        chunked(b"hello", b", wor", b"ld"),
        TO_THE_END + b"hello, world",
        b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"hello, world"),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + chunked(b"hello, world"),
    ],
    ids=["length", "chunked", "until close", "after 100", "after 103"],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_reply_does_not_depend_on_where_it_is_cut(raw: bytes, step: int) -> None:
    """Cut at every byte or whole: the same status and body."""

    async def script(line: Line) -> None:
        await line.request()
        for at in range(0, len(raw), step):
            await line.send(raw[at : at + step])
            await asyncio.sleep(0)  # the client reads in between

    async with connected(script) as (ask, _):
        reply = await ask.head()
        assert (reply.status, await reply.read()) == (200, b"hello, world")


@pytest.mark.parametrize(
    ("raw", "is_silent", "problem"),
    [
        (b"", True, "closed"),
        (b"HTTP/1.1 200", False, "closed"),
        (b"\x16\x03\x01 no HTTP at all\r\n\r\n", False, "not HTTP"),
        (
            b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            False,
            "not HTTP",
        ),
    ],
    ids=["closed", "half a head", "nonsense", "another protocol"],
)
async def test_reply_without_a_head_is_broken(raw: bytes, is_silent: bool, problem: str) -> None:
    """The error tells what was seen, and whether a single byte of a reply had come."""
    async with connected(answering(raw)) as (ask, _):
        with pytest.raises(Broken, match=problem) as told:
            await ask.head()
        assert told.value.is_silent is is_silent
        assert ask.client.busy_count == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        chunked(b"hello")[:-5],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    ],
    ids=["length", "chunked", "no chunk"],
)
async def test_body_cut_short_is_broken(raw: bytes) -> None:
    """A body that ends before its time is never taken for a whole one."""
    async with connected(answering(raw)) as (ask, _):
        reply = await ask.head()
        with pytest.raises(Broken) as told:
            await reply.read()
        assert not told.value.is_silent


async def test_silence_before_the_head_is_broken() -> None:
    """An engine that says nothing past the deadline may be at work: it is not asked again."""
    async with connected(answering(b"", stays=True), timeout_s=0.05) as (ask, peer):
        with pytest.raises(Broken, match="in time") as told:
            await ask.head()
        assert not told.value.is_silent
        await until(lambda: peer.closed == 1)


@pytest.mark.parametrize(
    "head", [TO_THE_END, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"], ids=["end", "length"]
)
async def test_silence_within_the_body_is_broken(head: bytes) -> None:
    """What had come is given out; silence past the deadline is then no end of the body."""
    async with connected(answering(head + b"part", stays=True), timeout_s=30) as (ask, _):
        reply = await ask.head()
        assert await reply.chunk() == b"part"
        reply.give_until(0.02)
        with pytest.raises(Broken, match="in time"):
            await reply.chunk()


async def test_cancelled_read_can_be_done_again() -> None:
    """A read that is cancelled halfway loses no byte of the body."""
    go_on = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await line.send(ok(b"first second")[:-6])
        await go_on.wait()
        await line.send(b"second")

    async with connected(script) as (ask, _):
        reply = await ask.head()
        reading = asyncio.create_task(reply.read())
        await until(lambda: reply._parts)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        go_on.set()
        assert await reply.read() == b"first second"


async def test_slow_reader_holds_the_engine_back() -> None:
    """What nobody reads is not buffered without bound, and all of it comes in the end."""
    total, piece = 128 * MIB, b"x" * MIB

    async def script(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        for _ in range(total // len(piece)):
            await line.send(piece)

    async with connected(script) as (ask, peer):
        reply = await ask.head()
        before = -1
        while peer.sent_bytes != before:
            before = peer.sent_bytes
            await asyncio.sleep(0.05)
        assert before < 64 * MIB  # the kernel's buffers, and one MiB of ours
        count = 0
        while data := await reply.chunk():
            count += len(data)
        assert count == total


@pytest.mark.parametrize("held_s", [0.0001, 0.1])
async def test_hold_ends_by_itself(held_s: float) -> None:
    """A held reply goes on after the time, be it below what the loop's own timers count."""
    is_held = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await line.send(TO_THE_END + b"0")
        await is_held.wait()
        await line.send(b"1")
        await line.until_gone()

    async with connected(script) as (ask, _):
        reply = await ask.head()
        assert await reply.chunk() == b"0"
        began_s = time.monotonic()
        reply.hold(held_s)
        is_held.set()
        assert await reply.chunk() == b"1"
        assert time.monotonic() - began_s >= held_s * 0.9
        reply.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 32 * 1024 - 1, 32 * 1024, MIB])
async def test_body_of_any_size_arrives_as_it_is(size_bytes: int) -> None:
    """A large body is not copied behind its head, and comes behind it all the same."""
    body = bytes(range(256)) * (size_bytes // 256) + b"x" * (size_bytes % 256)
    async with connected(echo) as (ask, _):
        assert await ask.whole(body) == body
        assert await ask.whole(body) == body  # on the same connection


async def test_held_reply_comes_in_fewer_pieces() -> None:
    """While a reply is held nothing is read; afterwards all that came is given at once."""
    is_held = asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        await line.send(TO_THE_END + b"0")
        await is_held.wait()
        for digit in b"123":
            await line.send(b"%c" % digit)
            await asyncio.sleep(0.005)

    async with connected(script) as (ask, _):
        reply = await ask.head()
        assert await reply.chunk() == b"0"
        reply.hold(0.1)
        is_held.set()
        assert await reply.chunk() == b"123"
        assert await reply.chunk() == b""
