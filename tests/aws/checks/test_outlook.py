"""Supportability and price."""

import pytest

from runtime.aws.checks.outlook import check_price, check_supportability
from tests.aws.stubs import Answer, answering, fleet_plan, product, role_plan

P5EN = "p5en.48xlarge"
ZONES = Answer(
    "describe_availability_zones",
    {"AvailabilityZones": [{"ZoneName": "us-west-2b", "ZoneId": "usw2-az1"}]},
)


@pytest.mark.parametrize(
    ("score", "status"),
    [("high", "pass"), ("medium", "warn"), ("low", "warn"), ("unsupported", "fail")],
)
def test_score(score: str, status: str) -> None:
    """The nodes of the type that are launched on demand are asked for, in the zone by its id."""
    plan = fleet_plan(
        role_plan(count=2),
        role_plan("decode", count=3),
        role_plan("decode", count=9, capacity="reservation", reservation_id="cr-1"),
    )
    answer = Answer(
        "get_capacity_manager_supportability_scores",
        {"AggregateScore": score},
        {
            "MarketType": "on-demand",
            "CapacityAmount": 5,
            "CapacityUnit": "instances",
            "CapacityAvailabilityZoneIds": ["usw2-az1"],
            "InstanceTypes": [P5EN],
        },
    )
    with answering("ec2", ZONES, answer) as ec2:
        [finding] = check_supportability(ec2, plan, P5EN)
    assert finding.status == status
    assert f"score {score} for 5" in finding.evidence


def test_refused_score_is_not_available() -> None:
    """Most accounts have no such plan: that is no reason not to go on."""
    answer = Answer("get_capacity_manager_supportability_scores", {}, None, "UnsupportedOperation")
    with answering("ec2", ZONES, answer) as ec2:
        [finding] = check_supportability(ec2, fleet_plan(), P5EN)
    assert finding.status == "warn"
    assert finding.evidence.startswith("not available")


def test_older_botocore_has_no_score() -> None:
    """A library that lacks the question is told as such."""
    [finding] = check_supportability(object(), fleet_plan(), P5EN)
    assert (finding.status, "this botocore" in finding.evidence) == ("warn", True)


def test_price_is_the_sum_of_the_nodes() -> None:
    """Each role's count times its rate; a reservation is paid for in any case."""
    plan = fleet_plan(
        role_plan(count=2), role_plan("decode", capacity="reservation", reservation_id="cr-1")
    )
    answers = [Answer("get_products", {"PriceList": [product("10.5")]})] * 2
    with answering("pricing", *answers) as pricing:
        [finding] = check_price(pricing, plan)
    assert finding.status == "pass"
    assert finding.evidence.startswith("31.50 USD per hour on demand: 2 x p5en.48xlarge at 10.50")
    assert "a reservation costs as much" in finding.evidence


def test_unknown_price_is_a_warning() -> None:
    """No price is better than a guess."""
    with answering("pricing", Answer("get_products", {"PriceList": []})) as pricing:
        [finding] = check_price(pricing, fleet_plan())
    assert finding.status == "warn"
    assert finding.evidence.startswith("unknown")


def test_capacity_block_has_no_hourly_price() -> None:
    """It is paid in advance: nothing is asked."""
    with answering("pricing") as pricing:
        [finding] = check_price(
            pricing, fleet_plan(role_plan(capacity="capacity_block", reservation_id="cr-1"))
        )
    assert finding.status == "pass"
