"""Whether EC2 has an instance type here, and whether it is what the kit's table says."""

import re
from typing import Any

from runtime.aws.checks.finding import Finding
from runtime.aws.plan import FleetPlan
from runtime.contract.instances import INSTANCE_TYPES

_ZONE_ID = re.compile(r"[a-z0-9]+-az[0-9]+")
"""`usw2-az2`, where a name would be `us-west-2b`."""


def check_offered(ec2: Any, plan: FleetPlan, instance_type: str) -> list[Finding]:
    """Look for the type among what the availability zone offers."""
    is_id = bool(_ZONE_ID.fullmatch(plan.availability_zone))
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone-id" if is_id else "availability-zone",
        Filters=[{"Name": "instance-type", "Values": [instance_type]}],
    )
    zones = sorted(
        str(offering["Location"]) for page in pages for offering in page["InstanceTypeOfferings"]
    )
    if plan.availability_zone in zones:
        evidence = f"offered in {plan.availability_zone}"
        return [Finding("type offered", instance_type, "pass", evidence)]
    return [
        Finding(
            "type offered",
            instance_type,
            "fail",
            f"not offered in {plan.availability_zone}; zones of {plan.region} that offer it: "
            + (", ".join(zones) or "none"),
            "set availability_zone to one of those"
            if zones
            else "take another region or instance type",
        )
    ]


def check_hardware(ec2: Any, instance_type: str) -> list[Finding]:
    """Compare EC2's own description with the row that network interfaces are built from."""
    row = INSTANCE_TYPES.get(instance_type)
    if row is None:
        return [
            Finding(
                "type's hardware",
                instance_type,
                "fail",
                "this kit has no row for it",
                "take one of " + ", ".join(INSTANCE_TYPES),
            )
        ]
    told = _told(ec2.describe_instance_types(InstanceTypes=[instance_type])["InstanceTypes"][0])
    expected = {
        "vCPUs": row.vcpus,
        "network cards": row.network_cards,
        "EFA interfaces": row.efa_interfaces,
        "first EFA card": row.first_efa_card,
    }
    wrong = [
        f"{name}: EC2 says {told[name]}, the kit {value}"
        for name, value in expected.items()
        if name in told and told[name] != value
    ]
    if wrong:
        return [
            Finding(
                "type's hardware",
                instance_type,
                "fail",
                "; ".join(wrong),
                "do not launch: network interfaces would be built wrong; correct the row in "
                "runtime/contract/instances.py",
            )
        ]
    evidence = ", ".join(f"{name} {value}" for name, value in told.items())
    return [Finding("type's hardware", instance_type, "pass", evidence)]


def _told(described: dict[str, Any]) -> dict[str, int]:
    """The table's columns out of DescribeInstanceTypes."""
    network = described["NetworkInfo"]
    told = {
        "vCPUs": described["VCpuInfo"]["DefaultVCpus"],
        "network cards": network["MaximumNetworkCards"],
        "EFA interfaces": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
    }
    cards = network.get("NetworkCards", ())
    # Not every region tells a card's interface types yet.
    if cards and all("InterfaceTypes" in card for card in cards):
        told["first EFA card"] = min(
            (
                card["NetworkCardIndex"]
                for card in cards
                if "efa-only" in card["InterfaceTypes"] or "efa" in card["InterfaceTypes"]
            ),
            default=-1,
        )
    return told
