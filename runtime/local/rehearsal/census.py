"""Every resource of the account, counted before the first deploy and after the last."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jmespath  # type: ignore[import-untyped]

from runtime.aws.clients import client
from runtime.errors import StartFailed

Census = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Listing:
    """How the ids of a type are listed.

    Attributes:
        service: boto3's name.
        call: of its client.
        ids: JMESPath of the ids.
    """

    service: str
    call: str
    ids: str


_ALIVE = "[?!contains(['deleted', 'terminated'], State)]"
LISTINGS: Mapping[str, Listing] = {
    "AWS::AutoScaling::AutoScalingGroup": Listing(
        "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups[].AutoScalingGroupARN"
    ),
    "AWS::CloudFormation::Stack": Listing(
        "cloudformation", "describe_stacks", "Stacks[].StackName"
    ),
    "AWS::CloudWatch::Dashboard": Listing(
        "cloudwatch", "list_dashboards", "DashboardEntries[].DashboardName"
    ),
    "AWS::EC2::EIP": Listing("ec2", "describe_addresses", "Addresses[].AllocationId"),
    "AWS::EC2::FlowLog": Listing("ec2", "describe_flow_logs", "FlowLogs[].FlowLogId"),
    "AWS::EC2::Instance": Listing(
        "ec2",
        "describe_instances",
        "Reservations[].Instances[?State.Name != 'terminated'].InstanceId[]",
    ),
    "AWS::EC2::InternetGateway": Listing(
        "ec2", "describe_internet_gateways", "InternetGateways[].InternetGatewayId"
    ),
    "AWS::EC2::LaunchTemplate": Listing(
        "ec2", "describe_launch_templates", "LaunchTemplates[].LaunchTemplateId"
    ),
    "AWS::EC2::NatGateway": Listing(
        "ec2", "describe_nat_gateways", f"NatGateways{_ALIVE}.NatGatewayId"
    ),
    "AWS::EC2::NetworkInterface": Listing(
        # Those of instances end with them; moto keeps a terminated one's.
        "ec2",
        "describe_network_interfaces",
        "NetworkInterfaces[?!Attachment].NetworkInterfaceId",
    ),
    "AWS::EC2::RouteTable": Listing("ec2", "describe_route_tables", "RouteTables[].RouteTableId"),
    "AWS::EC2::SecurityGroup": Listing(
        "ec2", "describe_security_groups", "SecurityGroups[].GroupId"
    ),
    "AWS::EC2::Subnet": Listing("ec2", "describe_subnets", "Subnets[].SubnetId"),
    "AWS::EC2::VPC": Listing("ec2", "describe_vpcs", "Vpcs[].VpcId"),
    "AWS::EC2::VPCEndpoint": Listing(
        "ec2", "describe_vpc_endpoints", f"VpcEndpoints{_ALIVE}.VpcEndpointId"
    ),
    "AWS::ElasticLoadBalancingV2::LoadBalancer": Listing(
        "elbv2", "describe_load_balancers", "LoadBalancers[].LoadBalancerArn"
    ),
    "AWS::ElasticLoadBalancingV2::TargetGroup": Listing(
        "elbv2", "describe_target_groups", "TargetGroups[].TargetGroupArn"
    ),
    "AWS::Events::Rule": Listing("events", "list_rules", "Rules[].Arn"),
    "AWS::IAM::InstanceProfile": Listing(
        "iam", "list_instance_profiles", "InstanceProfiles[].InstanceProfileName"
    ),
    "AWS::IAM::Role": Listing("iam", "list_roles", "Roles[].RoleName"),
    "AWS::Logs::LogGroup": Listing("logs", "describe_log_groups", "logGroups[].arn"),
    "AWS::SNS::Topic": Listing("sns", "list_topics", "Topics[].TopicArn"),
    "AWS::StepFunctions::StateMachine": Listing(
        "stepfunctions", "list_state_machines", "stateMachines[].stateMachineArn"
    ),
    "AWS::S3::Bucket": Listing("s3", "list_buckets", "Buckets[].Name"),
    "AWS::SSM::Parameter": Listing("ssm", "describe_parameters", "Parameters[].Name"),
    "AWS::SecretsManager::Secret": Listing("secretsmanager", "list_secrets", "SecretList[].ARN"),
}
"""Type -> its listing; instances and interfaces besides, which groups and endpoints make."""

PARTS = frozenset(
    {
        "AWS::EC2::PlacementGroup",  # a name alone, in the emulator
        "AWS::EC2::Route",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::VPCGatewayAttachment",
        "AWS::ElasticLoadBalancingV2::Listener",
        "AWS::IAM::Policy",
    }
)
"""Types without a listing: they end with what they are a part of."""


_MORE = ("NextToken", "NextMarker", "Marker", "IsTruncated")
"""What replies with more to come say."""


def census() -> Census:
    """Type -> ids of all that the account holds.

    Raises:
        StartFailed: a listing has more than can be read.
    """
    return {kind: frozenset(_ids(listing)) for kind, listing in LISTINGS.items()}


def _ids(listing: Listing) -> Iterable[str]:
    ids: Iterable[str] | None = jmespath.search(listing.ids, _all_pages(listing))
    return ids or ()


def _all_pages(listing: Listing) -> Mapping[str, Any]:
    """What is on another page is there too: moto has 10 parameters on one."""
    asked = client(listing.service)
    if asked.can_paginate(listing.call):
        pages: Mapping[str, Any] = asked.get_paginator(listing.call).paginate().build_full_result()
        return pages
    reply: Mapping[str, Any] = getattr(asked, listing.call)()
    if more := [mark for mark in _MORE if reply.get(mark)]:
        raise StartFailed(
            "the census sees a part of the account alone",
            got=f"{listing.service} {listing.call}: {', '.join(more)}",
            allowed="a reply with all there is, or a call that boto3 can page",
            fix="page it in census.py",
        )
    return reply


def check_covers(types: Iterable[str]) -> None:
    """The census would see each type that a deploy has made.

    Raises:
        StartFailed: it would miss one, and call the account empty.
    """
    unseen = sorted({*types} - {*LISTINGS} - PARTS)
    if unseen:
        raise StartFailed(
            "what is left of these types would not be seen",
            got=", ".join(unseen),
            allowed="types of census.LISTINGS, or parts of those",
            fix="add a line to census.LISTINGS",
        )


def check_nothing_left(before: Census, after: Census, retained: Mapping[str, int]) -> None:
    """The account holds what it held, and what the templates retain.

    Args:
        before: before the first deploy.
        after: after the destroy.
        retained: type -> how many resources have a DeletionPolicy of Retain.

    Raises:
        StartFailed: more is left, or what was to stay is gone.
    """
    wrong = []
    for kind in LISTINGS:
        left, gone = after[kind] - before[kind], before[kind] - after[kind]
        if len(left) != retained.get(kind, 0) or gone:
            wrong.append(f"{kind}: left {sorted(left)}, gone {sorted(gone)}")
    if wrong:
        raise StartFailed(
            "destroy has not left the account as it was",
            got="; ".join(wrong),
            allowed=f"what was there before, and of what is retained: {dict(retained)}",
            fix="read the log of cdk destroy; a type that the emulator cannot delete goes into "
            "deletions.py",
        )
