"""Start and end a deployment's nodes: set its groups' capacity and follow what happens."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.clients import ScaleClients
from runtime.aws.discovery import DEPLOYMENT_TAG, ROLE_TAG
from runtime.aws.groups import Activities, Group, goals_of, groups_of
from runtime.aws.launch_failures import LaunchFailure, explain_launch
from runtime.aws.prices import on_demand_usd_per_hour
from runtime.contract.node import Role
from runtime.errors import BadInput, StartFailed

_POLL_S = 10.0
_HEARTBEAT_S = 60.0
_MAX_SILENT_POLLS = 5
"""Questions in a row that AWS may leave unanswered before the wait is given up."""

_SUSPENDED = LaunchFailure(
    "suspended",
    "the group's Launch process is suspended",
    "a group that may launch",
    "aws autoscaling resume-processes --scaling-processes Launch --auto-scaling-group-name NAME",
    lasting=True,
)

Action = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a group has not what it was asked for."""

    group: str
    kind: LaunchFailure
    message: str


@dataclass(frozen=True, slots=True)
class ScaleReport:
    """What came of it.

    Attributes:
        deployment, action: as asked.
        groups: as last seen.
        goals: desired capacity by group name.
        usd_per_hour: of the nodes asked for, at the on-demand list price; None: not known.
        reached: whether every group has its goal; None when it was not waited for.
        problems: the last of each group that has not.
        waited_s: how long.
    """

    deployment: str
    action: Action
    groups: tuple[Group, ...]
    goals: Mapping[str, int]
    usd_per_hour: float | None
    reached: bool | None = None
    problems: tuple[Problem, ...] = ()
    waited_s: float = 0.0

    def failure(self) -> StartFailed | None:
        """The error of a wait that did not end well."""
        if self.reached is not False:
            return None
        counts = ", ".join(_count(group, self.goals) for group in self.groups)
        kinds = list(dict.fromkeys(problem.kind for problem in self.problems))
        told = "; ".join(f"{each.group}: {each.message}" for each in self.problems)
        again = f"; turnback scale down {self.deployment} stops trying and paying"
        return StartFailed(
            "; ".join(kind.what for kind in kinds)
            or f"the nodes of {self.deployment} are not where they should be in time",
            got=f"after {self.waited_s:.0f} s: {counts}" + (f"; {told}" if told else ""),
            allowed="; ".join(kind.allowed for kind in kinds) or "every group at its goal in time",
            fix=("; ".join(kind.fix for kind in kinds) or "wait longer with --timeout-s")
            + (again if self.action == "up" else ""),
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """How a wait passes.

    Attributes:
        timeout_s: the longest wait.
        sleep, clock: the real ones, but in tests.
    """

    timeout_s: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def scale(
    deployment: str,
    action: Action,
    clients: ScaleClients,
    tell: Callable[[str], None],
    *,
    counts: Mapping[Role, int | None] | None = None,
    pace: Pace | None = None,
) -> ScaleReport:
    """Set the desired capacity of a deployment's groups, and wait for it if asked to.

    Args:
        deployment: value of the groups' tag `turnback:deployment`.
        action: `down` wants no node of any role.
        clients: of the deployment's region.
        tell: takes progress, a line at a time.
        counts: nodes of each role, for `up`; None or left out: the group's own.
        pace: of the wait; None: do not wait.

    Raises:
        BadInput: no such groups, counts beyond their bounds, or AWS refuses.
    """
    try:
        groups = groups_of(clients.autoscaling, deployment)
        if not groups:
            raise _no_groups(deployment, clients)
        goals, usd_per_hour = {group.name: 0 for group in groups}, None
        if action == "up":
            goals = goals_of(groups, counts or {})
            usd_per_hour = _usd_per_hour(clients, groups, goals)
            tell(_price_line(usd_per_hour))
        report = ScaleReport(deployment, action, tuple(groups), goals, usd_per_hour)
        feeds = {name: Activities(clients.autoscaling, name) for name in goals} if pace else {}
        _set(clients, goals, tell)
        return _Wait(report, clients, feeds, tell, pace).end() if pace else report
    except (BotoCoreError, ClientError) as error:
        raise _refused(deployment, error) from error


def _set(clients: ScaleClients, goals: Mapping[str, int], tell: Callable[[str], None]) -> None:
    for name, goal in goals.items():
        clients.autoscaling.set_desired_capacity(
            AutoScalingGroupName=name, DesiredCapacity=goal, HonorCooldown=False
        )
        tell(f"{name}: {goal} wanted")


@dataclass(slots=True)
class _Wait:
    """A wait for groups to reach their goals."""

    report: ScaleReport
    clients: ScaleClients
    feeds: Mapping[str, Activities]
    tell: Callable[[str], None]
    pace: Pace
    problems: dict[str, Problem] = field(default_factory=dict)
    last_counts: str = ""
    told_at_s: float = 0.0

    def end(self) -> ScaleReport:
        """Poll until all is reached, nothing can be reached, or time is up."""
        began_s, silent = self.pace.clock(), 0
        self.told_at_s = began_s
        while True:
            try:
                groups = groups_of(self.clients.autoscaling, self.report.deployment)
                self._read_activities()
                silent = 0
            except (BotoCoreError, ClientError) as error:
                silent += 1
                if silent > _MAX_SILENT_POLLS:
                    raise
                groups = list(self.report.groups)
                self.tell(f"AWS did not answer, asking again: {error}")
            waited_s = self.pace.clock() - began_s
            self.report = replace(self.report, groups=tuple(groups), waited_s=waited_s)
            self._tell_counts(waited_s)
            missing = self._missing()
            if not missing and not silent:
                return replace(self.report, reached=True)
            open_problems = tuple(
                problem for name in missing if (problem := self._problem(name)) is not None
            )
            if waited_s >= self.pace.timeout_s or any(each.kind.lasting for each in open_problems):
                return replace(self.report, reached=False, problems=open_problems)
            self.pace.sleep(min(_POLL_S, self.pace.timeout_s - waited_s))

    def _read_activities(self) -> None:
        for name, feed in self.feeds.items():
            for activity in feed.news():
                status = str(activity["StatusCode"])
                message = str(activity.get("StatusMessage") or activity.get("Description", ""))
                self.tell(f"{name}: {status}: {message}")
                if status == "Failed":
                    self.problems[name] = Problem(name, explain_launch(message), message)

    def _missing(self) -> list[str]:
        """Groups that have more or fewer nodes than wanted, or are gone."""
        seen = {group.name: group for group in self.report.groups}
        return [
            name
            for name, goal in self.report.goals.items()
            if name not in seen or (seen[name].in_service, seen[name].instances) != (goal, goal)
        ]

    def _problem(self, name: str) -> Problem | None:
        suspended = any(
            group.launches_suspended and group.in_service < self.report.goals[name]
            for group in self.report.groups
            if group.name == name
        )
        if suspended:
            return Problem(name, _SUSPENDED, "Launch is among its suspended processes")
        return self.problems.get(name)

    def _tell_counts(self, waited_s: float) -> None:
        """When they change, and once a minute."""
        counts = ", ".join(_count(group, self.report.goals) for group in self.report.groups)
        now_s = self.pace.clock()
        if counts != self.last_counts or now_s - self.told_at_s >= _HEARTBEAT_S:
            self.tell(f"{waited_s:4.0f} s  {counts}")
            self.last_counts, self.told_at_s = counts, now_s


def _count(group: Group, goals: Mapping[str, int]) -> str:
    leaving = group.instances - group.in_service
    rest = f" ({leaving} starting or ending)" if leaving else ""
    return f"{group.role} {group.in_service} of {goals.get(group.name, 0)} in service{rest}"


def _usd_per_hour(
    clients: ScaleClients, groups: Sequence[Group], goals: Mapping[str, int]
) -> float | None:
    """The list price of what is wanted; None where it cannot be told, which stops nothing."""
    total = 0.0
    try:
        for group in groups:
            goal = goals[group.name]
            if goal == 0:
                continue
            data = _template_data(clients.ec2, group)
            market = data.get("InstanceMarketOptions", {}).get("MarketType")
            if market is not None:  # a Capacity Block is paid in advance, spot is not listed
                return None
            region = str(clients.ec2.meta.region_name)
            rate = on_demand_usd_per_hour(clients.pricing, str(data["InstanceType"]), region)
            if rate is None:
                return None
            total += rate * goal
    except (BotoCoreError, ClientError, KeyError, ValueError):
        return None
    return total


def _template_data(ec2: Any, group: Group) -> dict[str, Any]:
    asked: dict[str, Any] = dict(group.template)
    asked["Versions"] = [asked.pop("Version", "$Default")]
    versions = ec2.describe_launch_template_versions(**asked)["LaunchTemplateVersions"]
    return dict(versions[0]["LaunchTemplateData"]) if versions else {}


def _price_line(usd_per_hour: float | None) -> str:
    if usd_per_hour is None:
        return "price: unknown; turnback preflight says why"
    return f"price: {usd_per_hour:.2f} USD per hour at the on-demand list price"


def _no_groups(deployment: str, clients: ScaleClients) -> BadInput:
    return BadInput(
        f"deployment {deployment} has no groups of nodes in {clients.ec2.meta.region_name}",
        got=f"no Auto Scaling group with tag {DEPLOYMENT_TAG}={deployment} and a node's {ROLE_TAG}",
        allowed="the name of a deployment whose Fleet stack is deployed in this region",
        fix="give the right name and --region, or deploy first",
    )


def _refused(deployment: str, error: Exception) -> BadInput:
    return BadInput(
        f"the groups of deployment {deployment} cannot be scaled",
        got=str(error),
        allowed="credentials with autoscaling:DescribeAutoScalingGroups, "
        "autoscaling:DescribeScalingActivities and autoscaling:SetDesiredCapacity",
        fix="set credentials and region, or a role that may do this",
    )
