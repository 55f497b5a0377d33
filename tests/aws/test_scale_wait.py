"""What happens to groups is followed until they are where they should be."""

from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError

from runtime.errors import BadInput, StartFailed
from tests.aws.fleet import Clock, Override, activity, answering_too, desired, no_price, run

pytestmark = pytest.mark.usefixtures("account")

NO_CAPACITY = "Could not launch On-Demand Instances. InsufficientInstanceCapacity - none here."


def told(*looks: list[dict[str, Any]]) -> Override:
    """Activities at each look at the decode group; the last stay. Others have none."""
    remaining = list(looks)

    def answer(asked: dict[str, Any], _real: Any) -> dict[str, Any]:
        if "decode" not in asked["AutoScalingGroupName"]:
            return {"Activities": []}
        return {"Activities": remaining.pop(0) if len(remaining) > 1 else remaining[0]}

    return answer


def never_started(_asked: dict[str, Any], real: Any) -> Any:
    """Groups as they are, but without any instance."""
    reply = real()
    for group in reply["AutoScalingGroups"]:
        group["Instances"] = []
    return reply


def test_wait_ends_when_all_nodes_are_in_service(groups: tuple[str, str]) -> None:
    """Nodes that start later are waited for; each change is told."""
    looks = iter([never_started, never_started, never_started])

    def late(asked: dict[str, Any], real: Any) -> Any:
        return next(looks, lambda _asked, ask: ask())(asked, real)

    clock = Clock()
    with answering_too(GetProducts=no_price, DescribeAutoScalingGroups=late):
        report, lines = run(wait_s=600, clock=clock)
    assert report.reached is True
    assert report.waited_s == sum(clock.slept) == 20
    assert "prefill 0 of 2 in service, decode 0 of 3 in service" in lines[-2]
    assert "prefill 2 of 2 in service, decode 3 of 3 in service" in lines[-1]


def test_starting_node_is_not_yet_there(groups: tuple[str, str]) -> None:
    """Pending and unhealthy instances count as starting, not as in service."""

    def starting(_asked: dict[str, Any], real: Any) -> Any:
        reply = real()
        for group in reply["AutoScalingGroups"]:
            for each, (state, health) in zip(
                group["Instances"],
                [("Pending", "Healthy"), ("InService", "Unhealthy"), ("InService", "Healthy")],
                strict=False,
            ):
                each["LifecycleState"], each["HealthStatus"] = state, health
        return reply

    with answering_too(GetProducts=no_price, DescribeAutoScalingGroups=starting):
        report, lines = run(wait_s=30)
    assert report.reached is False
    assert "prefill 0 of 2 in service (2 starting or ending)" in lines[-1]
    assert "decode 1 of 3 in service (2 starting or ending)" in lines[-1]


def test_missing_capacity_is_waited_for_until_time_is_up(groups: tuple[str, str]) -> None:
    """It may come; when it does not, what AWS said is told with the way out."""
    clock = Clock()  # 125 s: the last sleep is a short one
    with answering_too(
        GetProducts=no_price,
        DescribeAutoScalingGroups=never_started,
        DescribeScalingActivities=told([], [activity(1, "Failed", NO_CAPACITY)]),
    ):
        report, lines = run(wait_s=125, clock=clock)
    assert clock.now_s == 125
    assert [each.kind.word for each in report.problems] == ["capacity"]
    failure = report.failure()
    assert isinstance(failure, StartFailed)
    assert "no free capacity" in failure.what
    assert NO_CAPACITY in failure.got
    assert "turnback scale down ours" in failure.fix
    assert lines.count(f"{groups[1]}: Failed: {NO_CAPACITY}") == 1
    assert sum("in service" in line for line in lines) == 3  # at once, then once a minute


def test_lasting_failure_ends_the_wait_at_once(groups: tuple[str, str]) -> None:
    """A quota does not grow by waiting."""
    clock = Clock()
    with answering_too(
        GetProducts=no_price,
        DescribeAutoScalingGroups=never_started,
        DescribeScalingActivities=told([], [activity(1, "Failed", "VcpuLimitExceeded - 192")]),
    ):
        report, _ = run(wait_s=600, clock=clock)
    assert clock.slept == []
    assert report.reached is False
    assert [each.kind.word for each in report.problems] == ["quota"]


