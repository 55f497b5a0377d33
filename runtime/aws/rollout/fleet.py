"""What a rollout works on: nodes, where they shall be, and who moves them.

AWS is one such fleet; processes on one machine can be another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.contract.node import Role
from runtime.contract.status import MachineRole

NodeRole = MachineRole
ENGINE_ROLES: tuple[Role, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the nodes of a role shall be.

    Attributes:
        generation: of their parameter.
        ttl_s: decoder_kv_blocks_ttl_s of it; None for routers, whose order follows from nodes.
        lease_s: kv_lease_duration_s of it; None for routers.
        pairing: what two nodes that exchange KV have in common; empty for routers.
    """

    generation: str
    ttl_s: int | None = None
    lease_s: int | None = None
    pairing: str = ""


@dataclass(frozen=True, slots=True)
class RunningNode:
    """One node as it is now.

    Attributes:
        name: unique, as a message shows it.
        role: engine or router.
        generation: its process was started with; empty: it does not run, and holds nothing.
        ttl_s, lease_s: its process was started with; None: it does not run.
        pairing: that of the machine; a restart does not change it.
        is_ready: whether its process answers its health check.
        is_draining: whether routers were told to send it nothing new.
        problem: why it does not tell what it runs; then an empty generation says nothing.
    """

    name: str
    role: NodeRole
    generation: str
    ttl_s: int | None = None
    lease_s: int | None = None
    pairing: str = ""
    is_ready: bool = True
    is_draining: bool = False
    problem: str = ""


class Fleet(Protocol):
    """Nodes that can be restarted. Each call blocks, has a timeout, and may raise TurnbackError."""

    def targets(self) -> Mapping[NodeRole, Target]:
        """Of each role that is rolled out; nodes of other roles are left alone."""

    def nodes(self) -> Sequence[RunningNode]:
        """All nodes, also those that are not ready."""

    def drain(self, node: RunningNode) -> None:
        """Ask that nothing new is sent to a node; what it holds can still be read."""

    def undrain(self, node: RunningNode) -> None:
        """Take a node back; harmless for one that is not drained."""

    def running_requests(self, node: RunningNode) -> int | None:
        """Requests that run or wait on a node; None: its process runs and does not answer."""

    def restart(self, node: RunningNode) -> None:
        """Start a node's process anew, from its parameter. Returns before it is ready."""

    def trouble(self, node: RunningNode) -> str:
        """What a node that does not come back says itself, in a few lines."""


class Growth(Protocol):
    """Nodes that can be started beside others, from what is deployed now."""

    def room(self, role: Role) -> int:
        """How many nodes of a role may run beside those that shall run."""

    def grow(self, role: Role) -> int:
        """Have one node more than there shall be; asked again, still one more.

        Returns:
            How many there are to be, old and new, while it is so.
        """

    def check(self) -> str:
        """Why what `grow` asked for has not come yet; empty where nothing is known.

        Raises:
            StartFailed: it will not come.
        """

    def give_up(self, role: Role) -> None:
        """Ask no more for what `grow` asked for and what has not started."""

    def end(self, node: RunningNode) -> None:
        """End a node; none is started in its place."""
