"""Room in vCPU quotas."""

from typing import Any

import pytest

from runtime.aws.checks.finding import Finding
from runtime.aws.checks.quota import QUOTAS, check_quota, quotas_of
from tests.aws.stubs import Answer, answering, fleet_plan, role_plan

P = QUOTAS["p"]


def instance(cores: int, deployment: str = "theirs") -> dict[str, Any]:
    """As DescribeInstances tells one with two threads per core."""
    return {
        "CpuOptions": {"CoreCount": cores, "ThreadsPerCore": 2},
        "Tags": [{"Key": "turnback:deployment", "Value": deployment}],
    }


def asked(allowed: float, *running: dict[str, Any], count: int = 1) -> list[Finding]:
    """Findings for 2 * `count` p5en nodes on demand."""
    plan = fleet_plan(role_plan(count=count), role_plan("decode", count=count))
    quota = Answer(
        "get_service_quota",
        {"Quota": {"Value": allowed}},
        {"ServiceCode": "ec2", "QuotaCode": "L-417A185B"},
    )
    instances = Answer("describe_instances", {"Reservations": [{"Instances": list(running)}]})
    with answering("service-quotas", quota) as quotas, answering("ec2", instances) as ec2:
        return check_quota(quotas, ec2, plan, P, plan.roles)


@pytest.mark.parametrize(
    ("allowed", "running", "status"),
    [
        (384, [], "pass"),
        (383, [], "fail"),
        (384, [instance(1)], "fail"),
        (386, [instance(1)], "pass"),
        (384, [instance(96, "ours"), instance(96, "ours")], "pass"),
    ],
)
def test_wanted_vcpus_fit_beside_those_in_use(
    allowed: float, running: list[dict[str, Any]], status: str
) -> None:
    """Two p5en want 384; others' count, this deployment's own do not count twice."""
    [finding] = asked(allowed, *running)
    assert finding.status == status


def test_fix_asks_for_what_is_missing() -> None:
    """The command names the quota, the region and the sum."""
    [finding] = asked(192, instance(48), count=2)
    assert finding.evidence.endswith("192 vCPUs in us-west-2, 96 in use by others, 768 wanted")
    assert "--quota-code L-417A185B --desired-value 864 --region us-west-2" in finding.fix


@pytest.mark.parametrize(
    ("instance_type", "code"),
    [
        ("p5en.48xlarge", "L-417A185B"),
        ("p6-b200.48xlarge", "L-417A185B"),
        ("g6e.48xlarge", "L-DB2E81BA"),
        ("trn2.48xlarge", "L-2C3B7624"),
    ],
)
def test_family_leads_to_its_quota(instance_type: str, code: str) -> None:
    """The letters before the generation decide."""
    plan = fleet_plan(role_plan(instance_type=instance_type))
    assert [quota.code for quota in quotas_of(plan)] == [code]


def test_reservations_are_counted_already() -> None:
    """They took their part of the quota when they were made: nothing is asked."""
    plan = fleet_plan(role_plan(capacity="reservation", reservation_id="cr-1"))
    with answering("service-quotas") as quotas, answering("ec2") as ec2:
        [finding] = check_quota(quotas, ec2, plan, P, plan.roles)
    assert finding.status == "pass"


def test_capacity_blocks_and_unknown_families_have_no_quota_here() -> None:
    """What the kit does not know it does not judge."""
    block = role_plan(capacity="capacity_block", reservation_id="cr-1")
    assert quotas_of(fleet_plan(block, role_plan("decode", instance_type="m5.large"))) == {}
