"""The ground that nodes stand on: credentials, subnets, the image."""

from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.checks.finding import Finding, error_code
from runtime.aws.plan import FleetPlan

_ARCHITECTURE = "x86_64"
"""Of every type that the kit serves on."""


def check_credentials(sts: Any) -> list[Finding]:
    """Whether AWS knows the caller; nothing else can be asked without."""
    try:
        account = str(sts.get_caller_identity()["Account"])
    except (BotoCoreError, ClientError) as error:
        return [
            Finding(
                "credentials",
                "-",
                "fail",
                str(error),
                "set AWS credentials that sts accepts, and a way to AWS's endpoints",
            )
        ]
    return [Finding("credentials", account, "pass", "accepted")]


def check_subnets(ec2: Any, plan: FleetPlan) -> list[Finding]:
    """Zone, state and free addresses of subnets that exist already.

    A node takes one address: EFA-only interfaces have none.
    """
    nodes = sum(role.count for role in plan.roles)
    if not plan.subnet_ids:
        evidence = "none given: the deployment makes its own"
        return [Finding("subnets", "-", "pass", evidence)]
    ids = ", ".join(plan.subnet_ids)
    try:
        subnets = ec2.describe_subnets(SubnetIds=list(plan.subnet_ids))["Subnets"]
    except ClientError as error:
        if not error_code(error).startswith("InvalidSubnetID"):
            raise
        fix = f"give subnets that exist in {plan.region}"
        return [Finding("subnets", ids, "fail", str(error), fix)]
    wrong = [
        f"{subnet['SubnetId']} is in {subnet['AvailabilityZone']}, not {plan.availability_zone}"
        for subnet in subnets
        if plan.availability_zone
        not in (subnet["AvailabilityZone"], subnet.get("AvailabilityZoneId"))
    ] + [
        f"{subnet['SubnetId']} is {subnet['State']}"
        for subnet in subnets
        if subnet["State"] != "available"
    ]
    if wrong:
        fix = "give subnets of the deployment's zone; EFA does not leave a zone"
        return [Finding("subnets", ids, "fail", "; ".join(wrong), fix)]
    free = sum(subnet["AvailableIpAddressCount"] for subnet in subnets)
    evidence = f"{free} free addresses, one for each of {nodes} nodes"
    if free < nodes:
        fix = "free addresses, or give a larger subnet"
        return [Finding("subnets", ids, "fail", evidence, fix)]
    return [Finding("subnets", ids, "pass", evidence)]


def check_image(ec2: Any, plan: FleetPlan, now: datetime) -> list[Finding]:
    """Whether the AMI can be started on the kit's instance types."""
    if not plan.ami_id:
        fix = f"turnback image build {plan.name} --wait (docs/image.md)"
        return [Finding("image", "-", "fail", "image.ami_id is not given", fix)]
    try:
        images = ec2.describe_images(ImageIds=[plan.ami_id])["Images"]
    except ClientError as error:
        if not error_code(error).startswith("InvalidAMIID"):
            raise
        images = []
    if not images:
        return [
            Finding(
                "image",
                plan.ami_id,
                "fail",
                f"not in {plan.region}, or not shared with this account",
                "copy the AMI to the region, share it, or give another id",
            )
        ]
    image = images[0]
    architecture, state = image.get("Architecture"), image.get("State")
    evidence = f"{state}, {architecture}, {image.get('PlatformDetails', 'platform not told')}"
    if (architecture, state) != (_ARCHITECTURE, "available"):
        fix = f"give an AMI that is available and {_ARCHITECTURE}"
        return [Finding("image", plan.ami_id, "fail", evidence, fix)]
    deprecated = image.get("DeprecationTime")
    if deprecated and datetime.fromisoformat(deprecated) <= now:
        evidence += f", deprecated since {deprecated}"
        return [Finding("image", plan.ami_id, "warn", evidence, "build or take a newer AMI")]
    return [Finding("image", plan.ami_id, "pass", evidence)]
