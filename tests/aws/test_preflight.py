"""Which questions a plan raises, and that all are answered."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.aws.clients import PreflightClients, preflight_clients
from runtime.aws.plan import FleetPlan
from runtime.aws.preflight import checks_of, preflight
from tests.aws.fleet import answering_too
from tests.aws.stubs import fleet_plan, role_plan

NOW = datetime(2027, 1, 10, 12, 0, tzinfo=UTC)
NOBODY = PreflightClients(ec2=None, quotas=None, pricing=None, sts=None)
BLOCK = {"capacity": "capacity_block", "reservation_id": "cr-1", "block_end": NOW}


def questions(plan: FleetPlan) -> list[tuple[str, str]]:
    """Name and subject of each check; the two that every plan raises left out."""
    asked = [(check.name, check.subject) for check in checks_of(plan, NOBODY, NOW)]
    return [pair for pair in asked if pair[0] not in ("credentials", "image", "subnets", "price")]


def test_on_demand_plan_raises_quota_and_chances() -> None:
    """One question per quota and type, however many roles want it."""
    assert questions(fleet_plan()) == [
        ("quota", "L-417A185B"),
        ("type offered", "p5en.48xlarge"),
        ("type's hardware", "p5en.48xlarge"),
        ("supportability", "p5en.48xlarge"),
    ]


def test_block_plan_raises_its_reservation() -> None:
    """No quota and no chances; one question for what both roles draw on."""
    plan = fleet_plan(role_plan(**BLOCK), role_plan("decode", **BLOCK))
    assert questions(plan) == [
        ("type offered", "p5en.48xlarge"),
        ("type's hardware", "p5en.48xlarge"),
        ("reservation state", "cr-1"),
    ]


def test_mixed_plan_raises_both() -> None:
    """Each role's own questions, of each type and reservation."""
    plan = fleet_plan(
        role_plan(**BLOCK),
        role_plan("decode", instance_type="g6e.48xlarge"),
    )
    assert questions(plan) == [
        ("quota", "L-DB2E81BA"),
        ("type offered", "p5en.48xlarge"),
        ("type's hardware", "p5en.48xlarge"),
        ("type offered", "g6e.48xlarge"),
        ("type's hardware", "g6e.48xlarge"),
        ("supportability", "g6e.48xlarge"),
        ("reservation state", "cr-1"),
    ]


def refuse(_asked: dict[str, Any], _real: Any) -> Any:
    raise ClientError({"Error": {"Code": "AccessDenied"}}, "Anything")


@pytest.mark.usefixtures("account")
def test_refused_everywhere_is_unknown_everywhere() -> None:
    """An account that may ask nothing gets a warning per check, and fails by its credentials."""
    operations = (
        "GetCallerIdentity",
        "GetServiceQuota",
        "DescribeInstances",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeAvailabilityZones",
        "DescribeSubnets",
        "DescribeImages",
        "GetProducts",
    )
    plan = fleet_plan(subnet_ids=("subnet-1",))
    clients = preflight_clients(plan.region)
    with answering_too(**dict.fromkeys(operations, refuse)):
        findings = preflight(plan, clients, now=NOW)
    assert [each.check for each in findings if each.status == "fail"] == ["credentials"]
    assert {each.status for each in findings} == {"fail", "warn"}
    assert len(findings) == len(checks_of(plan, clients, NOW))


@pytest.mark.usefixtures("account")
def test_clients_ask_the_plans_region() -> None:
    """Whatever the environment's region; prices come from where the list answers."""
    clients = preflight_clients("us-west-2")
    asked = (clients.ec2, clients.quotas, clients.sts)
    assert {client.meta.region_name for client in asked} == {"us-west-2"}
    assert clients.pricing.meta.region_name == "us-east-1"
