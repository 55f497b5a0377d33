"""A VPC of one zone."""

import ipaddress
from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3
from constructs import Construct

ENDPOINTS = (
    "ssm",
    "ssmmessages",
    "ec2messages",
    "ec2",
    "autoscaling",
    "secretsmanager",
    "logs",
    "monitoring",
    "sts",
    "kms",
)
"""Interface endpoints of a network without internet; S3 has a gateway in any case."""


class OwnVpc(Construct):
    """A subnet for nodes, and a public one for the NAT gateway where there is internet.

    Args:
        name: of the deployment.
        availability_zone: of both subnets.
        cidr: of the VPC, /16 to /24; nodes get its first half.
        has_internet: whether there is a NAT gateway.
        logs: bucket of the flow log.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        availability_zone: str,
        cidr: str,
        has_internet: bool,
        logs: s3.IBucket,
    ) -> None:
        super().__init__(scope, construct_id)
        half = ipaddress.ip_network(cidr).prefixlen + 1
        kind = ec2.SubnetType
        nodes = ec2.SubnetConfiguration(
            name="Node",
            cidr_mask=half,
            subnet_type=kind.PRIVATE_WITH_EGRESS if has_internet else kind.PRIVATE_ISOLATED,
        )
        public = ec2.SubnetConfiguration(
            name="Public", cidr_mask=28, subnet_type=kind.PUBLIC, map_public_ip_on_launch=False
        )
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            vpc_name=f"turnback-{name}",
            ip_addresses=ec2.IpAddresses.cidr(cidr),
            availability_zones=[availability_zone],
            nat_gateways=1 if has_internet else 0,
            subnet_configuration=[nodes, public] if has_internet else [nodes],
            # It would take a Lambda function; nothing here uses the default group.
            restrict_default_security_group=False,
        )
        self.vpc.add_flow_log("FlowLog", destination=ec2.FlowLogDestination.to_s3(logs, "vpc-flow"))
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)

    def add_endpoints(self, users: Sequence[ec2.ISecurityGroup]) -> None:
        """Put the services that nodes call into the VPC.

        Args:
            users: groups that may reach them.
        """
        group = ec2.SecurityGroup(
            *(self, "EndpointGroup"),
            vpc=self.vpc,
            description="Interface endpoints",
            allow_all_outbound=False,
        )
        for user in users:
            group.add_ingress_rule(user, ec2.Port.tcp(443), "AWS APIs")
        for service in ENDPOINTS:
            self.vpc.add_interface_endpoint(
                service,
                service=ec2.InterfaceVpcEndpointAwsService(service),
                security_groups=[group],
                open=False,
            )
