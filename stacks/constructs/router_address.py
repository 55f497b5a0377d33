"""The internal load balancer in front of the routers."""

from aws_cdk import Duration
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticloadbalancingv2 as elbv2
from constructs import Construct

from stacks.constructs.node_spec import ROUTER_PORT
from stacks.network import NetworkStack

_DRAIN = Duration.seconds(60)
"""Longer than a router lets running turns end (30 s)."""


class RouterAddress(Construct):
    """An internal NLB: TLS on 443 with a certificate, TCP on 80 without.

    Args:
        name: of the load balancer.
        network: where it lives.
        certificate_arn: ACM certificate; None: plain TCP.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        network: NetworkStack,
        certificate_arn: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        balancer = elbv2.NetworkLoadBalancer(
            self,
            "Balancer",
            load_balancer_name=name,
            vpc=network.vpc,
            vpc_subnets=ec2.SubnetSelection(subnets=network.node_subnets),
            internet_facing=False,
            security_groups=[network.groups.edge],
        )
        balancer.log_access_logs(network.logs, "nlb")
        target = elbv2.NetworkTargetGroup(
            self,
            "Routers",
            vpc=network.vpc,
            port=ROUTER_PORT,
            protocol=elbv2.Protocol.TCP,
            target_type=elbv2.TargetType.INSTANCE,
            deregistration_delay=_DRAIN,
            # Else a router that asks the address, as a validation's benchmark does, is cut off
            # when it is sent to itself.
            preserve_client_ip=False,
            health_check=elbv2.HealthCheck(
                protocol=elbv2.Protocol.HTTP, path="/health/live", interval=Duration.seconds(10)
            ),
        )
        if certificate_arn:
            balancer.add_listener(
                "Tls",
                port=443,
                protocol=elbv2.Protocol.TLS,
                certificates=[elbv2.ListenerCertificate.from_arn(certificate_arn)],
                ssl_policy=elbv2.SslPolicy.TLS13_RES,
                default_target_groups=[target],
            )
        else:
            balancer.add_listener(
                "Plain", port=80, protocol=elbv2.Protocol.TCP, default_target_groups=[target]
            )
        scheme = "https" if certificate_arn else "http"
        self.url = f"{scheme}://{balancer.load_balancer_dns_name}"
        self.target_group_arn = target.target_group_arn
