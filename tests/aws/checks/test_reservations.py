"""Capacity Reservations and Capacity Blocks against the plan."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runtime.aws.checks.finding import Finding
from runtime.aws.checks.reservations import check_reservation
from runtime.aws.plan import RolePlan
from tests.aws.stubs import Answer, answering, fleet_plan, role_plan

NOW = datetime(2027, 1, 10, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
GROUP_ARN = "arn:aws:ec2:us-west-2:111122223333:placement-group/mine"


def held(**changes: Any) -> dict[str, Any]:
    """An active reservation of two p5en, as EC2 tells it, but for the changes."""
    fields = {
        "CapacityReservationId": "cr-1",
        "State": "active",
        "AvailabilityZone": "us-west-2b",
        "AvailabilityZoneId": "usw2-az2",
        "InstanceType": "p5en.48xlarge",
        "InstancePlatform": "Linux/UNIX",
        "Tenancy": "default",
        "TotalInstanceCount": 2,
        "AvailableInstanceCount": 2,
        "EndDateType": "unlimited",
        "ReservationType": "default",
    }
    return fields | changes


def block(**changes: Any) -> dict[str, Any]:
    """The same as a Capacity Block that ends in a day."""
    fields = {"ReservationType": "capacity-block", "EndDateType": "limited", "EndDate": NOW + DAY}
    return held(**(fields | changes))


def roles(**changes: Any) -> list[RolePlan]:
    """A prefill and a decode node out of `cr-1`."""
    fields = {"capacity": "reservation", "reservation_id": "cr-1"} | changes
    return [role_plan("prefill", **fields), role_plan("decode", **fields)]


def block_roles(**changes: Any) -> list[RolePlan]:
    """The same out of a Capacity Block whose end is known."""
    return roles(**({"capacity": "capacity_block", "block_end": NOW + DAY} | changes))


def asked(
    reservation: dict[str, Any], wanted: list[RolePlan], **plan: Any
) -> dict[str, list[Finding]]:
    """Findings by check."""
    answer = Answer(
        "describe_capacity_reservations",
        {"CapacityReservations": [reservation]},
        {"CapacityReservationIds": ["cr-1"]},
    )
    with answering("ec2", answer) as ec2:
        findings = check_reservation(ec2, fleet_plan(*wanted, **plan), wanted, NOW)
    return {
        name: [each for each in findings if each.check == name]
        for name in dict.fromkeys(each.check for each in findings)
    }


def test_what_fits_passes() -> None:
    """Roles that want the same are told once."""
    for findings in (asked(held(), roles()), asked(block(), block_roles())):
        assert list(findings) == [
            "reservation state",
            "reservation size",
            "reservation match",
            "placement group",
            "reservation end",
        ]
        assert [each.status for [each] in findings.values()] == ["pass"] * 5


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("active", "pass"),
        ("scheduled", "warn"),
        ("payment-pending", "warn"),
        ("assessing", "warn"),
        ("delayed", "warn"),
        ("pending", "warn"),
        ("expired", "fail"),
        ("cancelled", "fail"),
        ("failed", "fail"),
        ("payment-failed", "fail"),
        ("unsupported", "fail"),
        ("unavailable", "fail"),
    ],
)
def test_state(state: str, status: str) -> None:
    """What can still become active warns, with its beginning; what has ended fails."""
    [finding] = asked(block(State=state, StartDate=NOW), block_roles())["reservation state"]
    assert finding.status == status
    assert finding.evidence.startswith(state)
    assert ("begins 2027-01-10 12:00 UTC" in finding.evidence) is (status == "warn")


def test_active_reservation_that_cannot_be_launched_into_fails() -> None:
    """EC2 tells it beside the state."""
    [finding] = asked(held(LaunchStatus="unlaunchable"), roles())["reservation state"]
    assert (finding.status, "unlaunchable" in finding.evidence) == ("fail", True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"AvailabilityZone": "us-west-2a", "AvailabilityZoneId": "usw2-az1"},
            "zone is us-west-2a",
        ),
        ({"InstanceType": "p5.48xlarge"}, "type is p5.48xlarge, wanted p5en.48xlarge"),
        ({"InstancePlatform": "Windows"}, "platform is Windows"),
        ({"Tenancy": "dedicated"}, "tenancy is dedicated"),
        ({"ReservationType": "capacity-block"}, "kind is capacity_block, wanted reservation"),
    ],
)
def test_difference_fails(change: dict[str, Any], told: str) -> None:
    """Zone, type, platform, tenancy and kind must be those of the nodes."""
    [finding] = asked(held(**change), roles())["reservation match"]
    assert finding.status == "fail"
    assert told in finding.evidence


def test_zone_may_be_an_id() -> None:
    """The plan's zone is compared with name and id."""
    [finding] = asked(held(), roles(), availability_zone="usw2-az2")["reservation match"]
    assert finding.status == "pass"


