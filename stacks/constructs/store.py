"""Where several routers keep their handles."""

from aws_cdk import SecretValue
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticache as elasticache
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from stacks.constructs.reasons import acknowledge
from stacks.network import NetworkStack

PORT = 6380


class HandleStore(Construct):
    """Valkey with a password, TLS and a second node; losing it costs cold turns only.

    Args:
        name: of the replication group.
        network: where it lives.
        node_type: ElastiCache's.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        network: NetworkStack,
        node_type: str,
    ) -> None:
        super().__init__(scope, construct_id)
        group = self._add_security_group(network)
        password = self._add_password(name)
        subnets = elasticache.CfnSubnetGroup(
            self,
            "Subnets",
            description=f"Subnets of {name}",
            subnet_ids=[subnet.subnet_id for subnet in network.node_subnets],
        )
        store = elasticache.CfnReplicationGroup(
            self,
            "Group",
            replication_group_id=name,
            replication_group_description="Handles of the routers",
            engine="valkey",
            cache_node_type=node_type,
            num_cache_clusters=2,
            automatic_failover_enabled=True,
            port=PORT,
            auth_token=password.secret_value.unsafe_unwrap(),
            transit_encryption_enabled=True,
            at_rest_encryption_enabled=True,
            cache_subnet_group_name=subnets.ref,
            security_group_ids=[group.security_group_id],
        )
        acknowledge(
            store, "AEC4", "All nodes are in one zone, for EFA; a store elsewhere would help none."
        )
        address = f"{store.attr_primary_end_point_address}:{PORT}"
        url = secretsmanager.Secret(
            self,
            "Url",
            description=f"Address of {name}, with its password",
            secret_string_value=SecretValue.unsafe_plain_text(
                f"valkeys://:{password.secret_value.unsafe_unwrap()}@{address}"
            ),
        )
        for secret in (password, url):
            acknowledge(
                secret, "SMG4", "Rotating it drops all handles; replace the store to change it."
            )
        self.url_secret_arn = url.secret_arn

    def _add_password(self, name: str) -> secretsmanager.Secret:
        return secretsmanager.Secret(
            self,
            "Password",
            description=f"Password of {name}",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                exclude_punctuation=True, password_length=48
            ),
        )

    def _add_security_group(self, network: NetworkStack) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            *(self, "StoreGroup"),
            vpc=network.vpc,
            description="Handle store",
            allow_all_outbound=False,
        )
        edge = network.groups.edge
        ec2.CfnSecurityGroupIngress(
            *(self, "FromRouters"),
            group_id=group.security_group_id,
            source_security_group_id=edge.security_group_id,
            ip_protocol="tcp",
            from_port=PORT,
            to_port=PORT,
            description="Routers",
        )
        ec2.CfnSecurityGroupEgress(
            *(self, "RoutersTo"),
            group_id=edge.security_group_id,
            destination_security_group_id=group.security_group_id,
            ip_protocol="tcp",
            from_port=PORT,
            to_port=PORT,
            description="Handle store",
        )
        return group
