"""What `turnback router` is started with."""

from aws_cdk import aws_ssm as ssm
from constructs import Construct

from runtime.contract.node import KvTransferSpec
from stacks.constructs.node_spec import ROUTER_PORT


def router_parameter_name(deployment: str) -> str:
    """Name of the parameter that holds the arguments."""
    return f"/turnback/{deployment}/router"


def router_arguments(deployment: str, kv: KvTransferSpec, api_keys_secret: str) -> list[str]:
    """Arguments of a router on EC2.

    Args:
        deployment: whose nodes it serves with.
        kv: as the engines are started with.
        api_keys_secret: ARN of the keys.
    """
    return [
        *("--deployment", deployment),
        *("--host", "0.0.0.0"),  # noqa: S104 - the security group says who reaches it
        *("--port", str(ROUTER_PORT)),
        *("--decoder-kv-blocks-ttl-s", str(kv.decoder_kv_blocks_ttl_s)),
        *("--kv-lease-duration-s", str(kv.kv_lease_duration_s)),
        *("--handle-deadline-margin-s", str(kv.handle_deadline_margin_s)),
        *("--block-size-tokens", str(kv.block_size_tokens)),
        *("--api-keys-secret", api_keys_secret),
    ]


class RouterArguments(Construct):
    """One argument a line, where routers read them at every start."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        deployment: str,
        kv: KvTransferSpec,
        api_keys_secret: str,
    ) -> None:
        super().__init__(scope, construct_id)
        ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=router_parameter_name(deployment),
            description=f"Arguments of the routers of {deployment}",
            string_value="\n".join(router_arguments(deployment, kv, api_keys_secret)),
        )
