"""The engines behind the router: which exist, which can be used, how much they do."""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from runtime.contract.node import NodeAddress, Role, RouterSpec
from runtime.router.breaker import Breaker
from runtime.router.failure import no_node
from runtime.router.policy import decode_order, prefill_order

logger = logging.getLogger("turnback.router")

_RANK = re.compile(r"_dp(\d{1,6})$")
_FAILED_CHECKS = 2
_BREATH_S = 0.1


@dataclass(eq=False, slots=True)
class Node:
    """One engine's API server.

    Attributes:
        name: how clients hear of it; its address is not shown.
        generation: of the deployment, or else the engine's version; P and D must agree.
        is_leaving: takes no new turns; what it holds can still be read.
        failed_checks: health checks in a row.
        running: turns on it.
        outstanding_tokens: prompt tokens it was sent and has not answered.
        capacity_tokens: KV cache of one engine of it; None until it has been asked.
        pinned_tokens: by the handles of all routers, as of some seconds ago.
        engine_ids: of its data-parallel ranks, as its handles have told.
    """

    role: Role
    url: str
    name: str
    declared_generation: str
    breaker: Breaker
    is_leaving: bool = False
    failed_checks: int = 0
    running: int = 0
    outstanding_tokens: int = 0
    last_used: int = 0
    version: str = ""
    capacity_tokens: int | None = None
    pinned_tokens: int = 0
    engine_ids: dict[int, str] = field(default_factory=dict)

    @property
    def generation(self) -> str:
        return self.declared_generation or self.version

    @property
    def is_healthy(self) -> bool:
        """Whether it answers its health checks."""
        return self.failed_checks < _FAILED_CHECKS

    def is_usable(self, now_s: float) -> bool:
        """Whether a new request may be sent to it: not before its generation is known."""
        is_known = self.generation != ""
        return is_known and self.is_healthy and not self.is_leaving and self.breaker.allows(now_s)

    @property
    def state(self) -> str:
        """One word for people."""
        if self.is_leaving:
            return "leaving"
        if not self.is_healthy:
            return "down"
        if not self.generation:
            return "joining"
        return "breaker_open" if self.breaker.is_open else "ok"

    def note_engine(self, engine_id: str) -> str | None:
        """Learn who serves here; returns the engine that did before, if it has ended."""
        rank = rank_of(engine_id)
        before = self.engine_ids.get(rank)
        self.engine_ids[rank] = engine_id
        return before if before is not None and before != engine_id else None


def rank_of(engine_id: str) -> int:
    """The data-parallel rank in an engine's id; 0 where there is one rank.

    Source: vLLM 0.32 and 0.33 add `_dp{rank}` to the engine id of each rank.
    """
    match = _RANK.search(engine_id)
    return int(match[1]) if match else 0


class Fleet:
    """All nodes, as the configuration names them.

    Args:
        spec: limits of the breakers, and nodes given by address.
    """

    def __init__(self, spec: RouterSpec) -> None:
        self._spec = spec
        self._nodes: dict[tuple[Role, str], Node] = {}
        self._counters: dict[Role, itertools.count[int]] = {
            "prefill": itertools.count(1),
            "decode": itertools.count(1),
        }
        self._uses = itertools.count(1)
        self._waiting = 0
        self.changed = asyncio.Event()
        self.update(spec.listed_nodes())

    @property
    def nodes(self) -> list[Node]:
        """Every node, those that leave included."""
        return list(self._nodes.values())

    def update(self, listed: Iterable[NodeAddress]) -> None:
        """Take over a new list: nodes join, leave and go without a restart."""
        wanted = {(item.role, item.url.rstrip("/")): item for item in listed}
        for key, item in wanted.items():
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = self._joined(item)
            node.declared_generation = item.generation
            node.is_leaving = item.draining
        for key in [key for key in self._nodes if key not in wanted]:
            node = self._nodes[key]
            node.is_leaving = True
            if not node.running and not node.outstanding_tokens:
                del self._nodes[key]
        self.tell()

    def _joined(self, item: NodeAddress) -> Node:
        name = f"{item.role}-{next(self._counters[item.role])}"
        breaker = Breaker(self._spec.breaker_failures, self._spec.breaker_open_s)
        url = item.url.rstrip("/")
        logger.info("%s is %s", name, url)
        return Node(item.role, url, name, item.generation, breaker)

    def tell(self) -> None:
        """Wake those who wait for a usable node."""
        self.changed.set()
        self.changed = asyncio.Event()

    def find(self, role: Role, url: str) -> Node | None:
        """The node at an address."""
        return self._nodes.get((role, url))

    def usable(self, role: Role, generation: str | None = None) -> list[Node]:
        """Nodes of a role, and of a generation if one is given, that may be sent a request."""
        now_s = time.monotonic()
        return [
            node
            for node in self._nodes.values()
            if node.role == role and generation in (None, node.generation) and node.is_usable(now_s)
        ]

    def generation(self, wanted: str | None = None) -> str | None:
        """Whose P and D serve a turn: that of the shortest P queue among those that have both.

        P and D are looked at together, so that no leg is sent that cannot be followed.

        Args:
            wanted: the handle's; None for any.

        Returns:
            None when no P with a D can be used.
        """
        followed = {node.generation for node in self.usable("decode", wanted)}
        prefills = [p for p in self.usable("prefill", wanted) if p.generation in followed]
        return prefill_order(prefills, None)[0].generation if prefills else None

    def prefills(self, generation: str | None, last_url: str | None) -> list[Node]:
        """P nodes of a generation, best first."""
        return prefill_order(self.usable("prefill", generation), last_url)

    def decodes(self, generation: str | None, owner: str | None, hint: str | None) -> list[Node]:
        """D nodes of a generation, best first."""
        return decode_order(self.usable("decode", generation), owner, hint)

    def used(self, node: Node) -> None:
        """A request goes out to a node."""
        node.last_used = next(self._uses)
        node.breaker.sent(time.monotonic())

    def failed(self, node: Node, about: int | None = None) -> None:
        """A node did not serve what it was sent; `about` as for Breaker.failed."""
        node.breaker.failed(time.monotonic(), about)

    async def serving(self, *, is_direct: bool = False) -> str | None:
        """The generation to serve with, as soon as there is one; None for D alone.

        Raises:
            RequestFailed: 503; none came in time, or too many wait already.
        """
        deadline_s = time.monotonic() + self._spec.queue_timeout_s
        while True:
            if is_direct and self.usable("decode"):
                return None
            if not is_direct and (generation := self.generation()) is not None:
                return generation
            if not await self.breathe(deadline_s):
                role = "prefill" if self.usable("decode") and not is_direct else "decode"
                raise no_node(role, self.told())

    async def breathe(self, until_s: float) -> bool:
        """Wait a moment for a node to come back; False at `until_s` (monotonic), or at once
        when too many wait already."""
        left_s = until_s - time.monotonic()
        if left_s <= 0 or self._waiting >= self._spec.max_waiting_turns:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(min(left_s, _BREATH_S)):
                await self.changed.wait()
        except TimeoutError:
            pass  # a breaker may let a trial through by now
        finally:
            self._waiting -= 1
        return True

    def told(self) -> str:
        """Names and states of all nodes, for a message."""
        return ", ".join(f"{node.name} {node.state}" for node in self._nodes.values()) or "no node"
