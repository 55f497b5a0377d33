"""Whether an account can run a deployment, before it is deployed and before it costs anything."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from runtime.aws.checks.finding import Check, Finding, run_checks
from runtime.aws.checks.ground import check_credentials, check_image, check_subnets
from runtime.aws.checks.outlook import check_price, check_supportability
from runtime.aws.checks.quota import check_quota, quotas_of
from runtime.aws.checks.reservations import check_reservation
from runtime.aws.checks.types import check_hardware, check_offered
from runtime.aws.clients import PreflightClients
from runtime.aws.plan import FleetPlan, RolePlan

TIMEOUT_S = 40.0
"""Of each check, several calls of at most two tries; all are asked at once."""


def preflight(
    plan: FleetPlan,
    clients: PreflightClients,
    *,
    now: datetime | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Finding]:
    """Ask AWS everything that can be known about a plan. Reads only.

    Args:
        plan: the deployment.
        clients: of the plan's region.
        now: an aware time; left out: the clock's.
        timeout_s: the longest wait for a check.

    Returns:
        at least one finding per check; checks that got no answer say so.
    """
    return run_checks(checks_of(plan, clients, now or datetime.now(UTC)), timeout_s)


def checks_of(plan: FleetPlan, clients: PreflightClients, now: datetime) -> list[Check]:
    """The questions that a plan raises, in the order of the report."""
    ec2 = clients.ec2
    return [
        Check("credentials", "-", "sts", partial(check_credentials, clients.sts)),
        *(
            Check(
                "quota",
                quota.code,
                "servicequotas:GetServiceQuota and ec2:DescribeInstances",
                partial(check_quota, clients.quotas, ec2, plan, quota, roles),
            )
            for quota, roles in quotas_of(plan).items()
        ),
        *_type_checks(plan, clients),
        *(
            Check(
                "reservation state",
                reservation_id,
                "ec2:DescribeCapacityReservations",
                partial(check_reservation, ec2, plan, roles, now),
            )
            for reservation_id, roles in _reservations(plan).items()
        ),
        Check(
            "subnets",
            ", ".join(plan.subnet_ids) or "-",
            "ec2:DescribeSubnets",
            partial(check_subnets, ec2, plan),
        ),
        Check(
            "image",
            plan.ami_id or "-",
            "ec2:DescribeImages",
            partial(check_image, ec2, plan, now),
        ),
        Check(
            "price", plan.name, "pricing:GetProducts", partial(check_price, clients.pricing, plan)
        ),
    ]


def _type_checks(plan: FleetPlan, clients: PreflightClients) -> list[Check]:
    ec2, checks = clients.ec2, []
    for name in dict.fromkeys(role.instance_type for role in plan.roles):
        checks += [
            Check(
                "type offered",
                name,
                "ec2:DescribeInstanceTypeOfferings",
                partial(check_offered, ec2, plan, name),
            ),
            Check(
                "type's hardware",
                name,
                "ec2:DescribeInstanceTypes",
                partial(check_hardware, ec2, name),
            ),
        ]
    on_demand = (r.instance_type for r in plan.roles if r.capacity == "on_demand" and r.count)
    return checks + [
        Check(
            "supportability",
            name,
            "ec2:GetCapacityManagerSupportabilityScores",
            partial(check_supportability, ec2, plan, name),
        )
        for name in dict.fromkeys(on_demand)
    ]


def _reservations(plan: FleetPlan) -> dict[str, Sequence[RolePlan]]:
    """Roles by the reservation that they draw on."""
    drawn: dict[str, list[RolePlan]] = defaultdict(list)
    for role in plan.roles:
        if role.capacity != "on_demand":
            drawn[role.reservation_id].append(role)
    return dict(drawn)
