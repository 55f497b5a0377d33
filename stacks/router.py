"""The router service: CPU nodes behind an internal address."""

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from runtime.contract.deployment import DeploymentSettings
from runtime.contract.names import resource_name
from runtime.contract.node import KvTransferSpec
from stacks.constructs.api_keys import ApiKeysSecret
from stacks.constructs.instance_role import InstanceRole
from stacks.constructs.kit import Kit
from stacks.constructs.launch_template import LaunchTemplate
from stacks.constructs.names import instance_tags
from stacks.constructs.network_interfaces import NetworkInterface
from stacks.constructs.node_group import NodeGroup
from stacks.constructs.router_address import RouterAddress
from stacks.constructs.router_arguments import RouterArguments, router_parameter_name
from stacks.constructs.store import HandleStore
from stacks.image import ImageStack
from stacks.network import NetworkStack

ROOT_VOLUME_GIB = 100
"""At least the image's: routers boot the nodes' image where they have none of their own."""


class RouterStack(Stack):
    """Routers of a deployment.

    Args:
        settings: of the deployment.
        network: where they live.
        image: what they boot.
        kit_wheel: what they install.
        decoder_kv_blocks_ttl_s: as D is started with; None: the settings'. Changing it
            changes the routers' parameter alone.
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
        decoder_kv_blocks_ttl_s: int | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(scope, construct_id, **rest)
        self._settings, self._network, self._image = settings, network, image
        ttl_s = decoder_kv_blocks_ttl_s or settings.kv.decoder_kv_blocks_ttl_s
        self._kv = KvTransferSpec.model_validate(
            {**settings.kv.model_dump(), "decoder_kv_blocks_ttl_s": ttl_s}
        )
        self._kit = Kit(self, "Kit", wheel=kit_wheel, settings=settings)
        self._keys = ApiKeysSecret(self, "ApiKeys", deployment=settings.name)
        self._store = self._add_store()
        self._address = RouterAddress(
            *(self, "Address"),
            name=f"turnback-{settings.name}",
            network=network,
            certificate_arn=settings.router.certificate_arn,
        )
        self._add_nodes()
        self._add_outputs()

    def _add_store(self) -> HandleStore | None:
        if self._settings.router.replicas == 1:
            return None
        return HandleStore(
            *(self, "Store"),
            name=resource_name(self._settings.name, "store"),
            network=self._network,
            node_type=self._settings.router.store_node_type,
        )

    def _add_nodes(self) -> None:
        settings, name = self._settings, self._settings.name
        parameter = router_parameter_name(name)
        RouterArguments(
            *(self, "Arguments"), deployment=name, kv=self._kv, api_keys_secret=self._keys.arn
        )
        secrets = [self._keys.arn, *([self._store.url_secret_arn] if self._store else [])]
        allowed = InstanceRole(
            *(self, "Instance"),
            parameter_names=[parameter],
            statements=[
                self._kit.may_be_read(),
                iam.PolicyStatement(actions=["secretsmanager:GetSecretValue"], resources=secrets),
                iam.PolicyStatement(actions=["ec2:DescribeInstances"], resources=["*"]),
            ],
        )
        tags = instance_tags(settings, "router")
        template = LaunchTemplate(
            *(self, "Template"),
            name=resource_name(name, "router"),
            image_id=self._image.router_ami_id,
            instance_type=settings.router.instance_type,
            interfaces=[NetworkInterface(0, 0, "interface")],
            address_group=self._network.groups.edge,
            efa_group=self._network.groups.efa,
            user_data=self._kit.user_data(
                "router", parameter, self._store.url_secret_arn if self._store else ""
            ),
            role=allowed.role,
            root_volume_gib=ROOT_VOLUME_GIB,
            tags=tags,
        )
        # CPU nodes are to be had: these start with the stack.
        nodes = NodeGroup(
            *(self, "Nodes"),
            name=resource_name(name, "router"),
            template=template.template,
            subnet_ids=[subnet.subnet_id for subnet in self._network.node_subnets],
            least=settings.router.replicas,
            most=settings.router.replicas,
            tags=tags,
            target_group_arns=[self._address.target_group_arn],
        )
        if self._store:
            nodes.node.add_dependency(self._store)

    def _add_outputs(self) -> None:
        CfnOutput(self, "Url", value=self._address.url, description="OpenAI-compatible address")
        CfnOutput(
            self,
            "ApiKeysSecret",
            value=self._keys.arn,
            description="Secret with the clients' keys",
        )
