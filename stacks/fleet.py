"""The GPU nodes: one group per role, close together."""

from datetime import datetime
from pathlib import Path
from typing import Any

from aws_cdk import Annotations, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from runtime.contract.deployment import CapacityBlock, DeploymentSettings, OnDemand
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.names import resource_name
from runtime.contract.node import KvTransferSpec, Role
from stacks.constructs.instance_role import InstanceRole
from stacks.constructs.kit import Kit, wheel_sha256
from stacks.constructs.launch_template import LaunchTemplate
from stacks.constructs.names import instance_tags
from stacks.constructs.network_interfaces import build_network_interfaces
from stacks.constructs.node_group import NodeGroup
from stacks.constructs.node_spec import NodeSpecParameter, fleet_specs, node_spec_name
from stacks.constructs.reasons import acknowledge
from stacks.image import ImageStack
from stacks.network import NetworkStack

ROLES: tuple[Role, ...] = ("prefill", "decode")


class FleetStack(Stack):
    """Prefill and decode nodes.

    Args:
        settings: of the deployment.
        network: where they live.
        image: what they boot.
        kit_wheel: what they install.
        now: a Capacity Block's scale-in that lies before it is left out.
        decoder_kv_blocks_ttl_s: how long D keeps a turn's blocks; None: the settings'.
            Changing it changes the NodeSpec parameters alone.
        kv_recompute_threshold_tokens: below this P computes; None: the settings'.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: DeploymentSettings,
        network: NetworkStack,
        image: ImageStack,
        kit_wheel: Path,
        now: datetime,
        decoder_kv_blocks_ttl_s: int | None = None,
        kv_recompute_threshold_tokens: int | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(scope, construct_id, **rest)
        self._settings, self._network, self._image, self._now = settings, network, image, now
        given = {
            "decoder_kv_blocks_ttl_s": decoder_kv_blocks_ttl_s,
            "kv_recompute_threshold_tokens": kv_recompute_threshold_tokens,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        kv = KvTransferSpec.model_validate({**settings.kv.model_dump(), **changed})
        self._specs = fleet_specs(settings, kv, wheel_sha256(kit_wheel))
        self._kit = Kit(self, "Kit", wheel=kit_wheel, settings=settings)
        self._placement_group = self._add_placement_group()
        for role in ROLES:
            self._add_role(role)
        self._warn()

    def _add_placement_group(self) -> str | None:
        """One group for both roles, so that they are close; for on-demand instances only."""
        if not any(isinstance(self._settings.role(each).capacity, OnDemand) for each in ROLES):
            return None
        return ec2.CfnPlacementGroup(self, "Placement", strategy="cluster").ref

    def _add_role(self, role: Role) -> None:
        nodes, name = self._settings.role(role), self._settings.name
        scope = Construct(self, role.capitalize())
        parameter = node_spec_name(name, role)
        NodeSpecParameter(scope, "Spec", deployment=name, spec=self._specs.of(role))
        groups, tags = self._network.groups, instance_tags(self._settings, role)
        template = LaunchTemplate(
            *(scope, "Template"),
            name=resource_name(name, role),
            image_id=self._image.ami_id,
            instance_type=nodes.instance_type,
            interfaces=build_network_interfaces(INSTANCE_TYPES[nodes.instance_type]),
            address_group=groups.nodes,
            efa_group=groups.efa,
            user_data=self._kit.user_data(role, parameter),
            role=self._instance_role(scope, role, parameter),
            root_volume_gib=nodes.root_volume_gib,
            tags=tags,
            capacity=nodes.capacity,
            placement_group=self._placement_group,
        )
        port = str(self._specs.of(role).serving.port)
        group = NodeGroup(
            *(scope, "Nodes"),
            name=resource_name(name, role),
            template=template.template,
            subnet_ids=[subnet.subnet_id for subnet in self._network.node_subnets],
            least=0,
            most=nodes.count + nodes.spare,
            tags={
                **tags,
                "turnback:generation": self._specs.pairing,
                "turnback:port": port,
            },
            group_tags={"turnback:count": str(nodes.count)},
        )
        group.end_before(nodes.capacity, self._now)

    def _instance_role(self, scope: Construct, role: Role, parameter: str) -> iam.Role:
        """What a role's nodes may do."""
        capacity = self._settings.role(role).capacity
        allowed = InstanceRole(
            *(scope, "Instance"),
            parameter_names=[parameter, self._network.models.parameter_name],
            statements=[
                self._kit.may_be_read(),
                self._network.models.may_be_read(self._settings.model.path),
                *([self._may_drain(role)] if isinstance(capacity, CapacityBlock) else ()),
            ],
        )
        if isinstance(capacity, CapacityBlock):
            acknowledge(
                allowed.role,
                f"IAM5[Resource::arn:{self.partition}:ec2:{self.region}:<AWS::AccountId>:instance/*]",
                "A node tags itself before the block ends; its id is not known before it starts, "
                "and only nodes of its deployment and role are taken.",
            )
        acknowledge(
            allowed.role,
            self._network.models.finding(self._settings.model.path),
            "A node reads every file of its model and revision, whose names nobody knows here.",
        )
        return allowed.role

    def _may_drain(self, role: Role) -> iam.PolicyStatement:
        """Nodes of a Capacity Block tell routers of its end; only a role's own may be tagged."""
        owned = {
            "aws:ResourceTag/turnback:deployment": self._settings.name,
            "aws:ResourceTag/turnback:role": role,
        }
        return iam.PolicyStatement(
            actions=["ec2:CreateTags"],
            resources=[self.format_arn(service="ec2", resource="instance", resource_name="*")],
            conditions={
                "StringEquals": owned,
                "ForAllValues:StringEquals": {"aws:TagKeys": ["turnback:draining"]},
            },
        )

    def _warn(self) -> None:
        """Say what works, but is seldom meant."""
        notes = Annotations.of(self)
        types = {self._settings.role(role).instance_type for role in ROLES}
        if len(types) > 1:
            notes.add_warning_v2(
                "turnback:mixed-types",
                f"prefill and decode are of different types ({', '.join(sorted(types))}): NIXL "
                "pairs their EFA devices one to one, and those that are over carry nothing",
            )
        for role in ROLES:
            nodes = self._settings.role(role)
            gpus = INSTANCE_TYPES[nodes.instance_type].gpus
            if nodes.tensor_parallel_size < gpus:
                notes.add_warning_v2(
                    f"turnback:idle-gpus-{role}",
                    f"{role}.tensor_parallel_size {nodes.tensor_parallel_size} leaves "
                    f"{gpus - nodes.tensor_parallel_size} of {gpus} GPUs of each node idle",
                )
