"""New nodes beside the old, by the capacity of Auto Scaling groups in a pretended account."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError

from runtime.aws.clients import rollout_clients
from runtime.aws.machines import rolled_groups
from runtime.aws.rollout.aws_growth import AwsGrowth
from runtime.aws.rollout.fleet import RunningNode
from runtime.errors import BadInput
from tests.aws.fleet import activity
from tests.aws.rollout.account import Account, told

pytestmark = pytest.mark.usefixtures("account")


def test_another_image_starts_a_new_pair_first(ours: Account) -> None:
    """One more of each role, the old ones drained and ended, the capacity as before."""
    ours.deploy(480, "bb", pairing="image-2")
    report, _ = ours.roll()
    assert report.failure is None
    assert [each for each in ours.done if each.startswith("end")] == [
        *("end prefill-0", "end decode-0", "end prefill-1", "end decode-1")
    ]
    assert len(report.started) == 4
    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert {group["DesiredCapacity"] for group in groups} == {1, 2}
    assert "turnback:rollout-base" not in str(groups)
    tags = [str(machine["Tags"]) for machine in ours.machines()]
    assert sum("image-2" in each for each in tags) == 4
    assert not any("'Value': 'image-1'" in each for each in tags)


def test_running_it_again_uses_what_has_started(ours: Account) -> None:
    """The tag of the group tells how many there were; no second node is started beside it."""
    ours.deploy(480, "bb", pairing="image-2")
    ours.new_are_broken = True
    report, _ = ours.roll(ready_s=120)
    assert "out of memory" in told(report)  # what the new nodes log
    assert capacities() == {"prefill": 3, "decode": 3}
    for host in ours.hosts.values():
        host.is_broken = False
    ours.new_are_broken = False
    report, _ = ours.roll()
    assert report.failure is None
    assert len(report.ended) == 4
    assert capacities() == {"prefill": 2, "decode": 2}


def test_capacity_that_someone_has_changed_since_counts(ours: Account) -> None:
    """A tag that is out of date does not shrink a group that was scaled up."""
    tag = {
        "ResourceId": "ours-decode-image-1",
        "ResourceType": "auto-scaling-group",
        "Key": "turnback:rollout-base",
        "Value": "0",
        "PropagateAtLaunch": False,
    }
    boto3.client("autoscaling").create_or_update_tags(Tags=[tag])
    ours.deploy(480, "bb", pairing="image-2")
    report, _ = ours.roll()
    assert report.failure is None
    assert capacities() == {"prefill": 2, "decode": 2}


def test_instance_that_ends_is_none_that_has_started(ours: Account) -> None:
    """Else capacity that never came would stay asked for behind it."""
    raw = {
        "AutoScalingGroupName": "g",
        "DesiredCapacity": 3,
        "MaxSize": 3,
        "Tags": [
            {"Key": "turnback:role", "Value": "decode"},
            {"Key": "turnback:rollout-base", "Value": "2"},
        ],
        "Instances": [
            {"InstanceId": state, "LifecycleState": state}
            for state in ("InService", "Pending", "Terminating:Wait")
        ],
    }
    ours.overrides["DescribeAutoScalingGroups"] = lambda _asked: {"AutoScalingGroups": [raw]}
    with ours.answering():
        group = rolled_groups(boto3.client("autoscaling"), "ours")["decode"]
    assert group.instances == {"InService", "Pending"}
    assert group.ending == {"Terminating:Wait"}
    assert (group.base, group.wanted) == (2, 2)


def test_end_whose_answer_is_lost_is_not_asked_for_twice(ours: Account) -> None:
    """Each such call takes one off the capacity: a new node would go with the second."""
    ours.deploy(480, "bb", pairing="image-2")
    autoscaling = boto3.client("autoscaling")
    lost = iter([True])

    def shaky(asked: dict[str, Any]) -> Any:
        ours._TerminateInstanceInAutoScalingGroup(asked)
        if next(lost, False):
            with suspend(ours, "TerminateInstanceInAutoScalingGroup"):
                autoscaling.terminate_instance_in_auto_scaling_group(**asked)
            raise ReadTimeoutError(endpoint_url="https://autoscaling.invalid")

    ours.overrides["TerminateInstanceInAutoScalingGroup"] = shaky
    report, _ = ours.roll()
    assert report.failure is None
    ended = [each for each in ours.done if each.startswith("end")]
    assert len(ended) == 4 == len({*ended})
    assert capacities() == {"prefill": 2, "decode": 2}


@pytest.mark.parametrize("state", ["Terminating:Wait", "Terminated"])
def test_instance_that_ends_already_takes_nothing_off_the_capacity(
    ours: Account, state: str
) -> None:
    """A lifecycle hook may hold it for an hour."""
    with ours.answering():
        clients = rollout_clients()
        group = clients.autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"]
        for instance in (each for one in group for each in one["Instances"]):
            instance["LifecycleState"] = state
        ours.overrides["DescribeAutoScalingGroups"] = lambda _asked: {"AutoScalingGroups": group}
        growth = AwsGrowth("ours", clients, lambda _line: None, ours.clock.sleep)
        growth.end(RunningNode(ours.id_of("decode-0"), "decode", "aa"))
    assert ours.done == []


@contextmanager
def suspend(ours: Account, operation: str) -> Iterator[None]:
    """Ask moto itself for a while."""
    own = ours.overrides[operation]
    ours.overrides[operation] = lambda _asked: None
    yield
    ours.overrides[operation] = own


def capacities() -> dict[str, int]:
    """Desired capacity of the engines' groups by role."""
    found = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    names = {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in found}
    return {name.split("-")[1]: count for name, count in names.items() if "router" not in name}


