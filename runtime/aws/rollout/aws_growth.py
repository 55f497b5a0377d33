"""New nodes beside the old, by the capacity of Auto Scaling groups."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from runtime.aws.clients import RolloutClients
from runtime.aws.groups import Activities
from runtime.aws.launch_failures import explain_launch
from runtime.aws.machines import BASE_TAG, RolledGroup, rolled_groups
from runtime.aws.patience import ask
from runtime.aws.rollout import failures
from runtime.aws.rollout.fleet import NodeRole, RunningNode
from runtime.contract.node import Role

T = TypeVar("T")

_ALLOWED = (
    "autoscaling:DescribeAutoScalingGroups, DescribeScalingActivities, SetDesiredCapacity, "
    "CreateOrUpdateTags, DeleteTags and TerminateInstanceInAutoScalingGroup"
)


@dataclass(slots=True)
class AwsGrowth:
    """Groups of a deployment, which may have one instance more for a while.

    The capacity before stands in a tag of the group until it is reached again: a rollout
    that was interrupted knows by it what it has started.

    Attributes:
        deployment: value of the tag `turnback:deployment`.
        clients: of its region.
        tell: takes what scaling activities say.
        sleep: the real one, but in tests.
        feeds: activities of the groups that have grown, by name.
        problem: the last failed launch that may succeed yet: the place of a node that has
            just ended is free after minutes.
    """

    deployment: str
    clients: RolloutClients
    tell: Callable[[str], None]
    sleep: Callable[[float], None]
    feeds: dict[str, Activities] = field(default_factory=dict)
    problem: str = ""

    def room(self, role: Role) -> int:
        group = self._group(role)
        return group.maximum - group.wanted

    def grow(self, role: Role) -> int:
        group, self.problem = self._group(role), ""
        goal = group.wanted + 1
        if group.name not in self.feeds:
            self.feeds[group.name] = self._ask(
                role, lambda: Activities(self.clients.autoscaling, group.name)
            )
        self._ask(role, lambda: self._tag(group, group.wanted))
        self._ask(role, lambda: self._set(group, goal))
        self.tell(f"{group.name}: {goal} wanted while old and new nodes serve")
        return goal

    def check(self) -> str:
        for name, feed in self.feeds.items():
            for activity in self._ask(name, feed.news):
                status = str(activity["StatusCode"])
                message = str(activity.get("StatusMessage") or activity.get("Description", ""))
                self.tell(f"{name}: {status}: {message}")
                if status != "Failed":
                    continue
                kind = explain_launch(message)
                if kind.lasting:
                    raise failures.no_launch(name, kind, message)
                self.problem = f"{name}: {kind.what}: {message}"
        return self.problem

    def give_up(self, role: Role) -> None:
        group = self._group(role)
        if group.base is not None and len(group.instances) > group.base:
            return  # a lower capacity would end an instance of Auto Scaling's choice: an old one
        if group.base is not None:
            self._ask(role, lambda: self._set(group, group.wanted))
        self._forget(role, group)

    def end(self, node: RunningNode) -> None:
        tried = False

        def once() -> None:
            """Each call takes one off the capacity, also one whose answer was lost."""
            nonlocal tried
            group = rolled_groups(self.clients.autoscaling, self.deployment).get(node.role)
            is_left = group is None or node.name not in group.instances
            if group is not None and (node.name in group.ending or (tried and is_left)):
                return
            tried = True
            self.clients.autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=node.name, ShouldDecrementDesiredCapacity=True
            )

        self._ask(node.role, once)
        group = self._group(node.role)
        if group.base is None:
            self._forget(node.role, group)

    def _group(self, role: NodeRole) -> RolledGroup:
        found = self._ask(role, lambda: rolled_groups(self.clients.autoscaling, self.deployment))
        if role not in found:
            raise failures.no_group(self.deployment, role)
        return found[role]

    def _set(self, group: RolledGroup, capacity: int) -> None:
        self.clients.autoscaling.set_desired_capacity(
            AutoScalingGroupName=group.name, DesiredCapacity=capacity, HonorCooldown=False
        )

    def _tag(self, group: RolledGroup, base: int) -> None:
        tag = _base_tag(group) | {"Value": str(base), "PropagateAtLaunch": False}
        self.clients.autoscaling.create_or_update_tags(Tags=[tag])

    def _forget(self, role: NodeRole, group: RolledGroup) -> None:
        if group.is_tagged:
            tags = [_base_tag(group)]
            self._ask(role, lambda: self.clients.autoscaling.delete_tags(Tags=tags))

    def _ask(self, subject: str, call: Callable[[], T]) -> T:
        what = f"the {subject} group of {self.deployment} cannot be changed"
        return ask(what, _ALLOWED, call, self.sleep)


def _base_tag(group: RolledGroup) -> dict[str, object]:
    return {"ResourceId": group.name, "ResourceType": "auto-scaling-group", "Key": BASE_TAG}
