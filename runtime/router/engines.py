"""One HTTP request to an engine, and the three ways in which it can fail."""

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from runtime.router.failure import JSON_TYPE, RequestFailed, bad_request, engine_failed, error_body
from runtime.router.sse import FrameSplitter, clean_frame

CHAT_PATH = "/v1/chat/completions"

logger = logging.getLogger("turnback.router")


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply of an engine."""

    status: int
    content_type: str
    body: bytes


class NotConnected(Exception):
    """The engine was not reached; nothing was sent."""


class LegFailed(Exception):
    """The engine may have begun to serve the request, and gave no usable answer.

    Args:
        url: the engine.
        problem: what was seen.
        reply: its reply, if it gave one.
    """

    def __init__(self, url: str, problem: str, reply: Reply | None = None) -> None:
        super().__init__(f"{url}: {problem}")
        self.url, self.problem, self.reply = url, problem, reply

    def for_client(self, role: str) -> "PassThrough | RequestFailed":
        """The exception that ends the turn: the engine's own 5xx, else a 502."""
        if self.reply is not None and self.reply.status >= 500:
            return PassThrough(self.reply)
        return engine_failed(role, self.url, self.problem)


class PassThrough(Exception):
    """A reply that goes to the client as it is."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


async def post_leg(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], authorization: str | None
) -> aiohttp.ClientResponse:
    """Send one leg under a request id of its own; returns once the status is known.

    Raises:
        NotConnected: the request can go to another engine as it is.
        LegFailed: it cannot.
        RequestFailed: 400; the body cannot be written as JSON.
    """
    try:
        data = orjson.dumps(body)
    except TypeError as error:  # orjson reads deeper nesting than it writes
        raise bad_request(
            "the request body cannot be passed on", got=str(error), allowed="at most 250 levels"
        ) from error
    headers = {"Content-Type": JSON_TYPE, "X-Request-Id": uuid.uuid4().hex}
    if authorization is not None:
        headers["Authorization"] = authorization
    try:
        return await session.post(
            f"{url}{CHAT_PATH}", data=data, headers=headers, allow_redirects=False
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        logger.warning("%s cannot be reached: %s", url, error)
        raise NotConnected(url) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise LegFailed(url, _told(error)) from error


async def read_reply(url: str, response: aiohttp.ClientResponse) -> Reply:
    """Read a reply to its end.

    Raises:
        LegFailed: the connection broke or fell silent.
    """
    try:
        async with response:
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise LegFailed(url, _told(error)) from error
    return Reply(response.status, content_type(response), body)


def content_type(response: aiohttp.ClientResponse) -> str:
    """The Content-Type header as the engine wrote it."""
    return response.headers.get("Content-Type", JSON_TYPE)


class ReplyStream:
    """An SSE reply whose first bytes have come, as clean frames for the client.

    Args:
        url: the engine.
        response: its reply.
        on_params: called with each kv_transfer_params before its frame is given out,
            since the client's next turn may follow at once.
    """

    def __init__(
        self, url: str, response: aiohttp.ClientResponse, on_params: Callable[[Any], None]
    ) -> None:
        self._url, self._response, self._on_params = url, response, on_params
        self._chunks = response.content.iter_any()
        self._first = b""

    async def begin(self) -> None:
        """Wait for the first bytes.

        Raises:
            LegFailed: the stream ended or broke before them.
        """
        try:
            self._first = await anext(self._chunks, b"")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LegFailed(self._url, _told(error)) from error
        if not self._first:
            raise LegFailed(self._url, "the stream ended before its first byte")

    async def clean_bytes(self) -> AsyncIterator[bytes]:
        """All complete frames of each chunk, joined; an error event where it breaks off."""
        splitter = FrameSplitter()
        try:
            yield self._cleaned(splitter.feed(self._first))
            async for chunk in self._chunks:
                yield self._cleaned(splitter.feed(chunk))
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("%s broke off its answer: %s", self._url, _told(error))
            failure = engine_failed("decode", self._url, f"broke off its answer: {_told(error)}")
            yield b"data: " + error_body(failure) + b"\n\n"
            return
        if rest := splitter.rest():
            yield self._cleaned([rest])

    def _cleaned(self, frames: list[bytes]) -> bytes:
        parts = []
        for frame in frames:
            part, params = clean_frame(frame)
            if params is not None:
                self._on_params(params)
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """End the engine's request if it still runs."""
        self._response.close()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
