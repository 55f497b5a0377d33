"""What comes from clients is HTTP in any shape, or is refused; others are unharmed."""

import asyncio
import contextlib
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.router import exchange, inbound
from runtime.router.exchange import Request, Response, head_of
from runtime.router.inbound import Inbound, Inbounds
from tests.router.fleet import HI, HOST, Fleet, running_fleet, until

BODY = json.dumps(HI).encode()
STREAM = json.dumps(HI | {"stream": True}).encode()
HEALTH = b"GET /health HTTP/1.1\r\n\r\n"


def post(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    """A chat request; its length stands in its head unless the headers say how it comes."""
    length = () if any(b"Transfer" in one for one in headers) else (b"Content-Length: %d",)
    lines = [b"POST /v1/chat/completions HTTP/" + version, *headers]
    lines += [line % len(body) for line in length]
    return b"\r\n".join([*lines, b"", body])


def chunked(body: bytes, size_bytes: int = 7) -> bytes:
    """A body in chunks."""
    parts = [body[at : at + size_bytes] for at in range(0, len(body), size_bytes)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


class Raw:
    """A connection to the router, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by lower-case name, and the body that they announce."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        size_bytes = int(headers.get("content-length", 0))
        return int(status_line.split()[1]), headers, await self.reader.readexactly(size_bytes)

    async def is_closed(self) -> bool:
        """Whether the router sends nothing more."""
        return await self.reader.read() == b""


@asynccontextmanager
async def raw(fleet: Fleet) -> AsyncIterator[Raw]:
    """Connect; everything must end within some seconds."""
    port = int(fleet.url.rsplit(":", 1)[1])
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            yield Raw(reader, writer)
        finally:
            writer.close()


def inbounds(fleet: Fleet) -> list[Inbound]:
    """The router's connections, as far as something is being served on them."""
    handle = fleet.router.handle
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    serving = [one for one in coroutines if one.__qualname__ == "Inbound._serve"]
    found: list[Inbound] = [one.cr_frame.f_locals["self"] for one in serving]
    return [one for one in found if one._server.handle == handle]


async def test_requests_sent_at_once_are_answered_in_order(model: Path) -> None:
    """A slow one first, an unknown path, a stream, more than are taken at once."""
    async with running_fleet(model, engine={"token_ms": 5.0}) as fleet, raw(fleet) as client:
        nowhere = b"GET /nowhere HTTP/1.1\r\n\r\n"
        client.writer.write(post(BODY) + nowhere + HEALTH * 8 + post(STREAM))
        statuses = [(await client.reply())[0] for _ in range(10)]
        assert statuses == [200, 404, *[200] * 8]
        status, headers, _ = await client.reply()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        assert b"[DONE]" in await client.reader.readuntil(b"\r\n0\r\n\r\n")


async def test_request_may_come_byte_by_byte(model: Path) -> None:
    """Wherever it is split: request line, headers, chunks."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        sent = post(
            chunked(BODY), b"Host: x", b"X-Conversation-ID: a", b"Transfer-Encoding: chunked"
        )
        for at in range(len(sent)):
            client.writer.write(sent[at : at + 1])
            await asyncio.sleep(0)
        assert (await client.reply())[0] == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-gzip", "identity", "GZIP"])
async def test_compressed_bodies_are_unpacked(model: Path, coding: str) -> None:
    """As the header names it."""
    packed = {"deflate": zlib.compress(BODY), "identity": BODY}
    body = packed.get(coding, gzip.compress(BODY))
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(post(body, b"Content-Encoding: " + coding.encode()))
        assert (await client.reply())[0] == 200


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", b"\x0b\x02\x80{}\x03", 400),
        ("gzip", BODY, 400),
        ("gzip", gzip.compress(BODY)[:-9], 400),
        ("gzip", gzip.compress(BODY) + gzip.compress(BODY), 400),
        ("gzip", gzip.compress(b" " * 5_000_000), 413),
        ("deflate", zlib.compress(b" " * 5_000_000), 413),
    ],
    ids=["unknown", "not packed", "cut off", "two", "bomb", "deflate bomb"],
)
async def test_bodies_that_cannot_be_unpacked_are_refused(
    model: Path, coding: str, body: bytes, status: int
) -> None:
    """And what unpacks to more than the limit is not unpacked any further."""
    async with running_fleet(model, max_body_bytes=1_000_000) as fleet, raw(fleet) as client:
        client.writer.write(post(body, b"Content-Encoding: " + coding.encode()) + HEALTH)
        got, _, told = await client.reply()
        assert (got, json.loads(told)["error"]["code"]) == (status, status)
        assert (await client.reply())[0] == 200


def test_compressed_bodies_are_unpacked_as_far_as_they_may_be() -> None:
    """A megabyte must not become a gigabyte before it is refused."""
    packed = gzip.compress(b" " * 50_000_000)
    assert len(exchange.unpacked(packed, "gzip", 1000)) == 1001


async def test_chunks_over_the_limit_are_refused_before_their_end(model: Path) -> None:
    """A body of no known length is gathered up to the limit."""
    async with running_fleet(model, max_body_bytes=100_000) as fleet, raw(fleet) as client:
        endless = chunked(b" " * 300_000, 10_000).removesuffix(b"0\r\n\r\n")
        client.writer.write(post(endless, b"Transfer-Encoding: chunked"))
        assert (await client.reply())[0] == 413


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/3.7\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX : y\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        post(BODY, b"Content-Length: 3"),
        post(chunked(BODY), b"Content-Length: 3", b"Transfer-Encoding: chunked"),
        post(b"zz\r\n{}\r\n0\r\n\r\n", b"Transfer-Encoding: chunked"),
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: %b\r\n\r\n" % (b"x" * 70_000),
        b"GET /%b HTTP/1.1\r\n\r\n" % (b"x" * 70_000),
        b"GET /health HTTP/1.1\r\n" + b"X: 1234567890\r\n" * 6000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 200_000,
    ],
    ids=[
        *("tls", "version", "no version", "space", "nul", "two lengths", "length and chunks"),
        *("no chunk", "negative", "no number", "long header", "long path", "many", "endless"),
    ],
)
async def test_what_is_no_http_is_refused(model: Path, sent: bytes) -> None:
    """Once, in OpenAI's shape; what follows on that connection is not looked at."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(sent + HEALTH)
        status, headers, told = await client.reply()
        assert status == 400
        assert json.loads(told)["error"]["type"] == "invalid_request_error"
        assert headers["connection"] == "close"
        assert await client.is_closed()
        assert not fleet.decodes[0].requests
        assert (await fleet.post(HI)).status == 200


@pytest.mark.parametrize("begun", [b"GET /health HTTP/1.1\r\nX: ", b"GET /", b""])
async def test_head_without_an_end_is_refused(model: Path, begun: bytes) -> None:
    """It is not gathered for as long as a client likes to send it."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(begun + (b"x" if begun else b"\r\n") * 200_000)
        assert (await client.reply())[0] == 400
        assert await client.is_closed()


@pytest.mark.parametrize("begun", [b"0\r\nX: ", b"0\r\n", b"1;x="], ids=["line", "lines", "size"])
@pytest.mark.parametrize("piece_bytes", [1_000, 200_000])
async def test_what_stands_beside_chunks_is_not_gathered_without_end(
    model: Path, begun: bytes, piece_bytes: int
) -> None:
    """It counts as headers do, however it comes."""
    endless = b"X: y\r\n" * 40_000 if begun == b"0\r\n" else b"x" * 200_000
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(post(begun, b"Transfer-Encoding: chunked"))
        for at in range(0, len(endless), piece_bytes):
            client.writer.write(endless[at : at + piece_bytes])
            await client.writer.drain()
        status, _, told = await client.reply()
        assert status == 400
        assert "of headers" in json.loads(told)["error"]["got"]
        assert await client.is_closed()


def test_chunks_may_be_many_and_small() -> None:
    """They are put together as they come: a byte each must not cost fifty, nor be counted anew."""
    nobody: Any = None  # more is not asked for
    request = Request(
        nobody,
        method="POST",
        target="/",
        headers=exchange.Headers({}),
        is_http_11=True,
        keep_alive=True,
    )
    for number in range(1000):
        request.add(b"%03d" % number)
    assert request.come_bytes == 3000
    assert len(request._parts) < 100
    assert request.body(3000) == b"".join(b"%03d" % number for number in range(1000))


async def test_refusal_waits_for_the_answer_before_it(model: Path) -> None:
    """Nonsense behind a good request does not spoil that one's answer."""
    async with running_fleet(model, engine={"token_ms": 20.0}) as fleet, raw(fleet) as client:
        client.writer.write(post(BODY) + b"nonsense\r\n\r\n")
        assert (await client.reply())[0] == 200
        assert (await client.reply())[0] == 400
        assert await client.is_closed()


async def test_head_is_answered_without_a_body(model: Path) -> None:
    """Or the next reply on the connection would be read from its middle."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(b"HEAD /health HTTP/1.1\r\n\r\n")
        told = await client.reader.readuntil(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 405 ")
        client.writer.write(HEALTH)
        assert (await client.reply())[0] == 200


async def test_upgrade_is_not_followed(model: Path) -> None:
    """curl --http2 asks for it: it is answered as it is, and the connection ends."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"
    async with running_fleet(model) as fleet:
        async with raw(fleet) as client:
            head = b"\r\n".join([b"GET /health HTTP/1.1", *upgrade, b"", b""])
            client.writer.write(head + b"PRI * HTTP/2.0")
            status, headers, _ = await client.reply()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.is_closed()
        for cut in (1, len(BODY), len(BODY) + 20):  # the body comes with its head, or later
            async with raw(fleet) as client:
                sent = post(BODY, *upgrade)
                client.writer.write(sent[:-cut])
                await asyncio.sleep(0.05)
                client.writer.write(sent[-cut:])
                assert (await client.reply())[0] == 200
                assert await client.is_closed()
        async with raw(fleet) as client:
            client.writer.write(post(chunked(BODY), *upgrade, b"Transfer-Encoding: chunked"))
            status, _, told = await client.reply()
            assert status == 400
            assert "upgrade" in json.loads(told)["error"]["got"]


async def test_requests_before_one_to_upgrade_are_answered(model: Path) -> None:
    """It is the last of its connection, and not they."""
    upgrade = post(BODY, b"Connection: Upgrade", b"Upgrade: h2c")
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(HEALTH * 3 + upgrade + HEALTH)
        told = [await client.reply() for _ in range(4)]
        assert [status for status, _, _ in told] == [200] * 4
        assert ["connection" in headers for _, headers, _ in told] == [False, False, False, True]
        assert await client.is_closed()


async def test_head_may_be_long_and_come_in_pieces(model: Path) -> None:
    """Its limit counts its own bytes, and not those of the body before it."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        large = json.dumps(HI | {"messages": [{"role": "user", "content": "a " * 50_000}]}).encode()
        long_head = post(BODY, b"X-Long: " + b"x" * 60_000)
        sent = post(large) + long_head
        at = len(sent) - len(long_head) + 20
        client.writer.write(sent[:at])
        await asyncio.sleep(0.1)
        for start in range(at, len(sent), 9_000):
            client.writer.write(sent[start : start + 9_000])
            await asyncio.sleep(0.01)
        assert [(await client.reply())[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/health?x=/v1/models#y", 200),
        ("http://router:8000/health", 200),
        ("http://router:8000", 404),
        ("/he%61lth", 200),
        ("*", 404),
        ("/\xff", 400),
    ],
)
async def test_targets(model: Path, target: str, status: int) -> None:
    """The path counts, whatever stands around it."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(b"GET %b HTTP/1.1\r\n\r\n" % target.encode("latin-1"))
        assert (await client.reply())[0] == status


async def test_http_1_0_stays_when_it_asks_to(model: Path) -> None:
    """A whole reply says so; without being asked, the connection ends."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(post(BODY, b"Connection: keep-alive", version=b"1.0"))
        status, headers, _ = await client.reply()
        assert (status, headers["connection"]) == (200, "keep-alive")
        client.writer.write(post(BODY, version=b"1.0"))
        status, headers, _ = await client.reply()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.is_closed()


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_client_that_asks_is_told_to_go_on(model: Path, version: bytes) -> None:
    """Before it sends its body; 1.0 does not know of it, whatever the client asks for."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        sent = post(BODY, b"Expect: 100-continue", version=version)
        client.writer.write(sent[:-1])
        if version == b"1.1":
            told = await client.reader.readuntil(b"\r\n\r\n")
            assert told == b"HTTP/1.1 100 Continue\r\n\r\n"
        await until(lambda: inbounds(fleet))
        client.writer.write(sent[-1:])
        assert (await client.reply())[0] == 200


async def test_space_around_a_value_is_none_of_it(model: Path) -> None:
    """An API key in X-Api-Key is the same with a blank behind it."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(b"GET /health HTTP/1.1\r\nX-Request-ID: \t mine\t \r\n\r\n")
        _, headers, _ = await client.reply()
        assert headers["x-request-id"] == "mine"


async def test_first_of_two_headers_counts(model: Path) -> None:
    """And what follows the chunks of a body is none."""
    async with running_fleet(model) as fleet, raw(fleet) as client:
        names = b"x-request-id: first", b"X-Request-ID: second"
        client.writer.write(post(BODY, *names))
        status, headers, _ = await client.reply()
        assert (status, headers["x-request-id"]) == (200, "first")
        trailer = chunked(BODY).removesuffix(b"\r\n") + b"X-Request-ID: third\r\n\r\n"
        sent = post(trailer, b"Transfer-Encoding: chunked")
        client.writer.write(sent[:60])  # the trailer comes while the request waits for it
        await asyncio.sleep(0.05)
        client.writer.write(sent[60:])
        status, headers, _ = await client.reply()
        assert (status, headers["x-request-id"] != "third") == (200, True)


async def test_refused_client_that_still_sends_gets_to_read_why(model: Path) -> None:
    """Megabytes that nobody wants are read and dropped; a reset would take the answer away."""
    async with running_fleet(model, max_body_bytes=1024) as fleet, raw(fleet) as client:
        client.writer.write(post(b" " * 8_000_000))
        await client.writer.drain()
        status, headers, told = await client.reply()
        assert (status, headers["connection"]) == (413, "close")
        assert json.loads(told)["error"]["code"] == 413
        assert await client.is_closed()


async def test_what_follows_the_last_answer_is_dropped(model: Path) -> None:
    """Also where it had been held back: the answer is not lost to a reset."""
    async with running_fleet(model, engine={"token_ms": 100.0}) as fleet, raw(fleet) as client:
        client.writer.write(post(BODY) + post(b" " * 30_000_000))  # more than sockets hold
        await until(lambda: inbounds(fleet) and inbounds(fleet)[0]._is_paused)
        (busy,) = inbounds(fleet)
        busy.stop()
        status, headers, _ = await client.reply()
        assert (status, headers["connection"]) == (200, "close")
        await client.writer.drain()
        assert await client.is_closed()


async def test_client_that_never_stops_sending_is_cut_off(model: Path) -> None:
    """It has a second after its answer."""
    async with running_fleet(model, max_body_bytes=1024) as fleet, raw(fleet) as client:
        client.writer.write(post(b" " * 2000)[:-1])
        assert (await client.reply())[0] == 413
        began_s = time.monotonic()
        while not client.writer.transport.is_closing():
            client.writer.write(b" ")
            await asyncio.sleep(0.05)
        assert 0.9 < time.monotonic() - began_s < 4


async def test_body_behind_a_running_request_is_not_heaped_up(model: Path) -> None:
    """It is read when its turn comes, and not before."""
    async with running_fleet(model, engine={"token_ms": 100.0}) as fleet, raw(fleet) as client:
        large = json.dumps(HI | {"messages": [{"role": "user", "content": "a " * 2_000_000}]})
        client.writer.write(post(BODY) + post(large.encode()) + HEALTH)
        await until(lambda: inbounds(fleet))
        await asyncio.sleep(0.05)
        (busy,) = inbounds(fleet)
        assert busy._coming is not None
        assert 0 < busy._coming.come_bytes < 1_000_000
        assert (await client.reply())[0] == 200
        assert (await client.reply())[0] == 200
        assert (await client.reply())[0] == 200


async def test_requests_are_not_heaped_up(model: Path) -> None:
    """Small ones come by the ten thousand in one read; those of the next reads must wait."""
    async with running_fleet(model, engine={"token_ms": 20.0}) as fleet, raw(fleet) as client:
        client.writer.write(post(BODY) + HEALTH * 60_000)
        await until(lambda: inbounds(fleet))
        (busy,) = inbounds(fleet)
        for _ in range(5_000):
            assert (await client.reply())[0] == 200
            assert len(busy._waiting) < 2_000
            assert len(busy._unread) < 1_000_000
        assert len(busy._waiting) > 0


async def test_client_that_reads_no_whole_reply_is_cut_off(model: Path) -> None:
    """What waits for it is bounded in size and in time."""
    async with running_fleet(model, client_timeout_s=0.3) as fleet, raw(fleet) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # TCP's has it
        for _ in range(4000):
            client.writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until(lambda: inbounds(fleet))
        (stuck,) = inbounds(fleet)
        assert stuck.transport.get_write_buffer_size() < 1_000_000
        await until(lambda: stuck.transport.is_closing())
        await until(lambda: not inbounds(fleet))


async def test_client_that_leaves_a_silent_stream_ends_it(model: Path) -> None:
    """Nothing has to come from the engine before that is noticed."""
    async with running_fleet(model, engine={"token_ms": 5000.0}) as fleet:
        async with raw(fleet) as client:
            client.writer.write(post(STREAM))
            assert (await client.reply())[0] == 200
        await until(lambda: not fleet.turns.admission.running, 2.0)


async def test_client_that_leaves_in_its_body_ends_its_request(model: Path) -> None:
    """Nothing waits for the rest."""
    async with running_fleet(model) as fleet:
        async with raw(fleet) as client:
            client.writer.write(post(BODY)[:-1])
            await until(lambda: inbounds(fleet))
        await until(lambda: not inbounds(fleet))
        assert (await fleet.post(HI)).status == 200


async def test_answer_that_cannot_be_written_is_told_in_the_log(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection ends; the next one is served."""
    async with running_fleet(model) as fleet:
        monkeypatch.setattr(
            Response, "of_json", lambda *_args, **_more: Response(200, b"", {"X": "\n"})
        )
        async with raw(fleet) as client:
            client.writer.write(HEALTH)
            with contextlib.suppress(ConnectionResetError):
                assert await client.is_closed()
        monkeypatch.undo()
        assert "an answer could not be written" in caplog.text
        assert (await fleet.post(HI)).status == 200


async def test_stop_lets_requests_end_and_closes_idle_connections() -> None:
    """An idle client learns of it at once, a running request gets its answer, a late one not."""
    going_on = asyncio.Event()

    async def answer(request: Request) -> Response:
        await (going_on.wait() if request.path == "/slow" else asyncio.sleep(60))
        return Response(200, b"done")

    server = Inbounds(answer, client_timeout_s=60.0)
    port = await server.start(HOST, 0, None)
    idle, slow, late = [Raw(*await asyncio.open_connection(HOST, port)) for _ in range(3)]
    slow.writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
    late.writer.write(b"GET /late HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(5):
        await until(lambda: len(server.tasks) == 2)
        stopping = asyncio.create_task(server.stop())
        assert await idle.is_closed()
        going_on.set()
        status, headers, told = await slow.reply()
        assert (status, headers["connection"], told) == (200, "close", b"done")
        with contextlib.suppress(ConnectionResetError):
            assert await late.is_closed()
        await stopping
        with pytest.raises(OSError, match="refused"):
            await asyncio.open_connection(HOST, port)
    for client in (idle, slow, late):
        client.writer.close()
    await asyncio.sleep(0.05)  # the loop closes them


async def test_idle_connection_is_closed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its answer it waits for a next request, and not for ever."""
    monkeypatch.setattr(inbound, "_IDLE_S", 0.2)
    async with running_fleet(model) as fleet, raw(fleet) as client:
        client.writer.write(HEALTH)
        assert (await client.reply())[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert await client.is_closed()


def test_head_of_a_status_without_a_name() -> None:
    """An engine may answer with any."""
    head = head_of(299, {}, is_http_11=False, stays=True)
    assert head.startswith(b"HTTP/1.0 299 \r\nDate: ")
    assert head.endswith(b"\r\nConnection: keep-alive\r\n\r\n")
