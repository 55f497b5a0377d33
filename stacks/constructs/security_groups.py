"""Who may talk to whom."""

from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.constructs.node_spec import ROUTER_PORT, SERVING_PORT, SIDE_CHANNEL_PORT

HTTPS = 443


class SecurityGroups(Construct):
    """Efa for the EFA interfaces, Node for GPU nodes, Edge for the router and its address.

    Args:
        vpc: where they live.
        listener_port: of the router's address.
        client_cidrs: who may reach that port.
        proxy_port: of the HTTP proxy that nodes use; None: no proxy.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc: ec2.IVpc,
        listener_port: int,
        client_cidrs: Sequence[str],
        proxy_port: int | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.efa = self._group("Efa", vpc, "KV between nodes, over EFA")
        self.nodes = self._group("Node", vpc, "GPU nodes")
        self.edge = self._group("Edge", vpc, "The router and its address")
        self._let_kv_flow()
        self._let_turns_flow(listener_port, client_cidrs)
        for group in (self.nodes, self.edge):
            for port in {HTTPS, proxy_port or HTTPS}:
                group.add_egress_rule(
                    ec2.Peer.any_ipv4(), ec2.Port.tcp(port), "AWS APIs, packages and models"
                )

    def _group(self, construct_id: str, vpc: ec2.IVpc, text: str) -> ec2.SecurityGroup:
        # With all outbound allowed CDK drops the rules below without an error, and EFA
        # wants its own group named in both directions: 0.0.0.0/0 does not count.
        return ec2.SecurityGroup(
            self, construct_id, vpc=vpc, description=text, allow_all_outbound=False
        )

    def _let_kv_flow(self) -> None:
        self.efa.add_ingress_rule(self.efa, ec2.Port.all_traffic(), "EFA from its own group")
        self.efa.add_egress_rule(self.efa, ec2.Port.all_traffic(), "EFA to its own group")
        side_channel = ec2.Port.tcp(SIDE_CHANNEL_PORT)
        self.nodes.add_ingress_rule(self.nodes, side_channel, "NIXL handshakes of other nodes")
        self.nodes.add_egress_rule(self.nodes, side_channel, "NIXL handshakes with other nodes")

    def _let_turns_flow(self, listener_port: int, client_cidrs: Sequence[str]) -> None:
        for cidr in client_cidrs:
            self.edge.add_ingress_rule(ec2.Peer.ipv4(cidr), ec2.Port.tcp(listener_port), "Clients")
        router, serving = ec2.Port.tcp(ROUTER_PORT), ec2.Port.tcp(SERVING_PORT)
        listener = ec2.Port.tcp(listener_port)
        self.edge.add_ingress_rule(self.edge, listener, "Validation on a router to the address")
        self.edge.add_egress_rule(self.edge, listener, "Validation on a router to the address")
        self.edge.add_ingress_rule(self.edge, router, "Load balancer to router")
        self.edge.add_egress_rule(self.edge, router, "Load balancer to router")
        self.edge.add_egress_rule(self.nodes, serving, "Router to engines")
        self.nodes.add_ingress_rule(self.edge, serving, "Router to engines")
