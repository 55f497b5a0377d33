"""Room in the account's vCPU quotas."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.aws.checks.finding import Finding
from runtime.aws.discovery import DEPLOYMENT_TAG
from runtime.aws.plan import FleetPlan, RolePlan


@dataclass(frozen=True, slots=True)
class VcpuQuota:
    """EC2's limit on the vCPUs of running on-demand instances of some families.

    Attributes:
        code: in Service Quotas.
        name: there.
        families: patterns of the instance types that it counts.
    """

    code: str
    name: str
    families: tuple[str, ...]


QUOTAS: Mapping[str, VcpuQuota] = {
    "p": VcpuQuota("L-417A185B", "Running On-Demand P instances", ("p*",)),
    "g": VcpuQuota("L-DB2E81BA", "Running On-Demand G and VT instances", ("g*", "vt*")),
    "trn": VcpuQuota("L-2C3B7624", "Running On-Demand Trn instances", ("trn*",)),
}
"""By the letters that an instance type begins with."""


def quotas_of(plan: FleetPlan) -> dict[VcpuQuota, list[RolePlan]]:
    """The quotas that count a plan's nodes, and the nodes.

    Source:
        EC2's error codes (InstanceLimitExceeded): Capacity Reservations count towards the
        on-demand limits. Capacity Blocks are bought, and left out here.
    """
    counted: dict[VcpuQuota, list[RolePlan]] = defaultdict(list)
    for role in plan.roles:
        letters = re.match("[a-z]+", role.instance_type)
        quota = QUOTAS.get(letters.group()) if letters else None
        if quota is not None and role.capacity != "capacity_block":
            counted[quota].append(role)
    return dict(counted)


def check_quota(
    quotas: Any, ec2: Any, plan: FleetPlan, quota: VcpuQuota, roles: Iterable[RolePlan]
) -> list[Finding]:
    """Compare a quota with what runs already and what is wanted on demand."""
    wanted = sum(role.vcpus * role.count for role in roles if role.capacity == "on_demand")
    if not wanted:
        return [
            Finding(
                "quota",
                quota.code,
                "pass",
                "all nodes come from reservations, which were counted when they were made",
            )
        ]
    reply = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    allowed = int(reply["Quota"]["Value"])
    used = _vcpus_in_use(ec2, plan, quota)
    evidence = (
        f"{quota.name}: {allowed} vCPUs in {plan.region}, {used} in use by others, {wanted} wanted"
    )
    if wanted + used <= allowed:
        return [Finding("quota", quota.code, "pass", evidence)]
    return [
        Finding(
            "quota",
            quota.code,
            "fail",
            evidence,
            "aws service-quotas request-service-quota-increase --service-code ec2 "
            f"--quota-code {quota.code} --desired-value {wanted + used} --region {plan.region}",
        )
    ]


def _vcpus_in_use(ec2: Any, plan: FleetPlan, quota: VcpuQuota) -> int:
    """vCPUs of the running instances that a quota counts, but for this deployment's own."""
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
            {"Name": "instance-type", "Values": list(quota.families)},
        ]
    )
    return sum(
        instance["CpuOptions"]["CoreCount"] * instance["CpuOptions"]["ThreadsPerCore"]
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
        if {"Key": DEPLOYMENT_TAG, "Value": plan.name} not in instance.get("Tags", ())
    )
