"""A deployment on AWS as a fleet that can be rolled out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtime.aws.clients import RolloutClients
from runtime.aws.discovery import DRAINING_TAG
from runtime.aws.machines import Machine, machines_of, rolled_groups
from runtime.aws.patience import TRIES, ask
from runtime.aws.reports import PERMISSIONS, reports_of
from runtime.aws.rollout import failures
from runtime.aws.rollout.balancer import Balancer
from runtime.aws.rollout.fleet import NodeRole, RunningNode, Target
from runtime.aws.rollout.parameters import read_targets
from runtime.aws.run_command import Outcome, RunCommand
from runtime.contract.status import NODE_UNIT, ROUTER_UNIT, NodeReport

T = TypeVar("T")

_RESTART_S = 300
_LOG_S = 30


@dataclass(slots=True)
class AwsFleet:
    """Instances of a deployment. Its callables block, each with a limit.

    Attributes:
        deployment: value of the tag `turnback:deployment`.
        clients: of its region.
        commands: on its machines.
    """

    deployment: str
    clients: RolloutClients
    commands: RunCommand

    def targets(self) -> Mapping[NodeRole, Target]:
        def read() -> dict[NodeRole, Target]:
            groups = rolled_groups(self.clients.autoscaling, self.deployment)
            return read_targets(self.clients.ssm, self.deployment, groups)

        allowed = "ssm:GetParameters and autoscaling:DescribeAutoScalingGroups"
        return self._ask(f"the parameters of {self.deployment} cannot be read", allowed, read)

    def nodes(self) -> Sequence[RunningNode]:
        return self._ask(
            f"the nodes of {self.deployment} cannot be asked", PERMISSIONS, self._nodes_now
        )

    def _nodes_now(self) -> list[RunningNode]:
        machines = machines_of(self.clients.ec2, self.deployment)
        reports, problems = self._reports([each.name for each in machines])
        balancer = self._balancer()
        return [
            _running(
                machine,
                reports[machine.name],
                problems.get(machine.name, ""),
                is_draining=balancer.is_out(machine.name)
                if machine.role == "router"
                else machine.is_draining,
            )
            for machine in machines
        ]

    def _reports(self, names: Sequence[str]) -> tuple[dict[str, NodeReport], dict[str, str]]:
        return reports_of(self.commands, names, self._comment)

    @property
    def _comment(self) -> str:
        return f"turnback rollout {self.deployment}"

    def _run(self, names: Sequence[str], command: str, timeout_s: int) -> dict[str, Outcome]:
        return self.commands.run(names, command, timeout_s=timeout_s, comment=self._comment)

    def drain(self, node: RunningNode) -> None:
        def out() -> None:
            if node.role == "router":
                self._balancer().take_out(node.name)
                return
            tag = {"Key": DRAINING_TAG, "Value": "true"}
            self.clients.ec2.create_tags(Resources=[node.name], Tags=[tag])

        allowed = "ec2:CreateTags, or elasticloadbalancing:DeregisterTargets for routers"
        self._ask(f"{node.role} {node.name} cannot be drained", allowed, out)

    def undrain(self, node: RunningNode) -> None:
        def back() -> None:
            if node.role == "router":
                self._balancer().put_in(node.name)
                return
            tags = [{"Key": DRAINING_TAG}]
            self.clients.ec2.delete_tags(Resources=[node.name], Tags=tags)

        allowed = "ec2:DeleteTags, or elasticloadbalancing:RegisterTargets for routers"
        self._ask(f"{node.role} {node.name} cannot be taken back", allowed, back)

    def running_requests(self, node: RunningNode) -> int | None:
        what = f"{node.role} {node.name} cannot be asked"
        reports, problems = self._ask(what, PERMISSIONS, lambda: self._reports([node.name]))
        report = reports[node.name]
        if node.name in problems:
            raise failures.does_not_tell(node, problems[node.name])
        if not report.generation:
            return 0  # its process has ended
        return report.running_requests

    def restart(self, node: RunningNode) -> None:
        command, what = (
            f"systemctl restart --no-block {_unit(node)}",
            f"{node.name} cannot be restarted",
        )
        outcome = self._ask(
            what,
            PERMISSIONS,
            lambda: self._run([node.name], command, _RESTART_S)[node.name],
            tries=1,  # a lost answer may be that of a restart under way
        )
        if not outcome.is_done:
            raise failures.command_failed(node, command, outcome.problem)

    def trouble(self, node: RunningNode) -> str:
        if node.problem:
            return node.problem
        command = f"journalctl --unit {_unit(node)} --lines 5 --no-pager --output cat"
        outcome = self._ask(
            f"the log of {node.name} cannot be read",
            PERMISSIONS,
            lambda: self._run([node.name], command, _LOG_S)[node.name],
        )
        return f"the end of its log: {outcome.output or outcome.problem}"

    def _balancer(self) -> Balancer:
        router = rolled_groups(self.clients.autoscaling, self.deployment).get("router")
        groups = router.target_groups if router else ()
        return Balancer(self.clients.elbv2, groups, self.commands.sleep, self.commands.clock)

    def _ask(self, what: str, permissions: str, call: Callable[[], T], tries: int = TRIES) -> T:
        return ask(what, permissions, call, self.commands.sleep, tries=tries)


def _unit(node: RunningNode) -> str:
    return ROUTER_UNIT if node.role == "router" else NODE_UNIT


def _running(
    machine: Machine, report: NodeReport, problem: str, *, is_draining: bool
) -> RunningNode:
    return RunningNode(
        name=machine.name,
        role=machine.role,
        generation=report.generation,
        ttl_s=report.ttl_s,
        lease_s=report.lease_s,
        pairing=machine.pairing,
        is_ready=report.is_ready,
        is_draining=is_draining,
        problem=problem,
    )
