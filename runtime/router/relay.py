"""A decode node's SSE reply on its way to the client: cleaned, and its handle kept."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import orjson

from runtime.router.apis.api import Answering
from runtime.router.connection import Broken, Sink
from runtime.router.conversation import Message
from runtime.router.failure import engine_failed, error_body
from runtime.router.sse import (
    FrameSplitter,
    clean_frame,
    events_of,
    is_marked,
    next_marked,
    without_nulls,
)
from runtime.router.ticks import TICK_S
from runtime.router.wire import EngineReply

_FOLD_BYTES = 16 * 1024
_BURST_S = 0.0005
"""Pieces that come so closely are no tokens one by one: the next are read together."""

_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")

logger = logging.getLogger("turnback.router")

Keep = Callable[[Any, Message | None], Awaitable[None]]
"""Takes the kv_transfer_params and the answer, before the client sees the stream's end."""


class Relay:
    """An SSE reply whose head has come.

    Args:
        name: the node, for the client.
        reply: what it sends.
        keep: called with each kv_transfer_params before its frame is given out, since the
            client's next turn may follow at once.
        answering: puts the answer together; None when nobody asks.
        silence_s: the stream breaks when nothing comes for so long.
        on_end: told how the stream has ended: well, or broken.
        error_event: what stands before the data of an error event.
    """

    def __init__(
        self,
        name: str,
        reply: EngineReply,
        keep: Keep,
        answering: Answering | None,
        silence_s: float,
        on_end: Callable[[Broken | None], None] = lambda _error: None,
        error_event: bytes = b"",
    ) -> None:
        self._name, self._reply, self._keep = name, reply, keep
        self._answering, self._silence_s = answering, silence_s
        self._on_end, self._error_event = on_end, error_event
        self._splitter = FrameSplitter()
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self.first = b""
        self._is_first_read = False
        self._read_s = 0.0
        self.is_broken = False

    async def begin(self) -> None:
        """Wait for the first bytes.

        Raises:
            Broken: the stream ended or broke before them, or they are no events.
        """
        self.first = await self._reply.chunk()
        if not self.first:
            raise Broken("the stream ended before its first byte", is_silent=False)
        begun = self.first.lstrip()
        if not any(field.startswith(begun[: len(field)]) for field in _SSE_FIELDS):
            raise Broken("the stream is no server-sent events", is_silent=False)

    async def pieces(self, pause_s: Callable[[], float]) -> AsyncIterator[bytes]:
        """All complete frames of what has come, joined; an error event where it breaks off.

        Args:
            pause_s: tells how long to wait between two pieces, so that more comes with each.
        """
        try:
            while data := await self._next():
                if piece := await self._cleaned(self._splitter.feed(data)):
                    yield piece
                self._rest(pause_s)
        except Broken as error:
            self.is_broken = True
            logger.warning("%s broke off its answer: %s", self._name, error)
            failure = engine_failed("decode", self._name, f"broke off its answer: {error}")
            self._on_end(error)
            yield self._error_event + b"data: " + error_body(failure) + b"\n\n"
            return
        self._on_end(None)
        if (rest := self._splitter.rest()) and (piece := await self._cleaned(rest)):
            yield piece

    def _rest(self, pause_s: Callable[[], float]) -> None:
        self._reply.give_until(self._silence_s)
        now_s = time.monotonic()
        is_burst = now_s - self._read_s < _BURST_S
        self._read_s = now_s
        wait_s = max(pause_s(), TICK_S if is_burst else 0.0)
        if wait_s > 0 and not self._reply.is_complete:
            self._reply.hold(wait_s)

    def push_to(self, write: Sink, pause_s: Callable[[], float]) -> None:
        """Write frames without anything hidden as they come, past `pieces`, which has the rest.

        Most of a stream is such frames, and waking a task for each costs more than all
        else that is done with it.

        Args:
            write: takes bytes for the client; False when it will not.
            pause_s: as for `pieces`.
        """

        def push(data: bytes) -> bool:
            if self._splitter.tail_bytes > _FOLD_BYTES:
                return False  # looking at a long event again and again is left to its end
            joined = self._splitter.tail + data
            told = without_nulls(joined)
            if is_marked(told) or not write(b""):
                return False
            frames = self._splitter.feed(data)
            if told is not joined:
                frames = without_nulls(frames)
            self._note(frames)
            if frames:
                write(frames)
            self._rest(pause_s)
            return True

        self._reply.push_to(push)

    async def drain(self) -> None:
        """Read the stream to its end for nobody: its handle counts all the same.

        Raises:
            Broken: it broke before.
        """
        while data := await self._next():
            await self._cleaned(self._splitter.feed(data))

    async def _next(self) -> bytes:
        if self._is_first_read:
            return await self._reply.chunk()
        self._is_first_read = True
        return self.first

    async def _cleaned(self, frames: bytes) -> bytes:
        """Complete frames as the client may see them."""
        frames = without_nulls(frames)
        self._note(frames)
        parts, start = [], 0
        while (bounds := next_marked(frames, start)) is not None:
            begin, end = bounds
            part, params = clean_frame(frames[begin:end])
            if params is not None:
                await self._keep(params, self._answer())
            parts += [frames[start:begin], part]
            start = end
        return b"".join([*parts, frames[start:]]) if parts else frames

    @property
    def is_at_end(self) -> bool:
        """Whether what was given out last ends the stream."""
        return self.is_broken or (self._reply.is_at_end and not self._splitter.has_rest)

    def _note(self, frames: bytes) -> None:
        if self._answering is None or not frames:
            return
        self._unread.append(frames)
        self._unread_bytes += len(frames)
        if self._unread_bytes > _FOLD_BYTES:
            self._fold()

    def _fold(self) -> None:
        if self._answering is None:
            return
        events = events_of(b"".join(self._unread))
        self._unread.clear()
        self._unread_bytes = 0
        try:
            self._answering.add(events)
        except (AttributeError, TypeError, ValueError):
            self._answering = None  # no shape of this API: the answer cannot be told

    def _answer(self) -> Message | None:
        self._fold()
        return None if self._answering is None else self._answering.message()

    def close(self) -> None:
        """End the engine's request if it still runs."""
        self._reply.close()


def whole_answer(
    body: Mapping[str, Any], answer_of: Callable[[Mapping[str, Any]], Message | None]
) -> Message | None:
    """The answer in a whole reply; None when its shape is another."""
    try:
        return answer_of(body)
    except (AttributeError, TypeError, ValueError, orjson.JSONEncodeError):
        return None
