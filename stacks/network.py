"""Where a deployment lives: its own VPC or an imported one."""

from typing import Any
from urllib.parse import urlsplit

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3
from constructs import Construct

from runtime.contract.deployment import ImportedNetwork, OwnNetwork
from stacks.constructs.model_bucket import ModelBucket
from stacks.constructs.reasons import acknowledge
from stacks.constructs.security_groups import SecurityGroups
from stacks.constructs.vpc import OwnVpc

_LOG_DAYS = 90


class NetworkStack(Stack):
    """VPC, one subnet for all nodes, security groups, and buckets for logs and models.

    The models' bucket is here, so that it can be filled before there is a fleet, and outlives it.

    Args:
        name: of the deployment.
        availability_zone: of the subnet; EFA does not cross zones.
        network: own or imported.
        listener_port: of the router's address.
        proxy_url: HTTP proxy whose port nodes must reach; None: no proxy.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        availability_zone: str,
        network: OwnNetwork | ImportedNetwork,
        listener_port: int = 443,
        proxy_url: str | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(scope, construct_id, **rest)
        self.logs = self._add_log_bucket()
        self.models = ModelBucket(self, "Models", deployment=name, logs=self.logs)
        if isinstance(network, OwnNetwork):
            own = OwnVpc(
                *(self, "Own"),
                name=name,
                availability_zone=availability_zone,
                cidr=network.cidr,
                has_internet=network.egress == "internet",
                logs=self.logs,
            )
            self.vpc: ec2.IVpc = own.vpc
        else:
            self.vpc = ec2.Vpc.from_vpc_attributes(
                *(self, "Imported"),
                vpc_id=network.vpc_id,
                availability_zones=[availability_zone],
                private_subnet_ids=[network.subnet_id],
            )
        self.groups = SecurityGroups(
            *(self, "Groups"),
            vpc=self.vpc,
            listener_port=listener_port,
            client_cidrs=network.client_cidrs,
            proxy_port=_port(proxy_url),
        )
        if isinstance(network, OwnNetwork) and network.egress == "endpoints":
            own.add_endpoints([self.groups.nodes, self.groups.edge])
        self.node_subnets: list[ec2.ISubnet] = [
            *(self.vpc.private_subnets or self.vpc.isolated_subnets)
        ]

    def _add_log_bucket(self) -> s3.Bucket:
        bucket = s3.Bucket(
            *(self, "Logs"),
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            lifecycle_rules=[s3.LifecycleRule(expiration=Duration.days(_LOG_DAYS))],
            removal_policy=RemovalPolicy.RETAIN,
        )
        acknowledge(bucket, "S1", "It holds access logs; a log of their reading has no reader.")
        return bucket


def _port(url: str | None) -> int | None:
    """Port of an address, also where it is the scheme's."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)
