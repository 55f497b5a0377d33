"""Bodies from clients and streams to them, with a limit on each wait."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache, partial

import orjson
from aiohttp import HttpVersion, HttpVersion11, web

from runtime.contract.http import DECODE_RECEIPT_HEADER
from runtime.contract.node import RouterSpec
from runtime.router.answer import Turn
from runtime.router.failure import RequestFailed, too_busy
from runtime.router.relay import Relay

_MOST_BYTES = 1 << 30
"""Of all bodies that are being read at once."""

_LAST_CHUNK = b"0\r\n\r\n"

logger = logging.getLogger("turnback.router")


class _Sent(web.StreamResponse):
    """A reply that has been written already; aiohttp's own writer costs several times ours.

    Args:
        stays: the connection may carry another request.
    """

    def __init__(self, *, stays: bool) -> None:
        super().__init__()
        self._stays = stays

    @property
    def prepared(self) -> bool:
        """It is."""
        return True

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow."""
        return self._stays

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to do."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to do."""


class Edge:
    """The client side of turns.

    Args:
        spec: limits.
        pause_s: tells how long to wait between two reads of a stream.
    """

    def __init__(self, spec: RouterSpec, pause_s: Callable[[], float]) -> None:
        self._spec, self._pause_s = spec, pause_s
        self._reading_bytes = 0

    async def read(self, request: web.BaseRequest) -> bytes:
        """A request's body.

        Raises:
            RequestFailed: 408 or 429; it does not come, or too much comes at once.
        """
        length = request.content_length
        if length is not None and length > self._spec.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self._spec.max_body_bytes, length)
        if length is not None and request.content.is_eof():  # most have come by now
            body = request.content.read_nowait()
            if len(body) > self._spec.max_body_bytes:  # it was compressed
                raise web.HTTPRequestEntityTooLarge(self._spec.max_body_bytes, len(body))
            return body
        size_bytes = self._spec.max_body_bytes if length is None else length
        if self._reading_bytes + size_bytes > max(_MOST_BYTES, self._spec.max_body_bytes):
            raise too_busy(
                "too many large requests at once",
                got=f"{self._reading_bytes + size_bytes} bytes",
                allowed=f"{_MOST_BYTES} bytes of all requests that are being read",
            )
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._reading_bytes += size_bytes
        try:
            async with asyncio.timeout(self._spec.client_timeout_s):
                return await request.read()
        except TimeoutError:
            raise RequestFailed(
                "the request body did not come",
                status=408,
                got=f"no whole body within {self._spec.client_timeout_s:g} s",
                allowed="--client-timeout-s of the router",
                fix="send the request again, faster",
            ) from None
        finally:
            self._reading_bytes -= size_bytes

    async def send(
        self,
        request: web.BaseRequest,
        stream: Relay,
        headers: dict[str, str],
        debugged: Turn | None,
    ) -> web.StreamResponse:
        """Write a stream to its client.

        Args:
            request: whose answer it is.
            stream: the answer.
            headers: of the reply.
            debugged: whose receipt ends the stream; None for none.

        Raises:
            ConnectionResetError: the client has left, or does not read.
        """
        is_chunked = request.version >= HttpVersion11
        stays = is_chunked and request.keep_alive  # else its end is the connection's
        frame = _chunk if is_chunked else bytes
        unsent = _head(request.version, headers, is_chunked=is_chunked, stays=stays)
        try:
            last, is_first = b"", True
            async for data in stream.pieces(self._pause_s):
                if stream.is_at_end:
                    last += data
                    continue
                await self._write(request, unsent + frame(data))
                if is_first and is_chunked:
                    stream.push_to(partial(_write_chunk, request), self._pause_s)
                unsent, is_first = b"", False
            if debugged is not None and debugged.decode_receipt is not None:
                told = orjson.dumps(debugged.decode_receipt.to_dict())
                last += b": %s %s\n\n" % (DECODE_RECEIPT_HEADER.encode(), told)
            await self._write(request, unsent + frame(last) + (_LAST_CHUNK if is_chunked else b""))
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception as error:
            # A second reply cannot follow what has been written: the connection ends here.
            logger.exception("a stream failed for a reason the router does not know")
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the stream was ended") from error
        return _Sent(stays=stays)

    async def _write(self, request: web.BaseRequest, data: bytes) -> None:
        """Write, and wait while much is unread.

        Raises:
            ConnectionResetError: the client has left, or does not read.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        transport.write(data)
        if not transport.get_write_buffer_size():
            return
        try:
            async with asyncio.timeout(self._spec.client_timeout_s):
                await request.writer.drain()
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError("the client does not read") from None


def _head(
    version: HttpVersion, headers: Mapping[str, str], *, is_chunked: bool, stays: bool
) -> bytes:
    """Status line and headers of a stream."""
    lines = [f"HTTP/{version.major}.{version.minor} 200 OK", f"Date: {_date(int(time.time()))}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
    if not stays:
        lines.append("Connection: close")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a header holds a line's end")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


@lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _write_chunk(request: web.BaseRequest, data: bytes) -> bool:
    """Write a chunk of a reply past its response; not while the client reads too slowly."""
    transport = request.transport
    if transport is None or transport.is_closing() or transport.get_write_buffer_size():
        return False
    if data:
        transport.write(_chunk(data))
    return True
