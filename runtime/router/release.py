"""Gives handles back to their decode nodes, beside the turns and without delaying them."""

import asyncio
import logging
from collections.abc import Iterable

import aiohttp

from runtime.engine_api import KV_PARAMS, RELEASE_PATH
from runtime.router.metrics import RouterMetrics
from runtime.router.store import StoredHandle

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_AT_ONCE = 32
_LAST_S = 4.0
"""Longest wait of a stopping router: its supervisor ends it after some seconds more."""

logger = logging.getLogger("turnback.router")


class Releases:
    """Releases that are under way.

    A handle that cannot be given back costs its node memory until the TTL, nothing more:
    failures are counted and logged, never raised.

    Args:
        session: HTTP client.
        metrics: counts the outcomes.
    """

    def __init__(self, session: aiohttp.ClientSession, metrics: RouterMetrics) -> None:
        self._session, self._metrics = session, metrics
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def start(self, stored: StoredHandle, authorization: str | None = None) -> None:
        """Give one handle back. It must not have been sent to a prefill engine."""
        task = asyncio.create_task(self._release(stored, authorization))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def all(self, handles: Iterable[StoredHandle]) -> None:
        """Give many back, and wait some seconds for these and for what is under way."""
        for stored in handles:
            self.start(stored)
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=_LAST_S)
        for task in late:
            task.cancel()
        if late:
            logger.warning("%d handles were not given back in %g s", len(late), _LAST_S)

    async def _release(self, stored: StoredHandle, authorization: str | None) -> None:
        url = f"{stored.decode_url.rstrip('/')}{RELEASE_PATH}"
        headers = {} if authorization is None else {"Authorization": authorization}
        try:
            async with (
                self._slots,
                self._session.post(
                    url, json={KV_PARAMS: dict(stored.handle)}, headers=headers, timeout=_TIMEOUT
                ) as reply,
            ):
                problem = None if reply.status == 202 else f"HTTP {reply.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = repr(error)
        self._metrics.released(is_done=problem is None)
        if problem is not None:
            logger.warning("%s: a handle was not given back: %s", url, problem)
