"""Deletions that moto 5.2.5 has in its APIs and leaves out of its CloudFormation.

Without them `cdk destroy` says that all is gone and leaves these behind, or fails on what
still hangs on them.
"""

from collections.abc import Callable
from typing import Any

from moto.cloudformation.models import Stack
from moto.ec2.models import ec2_backends
from moto.ec2.models.elastic_ip_addresses import ElasticAddress
from moto.ec2.models.flow_logs import FlowLogs
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.subnets import SubnetRouteTableAssociation
from moto.ec2.models.vpcs import VPCEndPoint
from moto.ec2.models.vpn_gateway import VPCGatewayAttachment
from moto.elbv2.models import FakeTargetGroup, elbv2_backends

Put = Callable[[Any, str, Any], None]
_Delete = Callable[[Any, Any], object]


def _disassociate(ec2: Any, made: Any) -> None:
    """moto notes a template's association at the subnet alone."""
    ec2.subnet_associations.pop(f"{made.route_table_id}:{made.subnet_id}")


def _end_endpoint(ec2: Any, made: Any) -> None:
    """moto deletes in any order: a route table may be gone already."""
    made.route_table_ids = [each for each in made.route_table_ids if each in ec2.route_tables]
    ec2.delete_vpc_endpoints([made.id])


def _end_nat(ec2: Any, made: Any) -> None:
    """moto leaves the gateway's interface."""
    ec2.delete_nat_gateway(made.id)
    ec2.delete_network_interface(made._eni.id)


EC2: dict[Any, _Delete] = {
    ElasticAddress: lambda ec2, made: ec2.release_address(address=made.public_ip),
    FlowLogs: lambda ec2, made: ec2.delete_flow_logs([made.id]),
    InternetGateway: lambda ec2, made: ec2.delete_internet_gateway(made.id),
    NatGateway: _end_nat,
    RouteTable: lambda ec2, made: ec2.delete_route_table(made.id),
    SubnetRouteTableAssociation: _disassociate,
    VPCEndPoint: _end_endpoint,
    VPCGatewayAttachment: lambda ec2, made: ec2.detach_internet_gateway(
        made.gateway_id, made.vpc_id
    ),
}
ELBV2: dict[Any, _Delete] = {
    FakeTargetGroup: lambda elbv2, made: elbv2.delete_target_group(made.arn),
}


def apply(put: Put = setattr) -> None:
    """Give each model the method that CloudFormation's deletion looks for.

    Args:
        put: sets an attribute; a test takes it back.
    """
    for backends, deletions in ((ec2_backends, EC2), (elbv2_backends, ELBV2)):
        for model, delete in deletions.items():
            put(model, "delete", _method(backends, delete))
    put(Stack, "delete", _forgetting(Stack.delete))


def _method(backends: Any, delete: _Delete) -> Callable[[Any, str, str], None]:
    def method(self: Any, account_id: str, region_name: str) -> None:
        delete(backends[account_id][region_name], self)

    return method


def _forgetting(delete: Callable[[Any], None]) -> Callable[[Any], None]:
    """moto makes resources when something refers to them: a look at the outputs of a deleted
    stack, as the CDK CLI takes one, would make them anew."""

    def delete_and_forget(self: Any) -> None:
        delete(self)
        self.output_map._output_json_map = {}

    return delete_and_forget
