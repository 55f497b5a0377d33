"""Types as EC2 offers and describes them."""

from typing import Any

import boto3
import pytest

from runtime.aws.checks.types import check_hardware, check_offered
from runtime.contract.instances import INSTANCE_TYPES
from tests.aws.stubs import Answer, answering, fleet_plan

P5EN = "p5en.48xlarge"


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("name", list(INSTANCE_TYPES))
def test_table_equals_what_ec2_describes(name: str) -> None:
    """Every row has EC2's vCPUs, cards, EFA interfaces and first EFA card."""
    [finding] = check_hardware(boto3.client("ec2"), name)
    assert (finding.status, finding.evidence.count(",")) == ("pass", 3), finding


@pytest.mark.parametrize(
    ("vcpus", "network", "told"),
    [
        (96, {}, "vCPUs: EC2 says 96, the kit 192"),
        (192, {"MaximumNetworkCards": 32}, "network cards: EC2 says 32, the kit 16"),
        (192, {"EfaInfo": {"MaximumEfaInterfaces": 15}}, "EFA interfaces: EC2 says 15, the kit 16"),
        (192, {"EfaInfo": {}}, "EFA interfaces: EC2 says 0, the kit 16"),
        (
            192,
            {
                "NetworkCards": [
                    {"NetworkCardIndex": 0, "InterfaceTypes": ["interface"]},
                    {"NetworkCardIndex": 1, "InterfaceTypes": ["interface", "efa-only"]},
                ]
            },
            "first EFA card: EC2 says 1, the kit 0",
        ),
    ],
)
def test_difference_fails(vcpus: int, network: dict[str, Any], told: str) -> None:
    """Interfaces would be built wrong, so it is told before anything is launched."""
    usual = {"MaximumNetworkCards": 16, "EfaInfo": {"MaximumEfaInterfaces": 16}}
    described = {"VCpuInfo": {"DefaultVCpus": vcpus}, "NetworkInfo": usual | network}
    answer = Answer(
        "describe_instance_types", {"InstanceTypes": [described]}, {"InstanceTypes": [P5EN]}
    )
    with answering("ec2", answer) as ec2:
        [finding] = check_hardware(ec2, P5EN)
    assert (finding.status, finding.evidence) == ("fail", told)


def test_type_without_a_row_fails() -> None:
    """The kit builds no interfaces for what it does not know; nothing is asked."""
    with answering("ec2") as ec2:
        [finding] = check_hardware(ec2, "m5.large")
    assert finding.status == "fail"
    assert P5EN in finding.fix


@pytest.mark.usefixtures("account")
def test_type_is_offered_in_its_zone() -> None:
    """A zone of the list passes, another fails and the list is told."""
    ec2 = boto3.client("ec2", region_name="us-west-2")
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [P5EN]}]
    )
    zones = sorted(each["Location"] for page in pages for each in page["InstanceTypeOfferings"])
    assert zones
    [good] = check_offered(ec2, fleet_plan(availability_zone=zones[0]), P5EN)
    [bad] = check_offered(ec2, fleet_plan(availability_zone="us-west-2z"), P5EN)
    assert (good.status, bad.status) == ("pass", "fail")
    assert ", ".join(zones) in bad.evidence


@pytest.mark.parametrize(
    ("zone", "kind"), [("us-west-2b", "availability-zone"), ("usw2-az2", "availability-zone-id")]
)
def test_zone_may_be_a_name_or_an_id(zone: str, kind: str) -> None:
    """Ids are the same in every account; EC2 wants to know which it is."""
    answer = Answer(
        "describe_instance_type_offerings",
        {"InstanceTypeOfferings": [{"Location": zone}]},
        {"LocationType": kind, "Filters": [{"Name": "instance-type", "Values": [P5EN]}]},
    )
    with answering("ec2", answer) as ec2:
        [finding] = check_offered(ec2, fleet_plan(availability_zone=zone), P5EN)
    assert finding.status == "pass"


def test_region_without_the_type_says_so() -> None:
    """No zone of the region is a reason for another region."""
    answer = Answer("describe_instance_type_offerings", {"InstanceTypeOfferings": []})
    with answering("ec2", answer) as ec2:
        [finding] = check_offered(ec2, fleet_plan(), P5EN)
    assert finding.status == "fail"
    assert "another region" in finding.fix
