"""Active health checks, and what a node tells of itself: version and KV capacity."""

import asyncio
import logging
import re

import orjson

from runtime.router.connection import Broken
from runtime.router.nodes import Fleet, Node
from runtime.router.wire import EngineClient, NotConnected

_CAPACITY = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

logger = logging.getLogger("turnback.router")


def capacity_tokens(page: str) -> int | None:
    """KV capacity of one engine, out of a vLLM server's /metrics; None when it is not told.

    Source: vllm:cache_config_info has the labels block_size and num_gpu_blocks, on CPU too;
        each data-parallel rank has a line with the blocks of all of them.
    """
    ranks = _CAPACITY.findall(page)
    labels = dict(_LABEL.findall(ranks[0])) if ranks else {}
    try:
        return int(labels["block_size"]) * int(labels["num_gpu_blocks"]) // len(ranks)
    except (KeyError, ValueError):
        return None


class HealthChecks:
    """Asks every node in turn.

    Args:
        fleet: takes what is found.
        client: sends the requests.
        interval_s: between two rounds; also the limit of each request.
    """

    def __init__(self, fleet: Fleet, client: EngineClient, interval_s: float) -> None:
        self._fleet, self._client, self._interval_s = fleet, client, interval_s

    async def run(self) -> None:
        """Check all nodes for ever, first after one interval."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.once()

    async def once(self) -> None:
        """Check all nodes once."""
        await asyncio.gather(*(self._check(node) for node in self._fleet.nodes))
        self._fleet.tell()

    async def _check(self, node: Node) -> None:
        was_healthy = node.is_healthy
        status, _ = await self._get(node, "/health")
        node.failed_checks = 0 if status == 200 else node.failed_checks + 1
        if was_healthy != node.is_healthy:
            logger.warning("%s is %s", node.name, "healthy again" if node.is_healthy else "down")
            if not node.is_healthy:
                node.version, node.capacity_tokens = "", None  # whoever comes back is asked again
        if node.is_healthy and status == 200:
            await self._learn(node)

    async def _learn(self, node: Node) -> None:
        """Ask what is not known yet."""
        if not node.version:
            status, body = await self._get(node, "/version")
            if status:  # else it is asked again: P and D of unknown versions must not meet
                try:
                    node.version = str(orjson.loads(body)["version"]) or "unknown"
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    node.version = "unknown"
        if node.capacity_tokens is None:
            status, body = await self._get(node, "/metrics")
            if status == 200:
                node.capacity_tokens = capacity_tokens(body.decode(errors="replace"))

    async def _get(self, node: Node, path: str) -> tuple[int, bytes]:
        """Status and body; 0 when there is no answer."""
        try:
            # The connection included: one node that swallows packets delays no other's check.
            async with asyncio.timeout(self._interval_s):
                reply = await self._client.send("GET", node.url, path, timeout_s=self._interval_s)
                return reply.status, await reply.read()
        except (NotConnected, Broken, TimeoutError):
            return 0, b""
