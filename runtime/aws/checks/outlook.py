"""What AWS foresees: chances of capacity, and the price."""

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.checks.finding import Finding, Status
from runtime.aws.plan import FleetPlan, RolePlan
from runtime.aws.prices import on_demand_usd_per_hour

_SCORE = "supportability"


def check_supportability(ec2: Any, plan: FleetPlan, instance_type: str) -> list[Finding]:
    """Ask Capacity Manager how well the zone can give the on-demand nodes now.

    Source:
        botocore 1.44.8, ec2 GetCapacityManagerSupportabilityScores: only for some support
        plans, with Capacity Manager on, 100 questions per account and hour; a score is no
        promise.
    """
    try:
        # botocore before 1.44 does not know the question, and says so with AttributeError.
        ask = ec2.get_capacity_manager_supportability_scores
    except AttributeError:
        return [_not_available(instance_type, "this botocore does not know the question")]
    count = sum(
        role.count
        for role in plan.roles
        if role.instance_type == instance_type and role.capacity == "on_demand"
    )
    try:
        reply = ask(
            MarketType="on-demand",
            CapacityAmount=count,
            CapacityUnit="instances",
            CapacityAvailabilityZoneIds=[_zone_id(ec2, plan)],
            InstanceTypes=[instance_type],
        )
    except (BotoCoreError, ClientError) as error:
        return [_not_available(instance_type, str(error))]
    score = str(reply.get("AggregateScore", "none"))
    evidence = f"score {score} for {count} in {plan.availability_zone}"
    if score == "high":
        return [Finding(_SCORE, instance_type, "pass", evidence)]
    status: Status = "fail" if score == "unsupported" else "warn"
    fix = "try another zone, reserve capacity or buy a Capacity Block"
    return [Finding(_SCORE, instance_type, status, evidence, fix)]


def _zone_id(ec2: Any, plan: FleetPlan) -> str:
    """The id of the plan's zone; names differ from account to account."""
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    ids = {zone["ZoneName"]: str(zone["ZoneId"]) for zone in zones}
    return ids.get(plan.availability_zone, plan.availability_zone)


def _not_available(instance_type: str, evidence: str) -> Finding:
    fix = "nothing needs it; it takes a support plan that includes it, and Capacity Manager on"
    return Finding(_SCORE, instance_type, "warn", f"not available: {evidence}", fix)


def check_price(pricing: Any, plan: FleetPlan) -> list[Finding]:
    """USD per hour of all nodes together, at the list's on-demand rates."""
    paid = [role for role in plan.roles if role.capacity != "capacity_block" and role.count]
    if not paid:
        return [Finding("price", "-", "pass", "Capacity Blocks are paid in advance")]
    total, parts = 0.0, []
    for role in paid:
        rate = on_demand_usd_per_hour(pricing, role.instance_type, plan.region)
        if rate is None:
            return [_unknown(role, plan)]
        total += rate * role.count
        parts.append(f"{role.count} x {role.instance_type} at {rate:.2f}")
    evidence = f"{total:.2f} USD per hour on demand: {', '.join(parts)}"
    if any(role.capacity == "reservation" for role in paid):
        evidence += "; a reservation costs as much while no node runs"
    return [Finding("price", f"{plan.name}", "pass", evidence)]


def _unknown(role: RolePlan, plan: FleetPlan) -> Finding:
    return Finding(
        "price",
        role.instance_type,
        "warn",
        f"unknown: the price list has no single on-demand rate in {plan.region}",
        "look at the EC2 pricing page before you scale up",
    )
