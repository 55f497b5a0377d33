"""What stops a rollout, as the user is told."""

from collections.abc import Sequence

from runtime.aws.launch_failures import LaunchFailure
from runtime.aws.rollout.fleet import RunningNode, Target
from runtime.contract.node import Role
from runtime.contract.status import NODE_UNIT
from runtime.errors import BadInput, StartFailed

_AGAIN = "run the rollout again, it continues with this node; the others go on serving"


def begun(error: BadInput) -> StartFailed:
    """What cannot work, found when nodes had been moved: exit code 2 would deny that."""
    return StartFailed(error.what, got=error.got, allowed=error.allowed, fix=error.fix)


def not_idle(node: RunningNode, running: int, waited_s: float) -> StartFailed:
    """Requests ran on a drained node until time was up."""
    return StartFailed(
        f"{node.role} {node.name} does not become idle",
        got=f"{running} request(s) after {waited_s:.0f} s; it was taken back as it was",
        allowed="no running request, for as long as its blocks may be read",
        fix="wait longer with --drain-s, or end the clients that hold it; then run it again",
    )


def no_answer(node: RunningNode, waited_s: float) -> StartFailed:
    """A drained node's process never said what runs on it."""
    return StartFailed(
        f"{node.role} {node.name} does not answer: whether requests run on it is not known",
        got=f"a process, and no answer to its health check after {waited_s:.0f} s; it was taken "
        "back as it was",
        allowed="a process that answers, or none",
        fix=f"if it hangs, stop its unit (aws ssm start-session --target {node.name}, then sudo "
        f"systemctl stop {NODE_UNIT}) or end the instance; {_AGAIN}",
    )


def not_ready(node: RunningNode, target: Target, waited_s: float, trouble: str) -> StartFailed:
    """A restarted node did not serve in time."""
    runs = f"generation {node.generation}" if node.generation else "no process"
    health = "ready" if node.is_ready else "not ready"
    return StartFailed(
        f"{node.role} {node.name} does not come back",
        got=f"{runs}, {health} after {waited_s:.0f} s" + (f"; {trouble}" if trouble else ""),
        allowed=f"generation {target.generation}, ready in time (--timeout-s)",
        fix=f"mend what it says, or end the node; {_AGAIN}",
    )


def gone(node: RunningNode) -> StartFailed:
    """A node is not listed any more."""
    return StartFailed(
        f"{node.role} {node.name} is gone",
        got="no such node while it was restarted",
        allowed="a node that stays",
        fix="see why it ended; run the rollout again, it goes on with the others",
    )


def no_new_nodes(counts: str, waited_s: float, troubles: Sequence[str]) -> StartFailed:
    """New nodes did not serve in time."""
    return StartFailed(
        "the new nodes do not serve in time, the old ones do",
        got="; ".join([f"{counts} after {waited_s:.0f} s", *troubles]),
        allowed="one new node beside the old ones of each role, in time (--timeout-s)",
        fix="see what keeps them from starting; run the rollout again, it continues. New nodes "
        "that have started cost, and stay. Where the old nodes hold all the capacity there is, "
        "replace them with a pause: turnback scale down NAME --wait, then scale up",
    )


def no_room(roles: Sequence[Role]) -> BadInput:
    """No node may run beside the old ones."""
    settings = " and ".join(f"{role}.spare" for role in roles)
    return BadInput(
        "these nodes need new ones beside them, and none may run",
        got=f"at its maximum: the {' group, the '.join(roles)} group",
        allowed=f"room for one more {' and one more '.join(roles)} node while both serve",
        fix=f"raise {settings} and deploy; where capacity has no room either, end the old nodes "
        "first: turnback scale down NAME --wait, then scale up",
    )


def no_growth(nodes: Sequence[RunningNode]) -> BadInput:
    """This fleet starts no nodes."""
    return BadInput(
        "a restart cannot bring these nodes to what is deployed",
        got=", ".join(f"{node.name} of {node.pairing or 'no pairing'}" for node in nodes),
        allowed="nodes of the same image, engine and model as what is deployed",
        fix="start new nodes from it, and end these",
    )


def no_launch(group: str, kind: LaunchFailure, message: str) -> StartFailed:
    """A new node could not be launched."""
    return StartFailed(
        f"no node can be started beside the old ones, which go on serving: {kind.what}",
        got=f"{group}: {message}",
        allowed=kind.allowed,
        fix=f"{kind.fix}; then run it again. Where the old nodes hold all the capacity there is, "
        "replace them with a pause: turnback scale down NAME --wait, then scale up",
    )


def no_group(deployment: str, role: str) -> BadInput:
    """A role has no Auto Scaling group."""
    return BadInput(
        f"deployment {deployment} has no group of {role} nodes",
        got="no Auto Scaling group with its tags",
        allowed="one group of a role, as the Fleet stack makes it",
        fix="deploy the Fleet stack",
    )


def command_failed(node: RunningNode, command: str, problem: str) -> StartFailed:
    """A command on a node did not end well."""
    return StartFailed(
        f"{node.role} {node.name}: {command} failed",
        got=problem,
        allowed="an SSM agent that is online, and the units of this kit's image",
        fix=f"look at it with aws ssm start-session --target {node.name}; {_AGAIN}",
    )


def does_not_tell(node: RunningNode, problem: str) -> StartFailed:
    """A node stopped to tell what it runs, after the order was made."""
    return command_failed(node, "asking what it runs", problem)


def not_answering(nodes: Sequence[RunningNode]) -> BadInput:
    """Nodes do not tell what they run."""
    return BadInput(
        f"{len(nodes)} node(s) do not tell what they run; nothing was touched",
        got="; ".join(f"{node.name}: {node.problem}" for node in nodes),
        allowed="an answer of each running node by SSM Run Command: the order of a rollout "
        "follows from it",
        fix="wait until nodes that start are up; end nodes that hang: aws autoscaling "
        "terminate-instance-in-auto-scaling-group --no-should-decrement-desired-capacity "
        "--instance-id ID",
    )
