"""Gives handles and P dicts back to their nodes, beside the turns and without delaying them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from runtime.engine_api import KV_PARAMS, RECEIPT, RELEASE_PATH
from runtime.router.connection import Broken
from runtime.router.metrics import RouterMetrics
from runtime.router.store import StoredHandle
from runtime.router.wire import EngineClient, NotConnected

_TIMEOUT_S = 2.0
_AT_ONCE = 32
_LAST_S = 4.0
"""Longest wait of a stopping router: its supervisor ends it after some seconds more."""

logger = logging.getLogger("turnback.router")


class Releases:
    """Releases that are under way.

    What cannot be given back costs its node memory until TTL or lease, nothing more:
    failures are counted and logged, never raised.

    Args:
        client: sends them.
        metrics: counts the outcomes.
        authorization: for the engines; None sends none.
        knows: whether a URL is a decode node's: blocks go back to no other address.
    """

    def __init__(
        self,
        client: EngineClient,
        metrics: RouterMetrics,
        authorization: str | None,
        knows: Callable[[str], bool],
    ) -> None:
        self._knows = knows
        self._client, self._metrics, self._authorization = client, metrics, authorization
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def start(self, url: str, params: Mapping[str, Any], authorization: str | None = None) -> None:
        """Give blocks back to the node at `url`. Nobody may have been told to read them."""
        task = asyncio.create_task(self._release(url, params, self._authorization or authorization))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def handles(self, stored: Iterable[StoredHandle], authorization: str | None = None) -> None:
        """Give handles back to their decode nodes, as far as these are still there."""
        for one in stored:
            if self._knows(one.decode_url):
                self.start(one.decode_url, one.handle, authorization)

    async def finish(self) -> None:
        """Wait some seconds for what is under way."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=_LAST_S)
        for task in late:
            task.cancel()
        if late:
            logger.warning("%d releases were not done in %g s", len(late), _LAST_S)

    async def _release(
        self, url: str, params: Mapping[str, Any], authorization: str | None
    ) -> None:
        headers = {} if authorization is None else {"Authorization": authorization}
        body = orjson.dumps(
            {KV_PARAMS: {name: value for name, value in params.items() if name != RECEIPT}}
        )
        try:
            async with self._slots:
                reply = await self._client.send(
                    "POST", url, RELEASE_PATH, headers=headers, body=body, timeout_s=_TIMEOUT_S
                )
                await reply.read()
            problem = None if reply.status == 202 else f"HTTP {reply.status}"
        except (NotConnected, Broken) as error:
            problem = str(error)
        self._metrics.released(is_done=problem is None)
        if problem is not None:
            logger.warning("%s: blocks were not given back: %s", url, problem)
