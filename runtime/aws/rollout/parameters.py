"""Where nodes shall be: what a deployment's parameters and groups say."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from runtime.aws.machines import RolledGroup
from runtime.aws.rollout.fleet import ENGINE_ROLES, NodeRole, Target
from runtime.contract.explain import explain
from runtime.contract.node import NodeSpec
from runtime.contract.status import arguments_generation
from runtime.errors import BadInput


def parameter_names(deployment: str) -> dict[NodeRole, str]:
    """The parameter of each role; the stacks write them under these names."""
    roles: tuple[NodeRole, ...] = (*ENGINE_ROLES, "router")
    return {role: f"/turnback/{deployment}/{role}" for role in roles}


def read_targets(
    ssm: Any, deployment: str, groups: Mapping[NodeRole, RolledGroup]
) -> dict[NodeRole, Target]:
    """Targets of all roles that have a parameter.

    Raises:
        BadInput: engines have none, or one that this kit cannot read.
        BotoCoreError, ClientError: AWS does not answer.
    """
    names = parameter_names(deployment)
    reply = ssm.get_parameters(Names=[*names.values()])
    texts = {each["Name"]: str(each["Value"]) for each in reply["Parameters"]}
    missing = [names[role] for role in ENGINE_ROLES if names[role] not in texts]
    if missing:
        raise _missing(deployment, missing)
    found: dict[NodeRole, Target] = {}
    for role in ENGINE_ROLES:
        pairing = groups[role].pairing if role in groups else ""
        found[role] = _engine_target(names[role], texts[names[role]], pairing)
    if names["router"] in texts:
        found["router"] = _router_target(texts[names["router"]])
    return found


def _engine_target(name: str, text: str, pairing: str) -> Target:
    try:
        spec = NodeSpec.model_validate_json(text)
    except ValidationError as error:
        raise explain(error, f"parameter {name}") from error
    kv = spec.kv
    return Target(spec.generation, kv.decoder_kv_blocks_ttl_s, kv.kv_lease_duration_s, pairing)


def _router_target(text: str) -> Target:
    """One argument a line."""
    return Target(generation=arguments_generation(text.rstrip("\n")))


def _missing(deployment: str, names: list[str]) -> BadInput:
    return BadInput(
        f"deployment {deployment} has no parameters to roll out",
        got=f"no {', '.join(names)}",
        allowed="the name of a deployment whose Fleet stack is deployed in this region",
        fix="give the right name and --region, or deploy first",
    )