def test_failures_of_earlier_days_are_not_told_again(groups: tuple[str, str]) -> None:
    """What stood there before the capacity was set says nothing about now."""
    old = activity(1, "Failed", "VcpuLimitExceeded - 192")
    with answering_too(
        GetProducts=no_price,
        DescribeAutoScalingGroups=never_started,
        DescribeScalingActivities=told([old], [activity(2, "InProgress", "starting"), old]),
    ):
        report, lines = run(wait_s=10)
    assert report.problems == ()
    assert f"{groups[1]}: InProgress: starting" in lines
    assert not any("VcpuLimit" in line for line in lines)
    failure = report.failure()
    assert failure is not None
    assert "--timeout-s" in failure.fix


def test_activity_is_told_again_when_its_status_changes(groups: tuple[str, str]) -> None:
    """A launch that was in progress and then fails is a failure."""
    with answering_too(
        GetProducts=no_price,
        DescribeAutoScalingGroups=never_started,
        DescribeScalingActivities=told(
            [],
            [activity(1, "InProgress", "starting")],
            [activity(1, "Failed", "InvalidAMIID.NotFound - gone")],
        ),
    ):
        report, _ = run(wait_s=600)
    assert [each.kind.word for each in report.problems] == ["image"]
    assert report.waited_s == 10


def test_suspended_launches_end_the_wait(groups: tuple[str, str]) -> None:
    """A group whose Launch process is suspended starts nothing, and says nothing."""

    def suspended(asked: dict[str, Any], real: Any) -> Any:
        reply = never_started(asked, real)
        reply["AutoScalingGroups"][0]["SuspendedProcesses"] = [{"ProcessName": "Launch"}]
        return reply

    with answering_too(GetProducts=no_price, DescribeAutoScalingGroups=suspended):
        report, _ = run(wait_s=600)
    assert [each.kind.word for each in report.problems] == ["suspended"]


@pytest.mark.parametrize(("silent", "ends"), [(5, True), (6, False)])
def test_silence_of_aws_is_borne_a_few_times(
    groups: tuple[str, str], silent: int, ends: bool
) -> None:
    """Unanswered questions do not end a wait of half an hour, but not without limit."""
    left = [None, *[ConnectTimeoutError(endpoint_url="https://autoscaling.invalid")] * silent]

    def flaky(_asked: dict[str, Any], real: Any) -> Any:
        problem = left.pop(0) if left else None
        if problem is not None:
            raise problem
        return real()

    with answering_too(GetProducts=no_price, DescribeAutoScalingGroups=flaky):
        if ends:
            assert run(wait_s=600)[0].reached is True
        else:
            with pytest.raises(BadInput, match="cannot be scaled"):
                run(wait_s=600)


def test_silence_is_not_taken_for_success(groups: tuple[str, str]) -> None:
    """Nodes that were there before the capacity was set are looked at again."""
    left = [None, ConnectTimeoutError(endpoint_url="https://autoscaling.invalid")]

    def flaky(_asked: dict[str, Any], real: Any) -> Any:
        problem = left.pop(0) if left else None
        if problem is not None:
            raise problem
        return real()

    with answering_too(GetProducts=no_price):
        run()
    with answering_too(GetProducts=no_price, DescribeAutoScalingGroups=flaky):
        report, _ = run(wait_s=600)
    assert (report.reached, report.waited_s) == (True, 10)


def test_down_ends_all_nodes(groups: tuple[str, str]) -> None:
    """Every group goes to 0 and is waited for; no price is asked for."""
    with answering_too(GetProducts=no_price):
        run()
    with answering_too() as called:
        report, _ = run("down", wait_s=600)
    assert set(desired().values()) == {0}
    assert report.reached is True
    assert "GetProducts" not in called


def test_down_waits_for_nodes_that_are_still_ending(groups: tuple[str, str]) -> None:
    """An instance that is being terminated still costs, so it is not gone."""

    def ending(_asked: dict[str, Any], real: Any) -> Any:
        reply = real()
        for group in reply["AutoScalingGroups"]:
            group["Instances"] = [{"LifecycleState": "Terminating", "HealthStatus": "Healthy"}]
        return reply

    with answering_too(DescribeAutoScalingGroups=ending):
        report, _ = run("down", wait_s=20)
    assert report.reached is False
    failure = report.failure()
    assert failure is not None
    assert "scale down" not in failure.fix
