"""Sequences of requests, valid and not, cut anywhere, held against what must come back."""

import asyncio
import gzip
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.router.exchange import Request, Response
from runtime.router.inbound import Inbound, Inbounds

_LIMIT_BYTES = 1000


@dataclass(frozen=True)
class Sent:
    """What a client sends, and what the answer to it must hold.

    Attributes:
        raw: as it goes over the wire.
        answer: body of the answer; None for a refusal.
        is_last: nothing behind it is answered.
    """

    raw: bytes
    answer: bytes | None
    is_last: bool = False


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written, self.is_reading, self.is_ended = bytearray(), True, False

    def is_closing(self) -> bool:
        return self.is_ended

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        assert not self.is_ended
        self.written += data

    def write_eof(self) -> None:
        self.is_ended = True

    abort = close = write_eof

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True


async def echo(request: Request) -> Response:
    """Tell what was read, sometimes later."""
    if request.path == "/late":
        await asyncio.sleep(0)
    body = await request.read(_LIMIT_BYTES)
    return Response(200, request.headers.get("X-Name", "").encode() + b"=" + body)


def head(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([line, *headers, b"", b""])


names = st.binary(max_size=20).map(lambda raw: raw.hex().encode())
bodies = st.binary(max_size=300)
blanks = st.text(" \t", max_size=3).map(str.encode)
spellings = st.sampled_from([b"X-Name", b"x-name", b"X-NAME"])
lines = st.sampled_from(
    [b"POST / HTTP/1.1", b"PUT /late HTTP/1.1", b"\r\n\r\nPOST http://h/ HTTP/1.1"]
)


@st.composite
def valid(draw: st.DrawFn) -> Sent:
    """A request of known length, in chunks, compressed, or without a body."""
    name, body, blank = draw(names), draw(bodies), draw(blanks)
    headers = [b"%b:%b%b%b" % (draw(spellings), blank, name, blank), b"X-Empty:"]
    answer = name + b"=" + body
    if draw(st.booleans()):
        body = gzip.compress(body)
        headers.append(b"Content-Encoding: GZip")
    if draw(st.booleans()):
        headers.append(b"Content-Length:%b%d%b" % (blank, len(body), blank))
        return Sent(head(draw(lines), *headers) + body, answer)
    size_bytes = draw(st.integers(1, 100))
    parts = [body[at : at + size_bytes] for at in range(0, len(body), size_bytes)]
    chunks = b"".join(b"%X;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
    trailer = draw(st.sampled_from([b"0\r\n\r\n", b"000;z\r\nX-Name: none\r\n\r\n"]))
    headers.append(b"Transfer-Encoding: chunked")
    return Sent(head(draw(lines), *headers) + chunks + trailer, answer)


closing = st.sampled_from(
    [
        Sent(head(b"GET / HTTP/1.1", b"Connection: close"), b"=", is_last=True),
        Sent(head(b"GET / HTTP/1.0"), b"=", is_last=True),
        Sent(
            head(
                *(b"POST / HTTP/1.1", b"Connection: Upgrade", b"Upgrade: h2c"),
                b"Content-Length: 3",
            )
            + b"abc",
            b"=abc",
            is_last=True,
        ),
    ]
)
invalid = st.sampled_from(
    [
        head(b"GET / HTTP/1.1", b"X Y: z"),
        head(b"GET / HTTP/1.1", b" X: z"),
        head(b"GET / HTTP/1.1", b"X: a\x00"),
        head(b"GET / HTTP/1.1", b"X: a\nY: b"),
        head(b"GET / HTTP/1.1", b"X: a\r Y: b"),
        head(b"GET / HTTP/1.1", b"X: a", b" folded"),
        head(b"GET / HTTP/9.9"),
        head(b"FETCH / HTTP/1.1"),
        head(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 3") + b"abc",
        head(b"POST / HTTP/1.1", b"Content-Length: +3") + b"abc",
        head(b"POST / HTTP/1.1", b"Content-Length: 3", b"Transfer-Encoding: chunked") + b"abc",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", b"Content-Length: 3") + b"abc",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: xchunked") + b"0\r\n\r\n",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding:", b"Content-Length: 3") + b"abc",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked") + b"1\nx\n0\n\n",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked") + b"1 \r\nx\r\n0\r\n\r\n",
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked") + b"0x1\r\nx\r\n0\r\n\r\n",
    ]
).map(lambda raw: Sent(raw, None, is_last=True))


def answers(written: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each reply."""
    found = []
    while written:
        told, _, written = written.partition(b"\r\n\r\n")
        status_line, *rest = told.decode().split("\r\n")
        size = next(int(line[16:]) for line in rest if line.startswith("Content-Length: "))
        found.append((int(status_line.split()[1]), written[:size]))
        written = written[size:]
    return found


async def play(sent: list[Sent], cuts: list[int]) -> tuple[list[tuple[int, bytes]], bool]:
    """What comes back, and whether the connection has ended then."""

    async def handle(request: Request) -> Response:
        try:
            return await echo(request)
        except Exception as refused:  # noqa: BLE001 - as the router's own edge does
            return Response(getattr(refused, "status", 500), b"")

    server, pipe = Inbounds(handle, client_timeout_s=5.0), Pipe()
    connection = Inbound(server)
    transport: Any = pipe
    connection.connection_made(transport)
    raw = b"".join(one.raw for one in sent)
    bounds = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    for begin, end in pairwise(bounds):
        while not pipe.is_reading:
            await asyncio.sleep(0)
        if not pipe.is_ended:
            connection.data_received(raw[begin:end])
        await asyncio.sleep(0)
    while server.tasks:
        await asyncio.gather(*server.tasks)
        await asyncio.sleep(0)
    assert pipe.is_reading
    is_ended = pipe.is_ended
    connection.connection_lost(None)
    return answers(bytes(pipe.written)), is_ended


@settings(max_examples=300, deadline=None)
@given(
    st.lists(valid(), max_size=12),
    st.none() | closing | invalid,
    st.lists(valid(), max_size=2),
    st.lists(st.integers(0, 1 << 20), max_size=12),
)
def test_each_valid_request_gets_its_answer_in_order(
    good: list[Sent], last: Sent | None, behind: list[Sent], cuts: list[int]
) -> None:
    """Up to the first that ends the connection; what stands behind that is not looked at."""
    sent = [*good, last, *behind] if last else good
    got, is_ended = asyncio.run(play(sent, cuts))
    wanted = [(200, one.answer) for one in good]
    if last is not None:
        wanted.append((200, last.answer) if last.answer is not None else (400, got[-1][1]))
    assert got == wanted
    assert is_ended == (last is not None)
