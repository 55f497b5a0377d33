"""A client's request, and what answers it."""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

import orjson

from runtime.router.failure import JSON_TYPE, RequestFailed, bad_request

_MOST_PARTS = 64
_ANY_ZLIB = 32 + zlib.MAX_WBITS
_CODINGS = {"gzip": _ANY_ZLIB, "x-gzip": _ANY_ZLIB, "deflate": _ANY_ZLIB}


class Headers(Mapping[str, str]):
    """Header values by name in any case; of one that comes twice, the first.

    Args:
        values: by lower-case name.
    """

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def get(self, name: str, default: Any = None) -> Any:
        """A header's value."""
        return self._values.get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class ClientSide(Protocol):
    """The connection that a request came on."""

    transport: asyncio.Transport

    async def drain(self) -> None:
        """Wait while much is unread; ConnectionResetError: the client has left."""

    def wants_body(self) -> None:
        """Somebody waits for the rest of a body."""


class Request:
    """One request; its body may still be coming.

    Args:
        client: its connection.
        method: HTTP method.
        target: as it stands in the request line.
        headers: all of them.
        is_http_11: HTTP/1.1, not 1.0.
        keep_alive: another request may follow.

    Attributes:
        come_bytes: so much of the body has come.
        is_wanted: somebody waits for its rest.
        problem: why the rest of the body cannot be read.
        path: decoded, without the query.
        raw_path: as it came, without the query.
        content_length: of the body, in bytes; None when it comes in chunks.
        on_left: told by the connection when the client leaves, with the task that serves
            the request, which it then ends; None: the task is cancelled.
    """

    def __init__(
        self,
        client: ClientSide,
        *,
        method: str,
        target: str,
        headers: Headers,
        is_http_11: bool,
        keep_alive: bool,
    ) -> None:
        self.client, self.method, self.headers = client, method, headers
        self.is_http_11, self.keep_alive = is_http_11, keep_alive
        self.raw_path = _path_of(target)
        self.path = unquote(self.raw_path) if "%" in self.raw_path else self.raw_path
        length = headers.get("content-length", "")
        is_chunked = "transfer-encoding" in headers
        self.content_length = None if is_chunked else int(length) if length else 0
        self.on_left: Callable[[asyncio.Task[None]], None] | None = None
        self.is_complete = self.is_lost = self.is_wanted = False
        self.problem: RequestFailed | None = None
        self.come_bytes = 0
        self._gathered, self._parts = bytearray(), list[bytes]()
        self._come: asyncio.Future[None] | None = None

    @property
    def transport(self) -> asyncio.Transport:
        """Where its answer is written."""
        return self.client.transport

    def add(self, data: bytes) -> None:
        """More of the body; a client may send it as chunks of a byte each."""
        self.come_bytes += len(data)
        self._parts.append(data)
        if len(self._parts) > _MOST_PARTS:
            self._gathered += b"".join(self._parts)
            self._parts.clear()

    def wake(self) -> None:
        """More has come, or nothing more will."""
        if self._come is not None and not self._come.done():
            self._come.set_result(None)

    def body(self, limit_bytes: int) -> bytes:
        """What has come, decompressed; it is given out once.

        Raises:
            RequestFailed: 400 or 413; it cannot be decompressed, or is too large.
        """
        is_one = len(self._parts) == 1 and not self._gathered
        raw = self._parts[0] if is_one else b"".join((self._gathered, *self._parts))
        self._gathered, self._parts = bytearray(), []
        coding = self.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):
            raw = unpacked(raw, coding, limit_bytes)
        if len(raw) > limit_bytes:
            raise too_large(f"more than {limit_bytes} bytes", limit_bytes)
        return raw

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body, decompressed.

        Raises:
            RequestFailed: as for `body`; 400: it is not HTTP from some byte on.
            ConnectionResetError: the client has left before its end.
        """
        self.is_wanted = True
        try:
            while not self.is_complete:
                if self.problem is not None:
                    raise self.problem
                if self.is_lost:
                    raise ConnectionResetError("the client has left")
                if self.come_bytes > limit_bytes:
                    raise too_large(f"more than {limit_bytes} bytes", limit_bytes)
                self._come = asyncio.get_running_loop().create_future()
                self.client.wants_body()
                await self._come
        finally:
            self.is_wanted = False
        return self.body(limit_bytes)


@dataclass(slots=True)
class Response:
    """A whole reply."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> "Response":
        """A value as JSON."""
        return cls(status, orjson.dumps(value), {"Content-Type": JSON_TYPE})


@dataclass(frozen=True, slots=True)
class Sent:
    """A reply that has been written already.

    Attributes:
        stays: the connection may carry another request.
    """

    stays: bool


Handler = Callable[[Request], Awaitable[Response | Sent]]
"""Answers a request; ConnectionResetError ends its connection."""


def head_of(status: int, headers: dict[str, str], *, is_http_11: bool, stays: bool) -> bytes:
    """Status line and headers of a reply.

    Raises:
        ValueError: one would be two.
    """
    lines = [_status_line(status, is_http_11=is_http_11), f"Date: {_date(int(time.time()))}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not stays:
        lines.append("Connection: close")
    elif not is_http_11:
        lines.append("Connection: keep-alive")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a header holds a line's end")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


@lru_cache(maxsize=64)
def _status_line(status: int, *, is_http_11: bool) -> str:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = ""
    return f"HTTP/1.{int(is_http_11)} {status} {reason}"


@lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)


def too_large(got: str, limit_bytes: int) -> RequestFailed:
    """A body over the limit."""
    return RequestFailed(
        "the request body is too large",
        status=413,
        got=got,
        allowed=f"at most {limit_bytes} bytes",
        fix="shorten the conversation",
    )


def _path_of(target: str) -> str:
    """Of `/path?query`, or of a whole URL, as proxies are sent."""
    if not target.startswith("/"):
        _, scheme, rest = target.partition("://")
        target = "/" + rest.partition("/")[2] if scheme else target
    return target.partition("?")[0].partition("#")[0]


def unpacked(raw: bytes, coding: str, limit_bytes: int) -> bytes:
    """A compressed body; of what is over the limit, one byte.

    Raises:
        RequestFailed: 400; it cannot be unpacked.
    """
    problem = "another encoding"
    if coding in _CODINGS:
        try:
            unpacking = zlib.decompressobj(_CODINGS[coding])
            body = unpacking.decompress(raw, limit_bytes + 1)
        except zlib.error as error:
            problem = str(error)
        else:
            if len(body) > limit_bytes or (unpacking.eof and not unpacking.unused_data):
                return body
            problem = "more follows its end" if unpacking.eof else "it ends early"
    raise bad_request(
        "the request body cannot be decoded",
        got=f"Content-Encoding {coding[:100]}: {problem}",
        allowed=f"{', '.join(_CODINGS)}, or no Content-Encoding",
    )
