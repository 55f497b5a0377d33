"""Nodes that a restart cannot bring there: new ones beside the old, then the old end."""

from collections.abc import Mapping, Sequence
from typing import cast

from runtime.aws.rollout import failures
from runtime.aws.rollout.fleet import Growth, RunningNode
from runtime.aws.rollout.move import Mover
from runtime.aws.rollout.order import Replace
from runtime.aws.rollout.report import RolloutReport
from runtime.contract.node import Role
from runtime.errors import TurnbackError


def check_room(replaced: Sequence[Replace], growth: Growth | None) -> None:
    """Before anything is touched: may one node more run of each role that is replaced?

    Raises:
        BadInput: every role that has no room, at once.
    """
    nodes = [node for step in replaced for node in step.nodes]
    if nodes and growth is None:
        raise failures.no_growth(nodes)
    roles = list(dict.fromkeys(_role(node) for node in nodes))
    full = [role for role in roles if growth is not None and growth.room(role) < 1]
    if full:
        raise failures.no_room(full)


def replace(step: Replace, mover: Mover, growth: Growth, report: RolloutReport) -> None:
    """Start one node beside each of these, wait for all, then drain and end these.

    Raises:
        StartFailed: the new ones did not come; the old ones serve on.
    """
    roles = [_role(node) for node in step.nodes]
    try:
        needed = {role: growth.grow(role) - _old(mover, role) for role in roles}
        mover.tell(f"new nodes start beside {', '.join(node.name for node in step.nodes)}")
        new = _wait_for_new(needed, mover, growth)
    except BaseException:  # also Ctrl-C: what did not start yet must not start, and cost, later
        _give_up(roles, mover, growth)
        raise
    told = {*report.kept, *report.started}
    report.started += [name for name in new if name not in told]
    for node in step.nodes:
        mover.drain(node)
        growth.end(node)
        report.ended.append(node.name)
        mover.tell(f"{node.role} {node.name}: ended")


def _give_up(roles: Sequence[Role], mover: Mover, growth: Growth) -> None:
    for role in roles:
        try:
            growth.give_up(role)
        except TurnbackError as error:
            mover.tell(f"{role}: one more node stays asked for: {error.got}")
        else:
            mover.tell(f"{role}: what has not started is not asked for any more, what has stays")


def _role(node: RunningNode) -> Role:
    """Of a node that is replaced: routers never are."""
    return cast(Role, node.role)


def _old(mover: Mover, role: Role) -> int:
    pairing = mover.targets[role].pairing
    nodes = mover.fleet.nodes()
    return sum(node.role == role and node.pairing != pairing for node in nodes)


def _wait_for_new(needed: Mapping[Role, int], mover: Mover, growth: Growth) -> list[str]:
    """Names of the new nodes that serve, as soon as there are enough of each role."""
    pace = mover.pace
    began_s, told = pace.clock(), ""
    while True:
        nodes = mover.fleet.nodes()
        ready = {
            role: [node.name for node in nodes if _serves(node, role, mover)] for role in needed
        }
        counts = ", ".join(f"{role} {len(ready[role])} of {needed[role]}" for role in needed)
        waited_s = pace.clock() - began_s
        if all(len(ready[role]) >= needed[role] for role in needed):
            return [name for names in ready.values() for name in names]
        problem = growth.check()
        if waited_s >= pace.ready_s:
            troubles = [problem] if problem else []
            troubles += _troubles(nodes, needed, mover)
            raise failures.no_new_nodes(counts, waited_s, troubles)
        if counts != told:
            told = counts
            mover.tell(f"new nodes that serve after {waited_s:.0f} s: {counts}")
        pace.sleep(pace.poll_s)


def _troubles(nodes: Sequence[RunningNode], needed: Mapping[Role, int], mover: Mover) -> list[str]:
    """What new nodes say that have started and do not serve."""
    return [
        f"{node.name}: {mover.fleet.trouble(node)}"
        for node in nodes
        for role in needed
        if node.role == role
        and node.pairing == mover.targets[role].pairing
        and not _serves(node, role, mover)
    ]


def _serves(node: RunningNode, role: Role, mover: Mover) -> bool:
    target = mover.targets[role]
    return (
        node.role == role
        and node.is_ready
        and (node.pairing, node.generation) == (target.pairing, target.generation)
    )
