"""Broken replies of the mock engine: what goes over the wire when it is told to."""

import asyncio

from aiohttp import web

from runtime.local.mock_config import Faults
from runtime.local.mock_replies import Event

_HUGE_BYTES = 1024 * 1024


def drop(request: web.Request) -> None:
    """End a connection at once, with what was sent on it or not."""
    if request.transport is not None:
        request.transport.abort()


def garbage(*, is_streamed: bool) -> web.Response:
    """HTTP 200 and something that is neither JSON nor server-sent events."""
    kind = "text/event-stream" if is_streamed else "application/json"
    return web.Response(body=b"<html>\x00 502 but with status 200 {{{", content_type=kind)


def huge(event: Event) -> Event:
    """The same event with a field of 1 MB more."""
    name, data = event
    return name, (data or {}) | {"padding": "x" * _HUGE_BYTES}


async def wait_as_told(faults: Faults) -> None:
    """Be slow, or never come back, when the faults say so."""
    if faults.slow_next:
        await asyncio.sleep(faults.slow_next.pop(0))
    if faults.use("stall_next"):
        await asyncio.Event().wait()


async def send_half(request: web.Request, whole: bytes, content_type: str) -> web.StreamResponse:
    """Send headers and half of a body, then close the connection."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    if content_type == "application/json":
        response.content_length = len(whole)
    await response.prepare(request)
    await response.write(whole[: len(whole) // 2])
    if request.transport is not None:
        request.transport.close()
    return response
