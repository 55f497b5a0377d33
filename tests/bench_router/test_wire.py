"""The benchmark's HTTP reads whatever way the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.router.wire import BadMessage, ReplyReader, Request, RequestReader

REQUESTS = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n2;x=1\r\n\r\n\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\n\r\n"
)
CHUNKED_BODY = b"hello\r\nabcdefghijklmnopqrstuvwxyz"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Pieces of the data between the places."""
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(min_value=0), max_size=60))
def test_requests_come_whole_however_cut(places: list[int]) -> None:
    """Two requests on one connection come out in order with their bodies."""
    reader = RequestReader()
    found = [request for piece in cut(REQUESTS, places) for request in reader.feed(piece)]
    expected = [Request(b"POST", b"/a", b"hello", False), Request(b"GET", b"/b", b"", True)]
    assert found == expected


@given(st.lists(st.integers(min_value=0), max_size=60))
def test_a_chunked_reply_comes_whole_however_cut(places: list[int]) -> None:
    """Only the chunks' data comes out, and the end is seen with the last byte, not before."""
    reader = ReplyReader()
    body = b""
    for piece in cut(CHUNKED, places):
        assert not (reader.is_done and piece)
        body += reader.feed(piece)
    assert (reader.status, reader.is_done, body) == (200, True, CHUNKED_BODY)


@pytest.mark.parametrize("missing", range(1, 30))
def test_a_cut_off_reply_is_not_done(missing: int) -> None:
    """A stream that lacks its last bytes never counts as complete."""
    reader = ReplyReader()
    reader.feed(CHUNKED[:-missing])
    assert not reader.is_done


def test_a_reply_of_known_length_ends_there() -> None:
    """Content-Length is kept, and bytes beyond it are an error."""
    head = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\nConnection: close\r\n\r\n"
    reader = ReplyReader()
    assert reader.feed(head + b"ab") == b"ab"
    assert not reader.is_done
    assert reader.feed(b"c") == b"c"
    assert (reader.status, reader.is_done, reader.closes) == (404, True, True)
    with pytest.raises(BadMessage, match="1 bytes after"):
        ReplyReader().feed(head + b"abcd")
