"""Settings -> NodeSpec, and the only writer of NodeSpecs to SSM."""

import hashlib
import json
from dataclasses import dataclass

from aws_cdk import aws_ssm as ssm
from constructs import Construct

from runtime.contract.deployment import CapacityBlock, DeploymentSettings
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.model import MODELS
from runtime.contract.node import (
    OWN_ADDRESS,
    ImageSpec,
    KvTransferSpec,
    NodeSpec,
    Role,
    ServingSpec,
    TransportSpec,
)
from runtime.contract.profile import load_profile

SERVING_PORT = 8000
SIDE_CHANNEL_PORT = 5600
ROUTER_PORT = 8000
_STANDARD_TIER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FleetSpecs:
    """What the nodes of a deployment are.

    Attributes:
        prefill: spec of a prefill node.
        decode: spec of a decode node.
        pairing: what must be equal for two nodes to exchange KV; the tag
            `turnback:generation`. A new TTL does not change it, a new image does.
    """

    prefill: NodeSpec
    decode: NodeSpec
    pairing: str

    def of(self, role: Role) -> NodeSpec:
        """The spec of a role."""
        return self.prefill if role == "prefill" else self.decode


def fleet_specs(settings: DeploymentSettings, kv: KvTransferSpec, kit: str) -> FleetSpecs:
    """Both roles' specs, with their generation.

    Args:
        settings: of the deployment.
        kv: how KV moves.
        kit: fingerprint of the kit's wheel.
    """
    bare = {role: _spec(settings, kv, role) for role in ("prefill", "decode")}
    image = [settings.image.ami_id, kit]
    generation = _fingerprint(*image, *(spec.model_dump(mode="json") for spec in bare.values()))
    served = bare["prefill"]
    pairing = _fingerprint(
        *image,
        str(served.serving.model),
        served.serving.dtype,
        kv.model_dump(include={"bidirectional", "backends", "block_size_tokens"}, mode="json"),
        kv.model_dump(include={"prefix_hash_algorithm", "prefix_hash_seed"}, mode="json"),
    )
    specs = {
        role: spec.model_copy(update={"generation": generation}) for role, spec in bare.items()
    }
    return FleetSpecs(specs["prefill"], specs["decode"], pairing)


def _spec(settings: DeploymentSettings, kv: KvTransferSpec, role: str) -> NodeSpec:
    side: Role = "prefill" if role == "prefill" else "decode"
    nodes, profile = settings.role(side), load_profile(settings.profile).serving
    instance = INSTANCE_TYPES[nodes.instance_type]
    return NodeSpec(
        role=side,
        serving=ServingSpec(
            model=MODELS / settings.model.path,
            served_model_name=settings.model.id,
            dtype=profile.dtype,
            tensor_parallel_size=nodes.tensor_parallel_size,
            max_model_len=profile.max_model_len,
            max_num_seqs=profile.max_num_seqs,
            enable_prefix_caching=side == "decode" or settings.caches_on_prefill,
            port=SERVING_PORT,
        ),
        kv=kv,
        transport=TransportSpec(
            allow_tcp=settings.transport.allow_tcp, efa_devices=instance.efa_interfaces
        ),
        image=ImageSpec(engine_version=settings.image.engine_version),
        host=OWN_ADDRESS,
        side_channel_port=SIDE_CHANNEL_PORT,
        drains_at=nodes.capacity.drains_at if isinstance(nodes.capacity, CapacityBlock) else None,
    )


def _fingerprint(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def node_spec_name(deployment: str, role: Role) -> str:
    """Name of the parameter that holds a role's spec."""
    return f"/turnback/{deployment}/{role}"


class NodeSpecParameter(Construct):
    """The spec of a role, where its nodes read it at boot."""

    def __init__(
        self, scope: Construct, construct_id: str, *, deployment: str, spec: NodeSpec
    ) -> None:
        super().__init__(scope, construct_id)
        value = spec.model_dump_json(exclude_none=True)
        if len(value) > _STANDARD_TIER_BYTES:
            raise ValueError(
                f"the {spec.role} spec has {len(value)} bytes, a parameter takes "
                f"{_STANDARD_TIER_BYTES}: shorten model.id or model.revision"
            )
        self.parameter = ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=node_spec_name(deployment, spec.role),
            description=f"NodeSpec of the {spec.role} nodes of {deployment}",
            string_value=value,
        )
