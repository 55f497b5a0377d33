"""A deployment's Auto Scaling groups, and what they do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from runtime.aws.discovery import DEPLOYMENT_TAG, ROLE_TAG
from runtime.contract.node import Role
from runtime.errors import BadInput

COUNT_TAG = "turnback:count"
"""Of a group: how many nodes `turnback scale up` wants when it is not told."""

ROLES: tuple[Role, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Group:
    """An Auto Scaling group.

    Attributes:
        name: AWS's.
        role: of its nodes.
        minimum, maximum: bounds of the desired capacity.
        desired: capacity asked for now.
        count_tag: value of the tag `turnback:count`; empty without one.
        instances: of any state, also starting and ending ones.
        in_service: those that are healthy and in service.
        launches_suspended: whether its Launch process is.
        template: of its instances, as DescribeLaunchTemplateVersions takes it.
    """

    name: str
    role: Role
    minimum: int
    maximum: int
    desired: int
    count_tag: str
    instances: int
    in_service: int
    launches_suspended: bool
    template: Mapping[str, str]


def groups_of(autoscaling: Any, deployment: str) -> list[Group]:
    """The groups of prefill and decode nodes, prefill first.

    Raises:
        BotoCoreError, ClientError: AWS does not answer.
    """
    pages = autoscaling.get_paginator("describe_auto_scaling_groups").paginate(
        Filters=[{"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]}]
    )
    found = [
        group
        for page in pages
        for raw in page["AutoScalingGroups"]
        if (group := _group(raw)) is not None
    ]
    return sorted(found, key=lambda group: (ROLES.index(group.role), group.name))


def _group(raw: Mapping[str, Any]) -> Group | None:
    """None for a group of another role, such as routers."""
    tags = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
    if tags.get(ROLE_TAG) not in ROLES:
        return None
    instances = raw.get("Instances", ())
    return Group(
        name=raw["AutoScalingGroupName"],
        role=cast(Role, tags[ROLE_TAG]),
        minimum=raw["MinSize"],
        maximum=raw["MaxSize"],
        desired=raw["DesiredCapacity"],
        count_tag=tags.get(COUNT_TAG, ""),
        instances=len(instances),
        in_service=sum(
            each["LifecycleState"] == "InService" and each["HealthStatus"] == "Healthy"
            for each in instances
        ),
        launches_suspended=any(
            process["ProcessName"] == "Launch" for process in raw.get("SuspendedProcesses", ())
        ),
        template=_template(raw),
    )


def _template(raw: Mapping[str, Any]) -> dict[str, str]:
    mixed = raw.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    named = raw.get("LaunchTemplate") or mixed.get("LaunchTemplateSpecification") or {}
    keys = ("LaunchTemplateId", "LaunchTemplateName", "Version")
    return {key: str(named[key]) for key in keys if key in named}


def goals_of(groups: Sequence[Group], counts: Mapping[Role, int | None]) -> dict[str, int]:
    """The capacity that each group shall have, by its name.

    Args:
        groups: of one deployment.
        counts: nodes wanted of each role; None: the group's tag, else its maximum.

    Raises:
        BadInput: every count that a group cannot have, at once.
    """
    goals, wrong, allowed = {}, [], []
    for role in ROLES:
        mine = [group for group in groups if group.role == role]
        if len(mine) != 1:
            wrong.append(f"{role}: {', '.join(group.name for group in mine) or 'no group'}")
            allowed.append(f"{role}: one group")
            continue
        group = mine[0]
        wanted, source = counts.get(role), f"--{role}"
        if wanted is None and group.count_tag:
            source = f"tag {COUNT_TAG} of {group.name}"
            wanted = int(group.count_tag) if group.count_tag.isdecimal() else -1
        goal = group.maximum if wanted is None else wanted
        if not group.minimum <= goal <= group.maximum:
            told = group.count_tag if goal < 0 else goal
            wrong.append(f"{source} = {told}")
            allowed.append(f"{role}: {group.minimum} to {group.maximum}")
        goals[group.name] = goal
    if wrong:
        raise BadInput(
            "the groups cannot be scaled so",
            got="; ".join(wrong),
            allowed="; ".join(allowed),
            fix="want other counts, or set them in deployment.toml and deploy again",
        )
    return goals


class Activities:
    """What a group's scaling activities tell that was not there when this was made."""

    def __init__(self, autoscaling: Any, group: str) -> None:
        self._autoscaling, self._group = autoscaling, group
        self._seen: set[tuple[str, str]] = set()
        self.news()

    def news(self) -> list[dict[str, Any]]:
        """Activities that are new or changed, oldest first.

        By id and status, not by time: this machine's clock may differ from AWS's.
        """
        # The newest 100 stand on the first page; a group makes a handful between two looks.
        reply = self._autoscaling.describe_scaling_activities(
            AutoScalingGroupName=self._group, MaxRecords=100
        )
        fresh = []
        for activity in reversed(reply["Activities"]):
            key = (str(activity["ActivityId"]), str(activity["StatusCode"]))
            if key not in self._seen:
                self._seen.add(key)
                fresh.append(activity)
        return fresh
