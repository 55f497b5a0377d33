"""As much HTTP/1.1 as the benchmark's own mock and client need. Pure."""

import re
from typing import NamedTuple

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)


class BadMessage(ValueError):
    """The other side sent what this module cannot read."""


class Request(NamedTuple):
    """A request as far as the mock looks at it."""

    method: bytes
    path: bytes
    body: bytes
    closes: bool


class RequestReader:
    """Cuts the bytes of one connection into requests; bodies need a Content-Length."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: tuple[bytes, bytes, bool] | None = None
        self._need = 0

    def feed(self, data: bytes) -> list[Request]:
        """Take the next bytes; returns the requests that they complete."""
        self._buffer += data
        found: list[Request] = []
        while self._head is not None or self._read_head():
            if len(self._buffer) < self._need:
                break
            assert self._head is not None  # noqa: S101 - for the type checker
            method, path, closes = self._head
            found.append(Request(method, path, bytes(self._buffer[: self._need]), closes))
            del self._buffer[: self._need]
            self._head = None
        return found

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        if _CHUNKED.search(head):
            raise BadMessage("a chunked request body")
        method, path, _ = head.split(b" ", 2)
        length = _LENGTH.search(head)
        self._need = int(length[1]) if length else 0
        self._head = (method, path, _CLOSE.search(head) is not None)
        return True


class ReplyReader:
    """Reads one reply.

    Attributes:
        status: HTTP status; 0 until the head has come.
        is_done: the whole body has come.
        closes: the server ends the connection after it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.is_done = False
        self.closes = False
        self._held = b""
        self._is_chunked = False
        # Bytes to come: of the body, or of the open chunk with its line end.
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns the body bytes among them."""
        if self._held:
            data, self._held = self._held + data, b""
        if not self.status:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                return b""
            self._read_head(data[:end])
            data = data[end + 4 :]
        if self._is_chunked:
            return self._dechunk(data)
        self._left -= len(data)
        if self._left < 0:
            raise BadMessage(f"{-self._left} bytes after the body")
        self.is_done = self._left == 0
        return data

    def _read_head(self, head: bytes) -> None:
        self.status = int(head[9:12])
        self.closes = _CLOSE.search(head) is not None
        self._is_chunked = _CHUNKED.search(head) is not None
        length = _LENGTH.search(head)
        if length is None and not self._is_chunked:
            raise BadMessage("a reply without a length")
        self._left = int(length[1]) if length and not self._is_chunked else 0

    def _dechunk(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                ending = 2 - self._left  # bytes of the chunk's line end in this piece
                parts.append(piece[:-ending] if 0 < ending <= len(piece) else piece)
                if ending > len(piece):  # the line end came alone, cut in two
                    parts.pop()
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._held = data[at:]
                break
            length = int(data[at:end].split(b";", 1)[0], 16)
            if length == 0:
                self._end(data[at:], end - at)
                break
            self._left, at = length + 2, end + 2
        return b"".join(parts)

    def _end(self, data: bytes, line_end: int) -> None:
        """Take the last chunk, whose line ends at `line_end`, and the blank line after it."""
        if len(data) < line_end + 4:
            self._held = data
        elif data[line_end + 2 :] == b"\r\n":
            self.is_done = True
        else:
            raise BadMessage("bytes after the last chunk")
