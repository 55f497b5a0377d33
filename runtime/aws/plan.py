"""What a deployment wants of an account, as preflight reads it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from runtime.contract.deployment import (
    CapacityBlock,
    DeploymentSettings,
    ImportedNetwork,
    OnDemand,
    Reservation,
    RoleSettings,
)
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.node import Role

CapacityKind = Literal["on_demand", "reservation", "capacity_block"]


@dataclass(frozen=True, slots=True)
class RolePlan:
    """Nodes of one role.

    Attributes:
        role: `prefill` or `decode`.
        instance_type: EC2's name.
        vcpus: of one node, as EC2's quotas count them.
        count: nodes wanted at once.
        capacity: where they come from.
        reservation_id: of the Capacity Reservation or Capacity Block; empty for on-demand.
        block_end: when the settings say that the Capacity Block ends.
        placement_group: name or ARN of the one the nodes are launched into; empty: none.
    """

    role: Role
    instance_type: str
    vcpus: int
    count: int
    capacity: CapacityKind = "on_demand"
    reservation_id: str = ""
    block_end: datetime | None = None
    placement_group: str = ""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A deployment's nodes and where they are to run.

    Attributes:
        name: of the deployment, as in its tags.
        region: AWS's name.
        availability_zone: its name or its id, such as `us-west-2b` or `usw2-az2`.
        ami_id: image of all nodes; empty: none is built yet.
        roles: in any order.
        subnet_ids: that exist already; empty: the deployment makes its own.
    """

    name: str
    region: str
    availability_zone: str
    ami_id: str
    roles: tuple[RolePlan, ...]
    subnet_ids: tuple[str, ...] = ()


ROLES: tuple[Role, ...] = ("prefill", "decode")


def plan_of(settings: DeploymentSettings) -> FleetPlan:
    """What a deployment's settings want of an account."""
    network = settings.network
    return FleetPlan(
        name=settings.name,
        region=settings.aws_region,
        availability_zone=settings.availability_zone,
        ami_id=settings.image.ami_id or "",
        roles=tuple(_role(role, settings.role(role)) for role in ROLES),
        subnet_ids=(network.subnet_id,) if isinstance(network, ImportedNetwork) else (),
    )


def _role(role: Role, wanted: RoleSettings) -> RolePlan:
    capacity = wanted.capacity
    reservation = "" if isinstance(capacity, OnDemand) else capacity.capacity_reservation_id
    group = capacity.placement_group if isinstance(capacity, Reservation) else None
    return RolePlan(
        role=role,
        instance_type=wanted.instance_type,
        vcpus=INSTANCE_TYPES[wanted.instance_type].vcpus,
        count=wanted.count,
        capacity=capacity.kind,
        reservation_id=reservation,
        block_end=capacity.ends_at if isinstance(capacity, CapacityBlock) else None,
        placement_group=group or "",
    )
