"""A deployment's instances and groups, routers included."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from runtime.aws.discovery import DEPLOYMENT_TAG, DRAINING_TAG, GENERATION_TAG, ROLE_TAG
from runtime.aws.rollout.fleet import NodeRole
from runtime.contract.status import MACHINE_ROLES
from runtime.errors import BadInput

BASE_TAG = "turnback:rollout-base"
"""Of a group, while a rollout has one node more started: the capacity before."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance.

    Attributes:
        name: its id.
        role: of its tag.
        pairing: of its tag `turnback:generation`; empty for routers.
        is_draining: of its tag `turnback:draining`.
        launched_at: by AWS's clock.
        is_pending: whether AWS starts it just now.
    """

    name: str
    role: NodeRole
    pairing: str
    is_draining: bool
    launched_at: datetime
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class RolledGroup:
    """An Auto Scaling group.

    Attributes:
        name: AWS's.
        desired, maximum: instances asked for, and most of them.
        instances: ids of those that start or serve.
        ending: ids of those that end.
        pairing: that new instances get.
        base: capacity before a rollout had one more started; None: there is not one more.
        is_tagged: whether a tag tells of such a capacity, also where it is out of date.
        target_groups: ARNs of load balancer targets that its instances join.
    """

    name: str
    desired: int
    maximum: int
    instances: frozenset[str]
    ending: frozenset[str]
    pairing: str
    base: int | None
    is_tagged: bool
    target_groups: tuple[str, ...]

    @property
    def wanted(self) -> int:
        """Capacity when no rollout is under way."""
        return self.desired if self.base is None else self.base


def machines_of(ec2: Any, deployment: str, states: Sequence[str] = ("running",)) -> list[Machine]:
    """Instances in these states, by role and id.

    Raises:
        BotoCoreError, ClientError: AWS does not answer.
    """
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[
            {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]},
            {"Name": f"tag:{ROLE_TAG}", "Values": [*MACHINE_ROLES]},
            {"Name": "instance-state-name", "Values": [*states]},
        ]
    )
    found = [
        _machine(instance)
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]
    return sorted(found, key=lambda each: (MACHINE_ROLES.index(each.role), each.name))


def _machine(instance: Mapping[str, Any]) -> Machine:
    tags = _tags(instance)
    role = cast(NodeRole, tags[ROLE_TAG])
    return Machine(
        name=str(instance["InstanceId"]),
        role=role,
        pairing="" if role == "router" else tags.get(GENERATION_TAG, ""),
        is_draining=tags.get(DRAINING_TAG) == "true",
        launched_at=instance["LaunchTime"],
        is_pending=instance["State"]["Name"] == "pending",
    )


def rolled_groups(autoscaling: Any, deployment: str) -> dict[NodeRole, RolledGroup]:
    """The group of each role that has one.

    Raises:
        BadInput: a role has several.
        BotoCoreError, ClientError: AWS does not answer.
    """
    pages = autoscaling.get_paginator("describe_auto_scaling_groups").paginate(
        Filters=[{"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]}]
    )
    raw = [group for page in pages for group in page["AutoScalingGroups"]]
    found: dict[NodeRole, RolledGroup] = {}
    for group in raw:
        role = cast(NodeRole, _tags(group).get(ROLE_TAG, ""))
        if role in found:
            raise _several(deployment, role, raw)
        if role in MACHINE_ROLES:
            found[role] = _group(group)
    return found


def _group(raw: Mapping[str, Any]) -> RolledGroup:
    tags = _tags(raw)
    told = tags.get(BASE_TAG, "")
    base = int(told) if told.isdecimal() else None
    if base is not None and raw["DesiredCapacity"] != base + 1:
        base = None  # not asked for yet, ended already, or scaled by someone since
    ending = {
        each["InstanceId"]
        for each in raw.get("Instances", ())
        if each["LifecycleState"].startswith("Terminat")
    }
    return RolledGroup(
        name=str(raw["AutoScalingGroupName"]),
        desired=raw["DesiredCapacity"],
        maximum=raw["MaxSize"],
        instances=frozenset(each["InstanceId"] for each in raw.get("Instances", ())) - ending,
        ending=frozenset(ending),
        pairing=tags.get(GENERATION_TAG, ""),
        base=base,
        is_tagged=told != "",
        target_groups=tuple(raw.get("TargetGroupARNs", ())),
    )


def _tags(raw: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}


def _several(deployment: str, role: str, raw: list[dict[str, Any]]) -> BadInput:
    names = [each["AutoScalingGroupName"] for each in raw if _tags(each).get(ROLE_TAG) == role]
    return BadInput(
        f"deployment {deployment} has several groups of {role} nodes",
        got=", ".join(names),
        allowed="one group of a role",
        fix=f"delete the groups that its stacks did not make, or their tag {DEPLOYMENT_TAG}",
    )
