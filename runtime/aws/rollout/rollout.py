"""The rollout itself: one node at a time, over any fleet."""

from collections.abc import Callable, Sequence
from typing import cast

from runtime.aws.rollout import failures
from runtime.aws.rollout.fleet import Fleet, Growth, RunningNode
from runtime.aws.rollout.move import Mover
from runtime.aws.rollout.order import Replace, Restart, Step, steps
from runtime.aws.rollout.replace import check_room, replace
from runtime.aws.rollout.report import Pace, RolloutReport
from runtime.errors import BadInput, TurnbackError

Tell = Callable[[str], None]


def roll_out(fleet: Fleet, tell: Tell, pace: Pace, growth: Growth | None = None) -> RolloutReport:
    """Bring every node to its role's target; running it again continues where it stopped.

    Nodes that are where they shall be are passed over. The first node that cannot be moved
    ends the rollout (`failure` of the report); the others go on serving.

    Args:
        fleet: the nodes.
        tell: takes progress, a line at a time.
        pace: of the waits.
        growth: for nodes that a restart cannot bring there; None: there are none such.

    Raises:
        TurnbackError: before any node was touched; also when one does not tell what it runs,
            since the order follows from that.
    """
    # The targets first: the name is right, before machines are asked.
    targets, nodes = fleet.targets(), fleet.nodes()
    silent = [node for node in nodes if node.problem]
    if silent:
        raise failures.not_answering(silent)
    way = steps(targets, nodes)
    check_room([step for step in way if isinstance(step, Replace)], growth)
    touched = {node.name for step in way for node in _nodes(step)}
    report = RolloutReport(kept=[node.name for node in nodes if node.name not in touched])
    tell(_summary(way, report))
    for line in _outages(way, nodes):
        tell(line)
    for number, step in enumerate(way):
        try:
            _take(step, Mover(fleet, targets, tell, pace), growth, report)
        except TurnbackError as error:
            report.failure = failures.begun(error) if isinstance(error, BadInput) else error
            report.left = _not_reached(way[number:], report)
            break
    return report


def _take(step: Step, mover: Mover, growth: Growth | None, report: RolloutReport) -> None:
    if isinstance(step, Replace):
        # Without growth `check_room` has refused.
        replace(step, mover, cast(Growth, growth), report)
        return
    mover.move(step)
    report.restarted.append(step.node.name)


def _nodes(step: Step) -> Sequence[RunningNode]:
    return step.nodes if isinstance(step, Replace) else (step.node,)


def _not_reached(way: Sequence[Step], report: RolloutReport) -> list[str]:
    done = {*report.restarted, *report.ended}
    names = (node.name for step in way for node in _nodes(step))
    return [name for name in names if name not in done]


def _outages(way: Sequence[Step], nodes: Sequence[RunningNode]) -> list[str]:
    """What nobody can take over while it restarts."""
    restarted = [step.node for step in way if isinstance(step, Restart)]
    alone = [
        node
        for node in restarted
        if node.is_ready and not any(_can_stand_in(each, node) for each in nodes)
    ]
    return [
        f"{node.role} {node.name} is the only one that serves: turns wait, or are refused with "
        "503, while it restarts"
        for node in alone
    ]


def _can_stand_in(other: RunningNode, node: RunningNode) -> bool:
    is_another = other.name != node.name and other.role == node.role
    return is_another and other.is_ready and other.pairing == node.pairing


def _summary(way: Sequence[Step], report: RolloutReport) -> str:
    if not way:
        return f"{len(report.kept)} node(s) run as they shall; nothing to do"
    told = []
    for step in way:
        names = " + ".join(node.name for node in _nodes(step))
        told.append(f"{type(step).__name__.lower()} {names}")
    return f"{len(report.kept)} node(s) run as they shall; then: " + ", ".join(told)
