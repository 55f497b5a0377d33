"""Idle nodes are ended, and nodes that may be busy are not."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner, Result

from runtime.cli import app
from tests.aws.fleet import desired
from tests.aws.rollout.account import Account


@pytest.fixture
def ours(account: None) -> Account:
    """A pair that has run for a day, and two routers, idle for 40 and for 90 minutes."""
    made = Account()
    made.deploy(480, "aa")
    for role, count in (("prefill", 1), ("decode", 1), ("router", 2)):
        made.group(role, count)
    started(made, timedelta(days=1))
    idle(made, "router-0", 40 * 60)
    idle(made, "router-1", 90 * 60)
    return made


def started(ours: Account, ago: timedelta) -> None:
    """When the engines were."""
    ours.overrides.pop("DescribeInstances", None)
    reservations = [{"Instances": ours.machines()}]
    for instance in reservations[0]["Instances"]:
        instance["LaunchTime"] = datetime.now(UTC) - ago
    ours.overrides["DescribeInstances"] = lambda _asked: {"Reservations": reservations}


def idle(ours: Account, name: str, idle_s: float | None) -> None:
    """Since when a router is; None: it does not answer."""
    host = ours.hosts[ours.id_of(name)]
    host.report = host.report.model_copy(update={"idle_s": idle_s})


def down(ours: Account, *words: str) -> Result:
    """Scale down when nothing ran for 30 minutes."""
    with ours.answering():
        return CliRunner().invoke(app, ["scale", "down", "ours", "--when-idle", "30", *words])


def engines() -> set[int]:
    """Capacity asked of the engines' groups."""
    return {count for name, count in desired().items() if "router" not in name}


def test_idle_nodes_are_ended(ours: Account) -> None:
    """Every router has been idle for long enough; routers themselves stay."""
    result = down(ours)
    assert result.exit_code == 0, result.output
    assert "idle for 40.0 min: scaling down" in result.stdout
    assert engines() == {0}
    assert sum(desired().values()) == 2


def test_turn_on_any_router_keeps_the_nodes(ours: Account) -> None:
    """The one that served last counts; it is no error."""
    idle(ours, "router-1", 20 * 60)
    result = down(ours)
    assert result.exit_code == 0
    assert "idle for 20.0 min: not yet 30 min, nothing is ended" in result.stdout
    assert engines() == {1}


def test_nodes_that_have_just_started_are_kept(ours: Account) -> None:
    """Else a timer would end them before they have served anybody."""
    started(ours, timedelta(minutes=5))
    result = down(ours, "--json")
    told: dict[str, Any] = json.loads(result.stdout)
    assert 4.9 < told["idle_min"] < 6
    assert told["groups"] == []
    assert engines() == {1}


@pytest.mark.parametrize("reached", ["pending", "asked for"])
def test_nodes_that_are_still_to_come_are_kept(ours: Account, reached: str) -> None:
    """A pending one beside old ones, and one that has no instance yet: someone just wants it."""
    if reached == "pending":
        asked = ours.overrides["DescribeInstances"]({})["Reservations"][0]["Instances"]
        for instance in asked:
            if instance["InstanceId"] == ours.id_of("decode-0"):
                instance["State"] = {"Name": "pending"}  # its LaunchTime is a day ago all the same
        ours.overrides["DescribeInstances"] = by_state(asked)
    else:
        ours.overrides["DescribeAutoScalingGroups"] = one_more(boto3.client("autoscaling"))
    result = down(ours)
    assert "idle for 0.0 min: not yet 30 min" in result.stdout
    assert engines() == {1}


def by_state(instances: list[dict[str, Any]]) -> Any:
    """DescribeInstances with its filter of states."""

    def answer(asked: dict[str, Any]) -> Any:
        states = asked["Filters"][-1]["Values"]
        found = [each for each in instances if each["State"]["Name"] in states]
        return {"Reservations": [{"Instances": found}]}

    return answer


def one_more(autoscaling: Any) -> Any:
    """The groups, of which the prefill group waits for its instance."""
    groups = autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    for group in groups:
        if "prefill" in group["AutoScalingGroupName"]:
            group["Instances"] = []
    return lambda _asked: {"AutoScalingGroups": groups}


@pytest.mark.parametrize("problem", ["silent", "offline"])
def test_router_that_does_not_tell_keeps_the_nodes(ours: Account, problem: str) -> None:
    """It may serve right now."""
    if problem == "silent":
        idle(ours, "router-1", None)
    else:
        ours.hosts[ours.id_of("router-1")].is_online = False
    result = down(ours)
    assert result.exit_code == 2
    assert ours.id_of("router-1") in result.stderr
    assert "nothing was ended" in result.stderr
    assert engines() == {1}


def test_deployment_without_routers_is_not_idle_for_certain(account: None) -> None:
    """Someone may speak to its engines directly."""
    ours = Account()
    ours.deploy(480, "aa")
    ours.group("prefill", 1)
    ours.group("decode", 1)
    result = down(ours)
    assert result.exit_code == 2
    assert "no running router" in result.stderr
    assert engines() == {1}


def test_up_is_never_when_idle() -> None:
    """The word means nothing there."""
    result = CliRunner().invoke(app, ["scale", "up", "ours", "--when-idle", "30"])
    assert result.exit_code == 2
    assert "is for down" in result.stderr