def test_group_at_its_maximum_is_refused_before_anything(account: None) -> None:
    """With the setting that raises it."""
    ours = Account()
    ours.deploy(480, "aa")
    ours.group("prefill", 1, maximum=1)
    ours.group("decode", 1, maximum=2)
    ours.deploy(480, "bb", pairing="image-2")
    with pytest.raises(BadInput) as failure:
        ours.roll()
    assert failure.value.got == "at its maximum: the prefill group"
    assert "prefill.spare" in failure.value.fix
    assert ours.done == []


def failing_launch(ours: Account, message: str) -> None:
    """New instances do not come; activities say why."""
    looks: Iterator[dict[str, Any]] = iter([{"Activities": []}] * 2)
    failed = {"Activities": [activity(1, "Failed", message)]}

    def capacity(asked: dict[str, Any]) -> dict[str, Any]:
        ours.done.append(f"{asked['AutoScalingGroupName']} = {asked['DesiredCapacity']}")
        return {}

    ours.overrides["DescribeScalingActivities"] = lambda _asked: next(looks, failed)
    ours.overrides["SetDesiredCapacity"] = capacity


def base_of(ours: Account) -> None:
    """moto's groups as they would be if the capacity had been set and nothing had come."""
    client = boto3.client("autoscaling")

    def answer(asked: dict[str, Any]) -> Any:
        own = ours.overrides.pop("DescribeAutoScalingGroups")
        reply = client.describe_auto_scaling_groups(**asked)
        ours.overrides["DescribeAutoScalingGroups"] = own
        for group in reply["AutoScalingGroups"]:
            for line in ours.done:
                name, equals, count = line.partition(" = ")
                if equals and name == group["AutoScalingGroupName"]:
                    group["DesiredCapacity"] = int(count)
        return reply

    ours.overrides["DescribeAutoScalingGroups"] = answer


def test_quota_ends_it_at_once_and_the_capacity_is_taken_back(ours: Account) -> None:
    """Nothing is left that would start, and cost, later; the old pair serves."""
    ours.deploy(480, "bb", pairing="image-2")
    failing_launch(ours, "VcpuLimitExceeded - no more than 192")
    base_of(ours)
    report, _ = ours.roll()
    assert "quota" in told(report)
    assert "turnback scale down NAME" in told(report)
    assert [each for each in ours.done if "=" in each] == [
        *("ours-prefill-image-1 = 3", "ours-decode-image-1 = 3"),
        *("ours-prefill-image-1 = 2", "ours-decode-image-1 = 2"),
    ]
    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert "turnback:rollout-base" not in str(groups)
    assert ours.draining() == []


def test_missing_capacity_is_waited_for_and_told(ours: Account) -> None:
    """It may come: a node that has just ended frees its place after minutes."""
    ours.deploy(480, "bb", pairing="image-2")
    failing_launch(ours, "InsufficientInstanceCapacity - none here")
    base_of(ours)
    report, lines = ours.roll(ready_s=300)
    assert ours.clock() >= 300
    assert "InsufficientInstanceCapacity" in told(report)
    assert any("none here" in line for line in lines)
