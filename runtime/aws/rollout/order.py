"""In which order nodes are brought to their generation. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.aws.rollout.fleet import NodeRole, RunningNode, Target

Targets = Mapping[NodeRole, Target]


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait for a node that runs the right generation, and take it back."""

    node: RunningNode


@dataclass(frozen=True, slots=True)
class Restart:
    """Drain, restart, wait, take back."""

    node: RunningNode


@dataclass(frozen=True, slots=True)
class Replace:
    """Start nodes beside these, then drain and end these."""

    nodes: tuple[RunningNode, ...]


Step = Finish | Restart | Replace


def steps(targets: Targets, nodes: Sequence[RunningNode]) -> list[Step]:
    """The way from how nodes run to how they shall run; empty when they do.

    A router may use a decode node's handles until they end, and a prefill node's answers
    until their lease ends: it must never believe in more time than a node gives. So nodes
    that will keep blocks longer are restarted before the routers, nodes that will keep them
    less long after.

    Args:
        targets: by role; nodes of other roles are left alone.
        nodes: as they run.
    """
    known = [node for node in nodes if node.role in targets]
    old = [node for node in known if node.pairing != targets[node.role].pairing]
    same = [node for node in known if node.pairing == targets[node.role].pairing]
    finish = [Finish(each) for each in same if not _is_behind(each, targets) and _is_open(each)]
    behind = [node for node in same if _is_behind(node, targets)]
    longer = [node for node in behind if _will_keep_longer(node, targets)]
    routers = [node for node in behind if node.role == "router"]
    rest = [node for node in behind if node not in longer and node not in routers]
    replaced = [Replace(batch) for batch in batches(old)]
    # Old nodes that keep blocks for less than the routers would believe have to go first.
    is_late = any(_will_keep_longer(node, targets) for node in old)
    return [
        *finish,
        *_restarts(longer, ("prefill", "decode")),
        *([] if is_late else _restarts(routers, ("router",))),
        *replaced,
        *(_restarts(routers, ("router",)) if is_late else []),
        # D renews P's leases at its own pace: it must not be slower than P expects.
        *_restarts(rest, ("decode", "prefill")),
    ]


def _is_behind(node: RunningNode, targets: Targets) -> bool:
    return node.generation != targets[node.role].generation


def _is_open(node: RunningNode) -> bool:
    """Left by a rollout that did not end."""
    return node.is_draining or not node.is_ready


def _will_keep_longer(node: RunningNode, targets: Targets) -> bool:
    """Whether an engine keeps blocks for others for less time than it shall."""
    target = targets[node.role]
    if node.ttl_s is None or node.lease_s is None:  # it does not run, or is a router
        return False
    if target.ttl_s is None or target.lease_s is None:
        return False
    if node.role == "decode":
        return node.ttl_s < target.ttl_s
    # P remembers for a TTL which handles it has used.
    return (node.lease_s, node.ttl_s) < (target.lease_s, target.ttl_s)


def _restarts(nodes: Sequence[RunningNode], roles: tuple[NodeRole, ...]) -> list[Restart]:
    ordered = sorted(nodes, key=lambda node: (roles.index(node.role), node.name))
    return [Restart(node) for node in ordered]


def batches(old: Sequence[RunningNode]) -> list[tuple[RunningNode, ...]]:
    """Nodes that are replaced together: a pair first, the rarer role spread over the rest.

    New nodes serve only where both roles are new, and old ones where both are old.
    """
    by_role = {
        role: sorted((node for node in old if node.role == role), key=lambda node: node.name)
        for role in ("prefill", "decode")
    }
    rounds = max(len(nodes) for nodes in by_role.values())
    made: list[tuple[RunningNode, ...]] = []
    for index in range(rounds):
        batch = []
        for nodes in by_role.values():
            before, now = ((index + shift) * len(nodes) // rounds for shift in (-1, 0))
            if nodes and now > before:
                batch.append(nodes[now])
        made.append(tuple(batch))
    return made
