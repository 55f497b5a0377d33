"""Whether a Capacity Reservation or a Capacity Block holds what the plan wants of it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from runtime.aws.checks.finding import Finding, Status, error_code
from runtime.aws.plan import FleetPlan, RolePlan

SCALE_IN_BEFORE_END = timedelta(hours=1)
"""Nodes of a Capacity Block are scaled in this long before it ends; EC2 ends them 30 min before."""

_WAIT = frozenset({"scheduled", "pending", "payment-pending", "assessing", "delayed"})
"""States that may become `active`; all others but that have come to their end."""


def check_reservation(
    ec2: Any, plan: FleetPlan, roles: Sequence[RolePlan], now: datetime
) -> list[Finding]:
    """Look at one reservation.

    Args:
        ec2: boto3's client.
        plan: the deployment.
        roles: all that draw on the reservation; at least one.
        now: an aware time.
    """
    reservation_id = roles[0].reservation_id
    try:
        reply = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
    except ClientError as error:
        if not error_code(error).startswith("InvalidCapacityReservationId"):
            raise
        return [_missing(reservation_id, plan.region, str(error))]
    if not reply["CapacityReservations"]:
        return [_missing(reservation_id, plan.region, "not listed")]
    held = reply["CapacityReservations"][0]
    whole = [_state(held), _size(held, sum(role.count for role in roles))]
    # Roles that want the same are told once.
    of_roles = [
        finding
        for role in roles
        for finding in (
            _match(held, plan, role),
            _placement_group(held, role),
            _end(held, role, now),
        )
    ]
    return list(dict.fromkeys(whole + of_roles))


def _missing(reservation_id: str, region: str, evidence: str) -> Finding:
    return Finding(
        "reservation state",
        reservation_id,
        "fail",
        f"no such reservation in {region}: {evidence}",
        "give the id of a reservation of this account (or shared with it) in this region",
    )


def _state(held: dict[str, Any]) -> Finding:
    state, launchable = held["State"], held.get("LaunchStatus", "launchable")
    status: Status = "fail"
    fix = "make or buy another reservation, and put its id into the settings"
    if state == "active" and launchable == "launchable":
        status, fix = "pass", ""
    elif state in _WAIT:
        status = "warn"
        fix = "deploy now if you like; scale up when it is active"
    begins = f", begins {held['StartDate']:%Y-%m-%d %H:%M %Z}" if "StartDate" in held else ""
    evidence = state + (begins if state in _WAIT else "")
    if launchable != "launchable":
        evidence += f", launch status {launchable}"
    return _finding("reservation state", held, status, evidence, fix)


def _match(held: dict[str, Any], plan: FleetPlan, wanted: RolePlan) -> Finding:
    """Zone, type, platform, tenancy and kind."""
    zones = (held.get("AvailabilityZone"), held.get("AvailabilityZoneId"))
    kind = "capacity_block" if held.get("ReservationType") == "capacity-block" else "reservation"
    wrong = [
        f"{name} is {has}, wanted {wants}"
        for name, has, wants, same in (
            ("zone", zones[0], plan.availability_zone, plan.availability_zone in zones),
            *(
                (name, has, wants, has == wants)
                for name, has, wants in (
                    ("type", held["InstanceType"], wanted.instance_type),
                    ("platform", held["InstancePlatform"], "Linux/UNIX"),
                    ("tenancy", held.get("Tenancy", "default"), "default"),
                    ("kind", kind, wanted.capacity),
                )
            ),
        )
        if not same
    ]
    if wrong:
        fix = "change the settings to what is reserved, or reserve what the settings want"
        return _finding("reservation match", held, "fail", "; ".join(wrong), fix)
    evidence = f"{held['InstanceType']}, {zones[0] or zones[1]}, {held['InstancePlatform']}, {kind}"
    return _finding("reservation match", held, "pass", evidence)


def _size(held: dict[str, Any], count: int) -> Finding:
    total, free = held["TotalInstanceCount"], held["AvailableInstanceCount"]
    evidence = f"{total} instances, {free} free, {count} wanted"
    if total < count:
        fix = f"enlarge it to {count}, or want fewer nodes"
        return _finding("reservation size", held, "fail", evidence, fix)
    if free < count and held["State"] == "active":
        fix = "go on if this deployment's own nodes use the rest; else end what does"
        return _finding("reservation size", held, "warn", evidence, fix)
    return _finding("reservation size", held, "pass", evidence)


def _placement_group(held: dict[str, Any], wanted: RolePlan) -> Finding:
    """Nodes must be in the reservation's own group, and in none where it has none."""
    own, planned = held.get("PlacementGroupArn", ""), wanted.placement_group
    if planned in ((own, own.rsplit("/", 1)[-1]) if own else ("",)):
        return _finding("placement group", held, "pass", own or "none, as the reservation")
    return _finding(
        "placement group",
        held,
        "fail",
        f"the reservation has {own or 'none'}, the settings {planned or 'none'}: "
        "nodes would be placed outside of what is reserved",
        f"set placement_group to {own}" if own else "leave placement_group out",
    )


def _end(held: dict[str, Any], wanted: RolePlan, now: datetime) -> Finding:
    """When it ends, and whether the settings know."""
    end = held.get("EndDate")
    if end is None or held.get("EndDateType") == "unlimited":
        return _finding("reservation end", held, "pass", "no end")
    left = end - now
    evidence = f"ends {end:%Y-%m-%d %H:%M %Z}, in {left.total_seconds() / 3600:.1f} h"
    if left <= SCALE_IN_BEFORE_END:
        fix = "take another reservation: nodes would be ended before they served"
        return _finding("reservation end", held, "fail", evidence, fix)
    if wanted.block_end is not None and wanted.block_end != end:
        fix = f'set the end to "{end.isoformat()}", or nodes are scaled in at the wrong time'
        early = end < wanted.block_end
        evidence += f"; the settings say {wanted.block_end.isoformat()}"
        return _finding("reservation end", held, "fail" if early else "warn", evidence, fix)
    if wanted.capacity == "reservation":
        fix = "extend it if the deployment shall live longer"
        return _finding("reservation end", held, "warn", evidence, fix)
    return _finding("reservation end", held, "pass", evidence)


def _finding(
    check: str, held: dict[str, Any], status: Status, evidence: str, fix: str = ""
) -> Finding:
    return Finding(check, str(held["CapacityReservationId"]), status, evidence, fix)