def test_each_role_is_compared() -> None:
    """One role of the right type does not hide another of a wrong one."""
    wanted = [*roles(), *roles(instance_type="p5.48xlarge")[1:]]
    statuses = [each.status for each in asked(held(), wanted)["reservation match"]]
    assert statuses == ["pass", "fail"]


@pytest.mark.parametrize(
    ("total", "free", "state", "status"),
    [
        (2, 2, "active", "pass"),
        (2, 1, "active", "warn"),
        (1, 1, "active", "fail"),
        (2, 0, "scheduled", "pass"),
    ],
)
def test_size(total: int, free: int, state: str, status: str) -> None:
    """All roles together must fit; what is in use may be theirs; before it begins none is free."""
    reservation = block(State=state, TotalInstanceCount=total, AvailableInstanceCount=free)
    [finding] = asked(reservation, block_roles())["reservation size"]
    assert finding.status == status
    assert "2 wanted" in finding.evidence


@pytest.mark.parametrize(
    ("own", "planned", "status", "fix"),
    [
        ("", "", "pass", ""),
        (GROUP_ARN, "mine", "pass", ""),
        (GROUP_ARN, GROUP_ARN, "pass", ""),
        (GROUP_ARN, "other", "fail", f"set placement_group to {GROUP_ARN}"),
        (GROUP_ARN, "", "fail", f"set placement_group to {GROUP_ARN}"),
        ("", "mine", "fail", "leave placement_group out"),
    ],
)
def test_placement_group(own: str, planned: str, status: str, fix: str) -> None:
    """Nodes are launched into the reservation's own group, or into none where it has none."""
    reservation = held(PlacementGroupArn=own) if own else held()
    [finding] = asked(reservation, roles(placement_group=planned))["placement group"]
    assert (finding.status, finding.fix) == (status, fix)


@pytest.mark.parametrize(
    ("left", "said", "status"),
    [
        (DAY, DAY, "pass"),
        (timedelta(hours=1), timedelta(hours=1), "fail"),
        (-DAY, -DAY, "fail"),
        (DAY, 2 * DAY, "fail"),
        (2 * DAY, DAY, "warn"),
    ],
)
def test_end_of_a_block(left: timedelta, said: timedelta, status: str) -> None:
    """Its last hour serves nobody; an end that is wrong in the settings scales in too late."""
    reservation = block(EndDate=NOW + left)
    [finding] = asked(reservation, block_roles(block_end=NOW + said))["reservation end"]
    assert finding.status == status


def test_reservation_with_an_end_warns() -> None:
    """Nothing scales its nodes in, so the end is worth a look."""
    reservation = held(EndDateType="limited", EndDate=NOW + DAY)
    [finding] = asked(reservation, roles())["reservation end"]
    assert (finding.status, "in 24.0 h" in finding.evidence) == ("warn", True)


@pytest.mark.parametrize("error", ["InvalidCapacityReservationId.NotFound", ""])
def test_missing_reservation_fails(error: str) -> None:
    """Whether EC2 refuses the id or lists nothing."""
    answer = Answer("describe_capacity_reservations", {"CapacityReservations": []}, None, error)
    with answering("ec2", answer) as ec2:
        [finding] = check_reservation(ec2, fleet_plan(*roles()), roles(), NOW)
    assert (finding.check, finding.status) == ("reservation state", "fail")
    assert "us-west-2" in finding.evidence
