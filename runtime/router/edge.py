"""Bodies from clients and streams to them, with a limit on each wait."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import orjson

from runtime.contract.http import DECODE_RECEIPT_HEADER
from runtime.contract.node import RouterSpec
from runtime.router.answer import Turn
from runtime.router.exchange import Request, Sent, head_of, too_large
from runtime.router.failure import RequestFailed, too_busy
from runtime.router.relay import Relay

_MOST_BYTES = 1 << 30
"""Of all bodies that are being read at once."""

_LAST_CHUNK = b"0\r\n\r\n"

logger = logging.getLogger("turnback.router")


class Edge:
    """The client side of turns.

    Args:
        spec: limits.
        pause_s: tells how long to wait between two reads of a stream.
    """

    def __init__(self, spec: RouterSpec, pause_s: Callable[[], float]) -> None:
        self._spec, self._pause_s = spec, pause_s
        self._reading_bytes = 0

    async def read(self, request: Request) -> bytes:
        """A request's body.

        Raises:
            RequestFailed: 400, 408, 413 or 429; it cannot be read, does not come, or is too
                large, or too much comes at once.
            ConnectionResetError: the client has left.
        """
        limit_bytes, length = self._spec.max_body_bytes, request.content_length
        if length is not None and length > limit_bytes:
            raise too_large(f"{length} bytes", limit_bytes)
        if request.is_complete:  # most have come by now
            return request.body(limit_bytes)
        size_bytes = limit_bytes if length is None else length
        if self._reading_bytes + size_bytes > max(_MOST_BYTES, limit_bytes):
            raise too_busy(
                "too many large requests at once",
                got=f"{self._reading_bytes + size_bytes} bytes",
                allowed=f"{_MOST_BYTES} bytes of all requests that are being read",
            )
        is_asked = request.headers.get("Expect", "").lower() == "100-continue"
        if is_asked and request.is_http_11:  # 1.0 knows no answer before the answer
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._reading_bytes += size_bytes
        try:
            async with asyncio.timeout(self._spec.client_timeout_s):
                return await request.read(limit_bytes)
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
        request: Request,
        stream: Relay,
        headers: dict[str, str],
        debugged: Turn | None,
    ) -> Sent:
        """Write a stream to its client.

        Args:
            request: whose answer it is.
            stream: the answer.
            headers: of the reply.
            debugged: whose receipt ends the stream; None for none.

        Raises:
            ConnectionResetError: the client has left, or does not read.
        """
        is_chunked = request.is_http_11
        stays = is_chunked and request.keep_alive  # else its end is the connection's
        frame = _chunk if is_chunked else bytes
        if is_chunked:
            headers = headers | {"Transfer-Encoding": "chunked"}
        unsent = head_of(200, headers, is_http_11=is_chunked, stays=stays)
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
            request.transport.abort()
            raise ConnectionResetError("the stream was ended") from error
        return Sent(stays)

    async def _write(self, request: Request, data: bytes) -> None:
        """Write, and wait while much is unread.

        Raises:
            ConnectionResetError: the client has left, or does not read.
        """
        transport = request.transport
        if transport.is_closing():
            raise ConnectionResetError("the client has left")
        transport.write(data)
        if not transport.get_write_buffer_size():
            return
        try:
            async with asyncio.timeout(self._spec.client_timeout_s):
                await request.client.drain()
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError("the client does not read") from None


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _write_chunk(request: Request, data: bytes) -> bool:
    """Write a chunk of a reply past its response; not while the client reads too slowly."""
    transport = request.transport
    if transport.is_closing() or transport.get_write_buffer_size():
        return False
    if data:
        transport.write(_chunk(data))
    return True
