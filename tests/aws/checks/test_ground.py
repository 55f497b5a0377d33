"""Credentials, subnets and the image."""

from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from runtime.aws.checks.finding import Finding
from runtime.aws.checks.ground import check_credentials, check_image, check_subnets
from tests.aws.stubs import AMI, Answer, answering, fleet_plan, role_plan

NOW = datetime(2027, 1, 10, 12, 0, tzinfo=UTC)


@pytest.mark.usefixtures("account")
def test_credentials_name_their_account() -> None:
    """What sts says stands in the report."""
    [finding] = check_credentials(boto3.client("sts"))
    assert (finding.status, finding.subject) == ("pass", "123456789012")


def test_refused_credentials_fail() -> None:
    """Without them nothing else can be known, so this is no warning."""
    answer = Answer("get_caller_identity", {}, None, "ExpiredToken")
    with answering("sts", answer) as sts:
        [finding] = check_credentials(sts)
    assert (finding.status, "ExpiredToken" in finding.evidence) == ("fail", True)


def test_own_network_has_no_subnet_yet() -> None:
    """The deployment makes it; nothing is asked."""
    with answering("ec2") as ec2:
        [finding] = check_subnets(ec2, fleet_plan())
    assert finding.status == "pass"


def subnet(free: int = 8, zone: str = "us-west-2b", state: str = "available") -> dict[str, Any]:
    """As DescribeSubnets tells one."""
    return {
        "SubnetId": "subnet-1",
        "AvailabilityZone": zone,
        "AvailabilityZoneId": "usw2-az2" if zone == "us-west-2b" else "usw2-az1",
        "State": state,
        "AvailableIpAddressCount": free,
    }


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (subnet(free=4), "pass"),
        (subnet(free=3), "fail"),
        (subnet(zone="us-west-2a"), "fail"),
        (subnet(state="pending"), "fail"),
    ],
)
def test_subnet_has_an_address_for_each_node(shown: dict[str, Any], status: str) -> None:
    """Four nodes want four, in their zone: EFA-only interfaces take none."""
    plan = fleet_plan(role_plan(count=1), role_plan("decode", count=3), subnet_ids=("subnet-1",))
    answer = Answer("describe_subnets", {"Subnets": [shown]}, {"SubnetIds": ["subnet-1"]})
    with answering("ec2", answer) as ec2:
        [finding] = check_subnets(ec2, plan)
    assert finding.status == status


def test_subnet_is_found_by_the_zones_id() -> None:
    """The plan's zone may be an id."""
    plan = fleet_plan(subnet_ids=("subnet-1",), availability_zone="usw2-az2")
    with answering("ec2", Answer("describe_subnets", {"Subnets": [subnet()]})) as ec2:
        [finding] = check_subnets(ec2, plan)
    assert finding.status == "pass"


def test_unknown_subnet_fails() -> None:
    """An id of another region or account."""
    answer = Answer("describe_subnets", {}, None, "InvalidSubnetID.NotFound")
    with answering("ec2", answer) as ec2:
        [finding] = check_subnets(ec2, fleet_plan(subnet_ids=("subnet-1",)))
    assert finding.status == "fail"


def test_other_refusals_are_not_taken_for_absence() -> None:
    """A missing permission says nothing about the subnet."""
    answer = Answer("describe_subnets", {}, None, "UnauthorizedOperation")
    with (
        answering("ec2", answer) as ec2,
        pytest.raises(ClientError, match="UnauthorizedOperation"),
    ):
        check_subnets(ec2, fleet_plan(subnet_ids=("subnet-1",)))


def image(**changes: Any) -> dict[str, Any]:
    """As DescribeImages tells one."""
    fields = {"State": "available", "Architecture": "x86_64", "PlatformDetails": "Linux/UNIX"}
    return fields | changes


def asked_image(answer: Answer) -> Finding:
    """The finding for AWS's answer."""
    with answering("ec2", answer) as ec2:
        [finding] = check_image(ec2, fleet_plan(), NOW)
    return finding


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"State": "pending"}, "fail"),
        ({"State": "disabled"}, "fail"),
        ({"Architecture": "arm64"}, "fail"),
        ({"DeprecationTime": "2027-01-10T11:00:00.000Z"}, "warn"),
        ({"DeprecationTime": "2027-01-10T13:00:00.000Z"}, "pass"),
    ],
)
def test_image(changes: dict[str, Any], status: str) -> None:
    """Available and x86_64, or it cannot be started; a deprecated one still can."""
    answer = Answer("describe_images", {"Images": [image(**changes)]}, {"ImageIds": [AMI]})
    assert asked_image(answer).status == status


def test_image_that_is_not_built_yet_fails_with_the_command() -> None:
    """Everything else can be asked before an image is built; nothing is asked of this."""
    with answering("ec2") as ec2:
        [finding] = check_image(ec2, fleet_plan(ami_id=""), NOW)
    assert (finding.status, finding.subject) == ("fail", "-")
    assert "turnback image build ours --wait" in finding.fix


@pytest.mark.parametrize("error", ["", "InvalidAMIID.NotFound", "InvalidAMIID.Malformed"])
def test_missing_image_fails(error: str) -> None:
    """Whether EC2 refuses the id or lists nothing."""
    assert asked_image(Answer("describe_images", {"Images": []}, None, error)).status == "fail"
