"""What a deploy has left, held against its templates and against what a node would do."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.contract.names import resource_name
from runtime.errors import StartFailed
from runtime.local.rehearsal import census, checks, deployed
from runtime.local.rehearsal.deployed import Stack

EMPTY_BY_DESIGN = frozenset({"TURNBACK_INDEX_URL", "TURNBACK_PROXY_URL", "TURNBACK_STORE_SECRET"})
"""Variables of user data that may be empty: no index but pip's own, no proxy, no block store."""


def checked_stacks(deployment: str) -> list[Stack]:
    """The deployment's stacks, of which everything is there, whole, and refers to something.

    Raises:
        StartFailed: something is not as the templates say.
    """
    stacks = deployed.read_stacks(deployment)
    made = _named(stacks, {stack.name: stack.made for stack in stacks})
    types = {
        stack.name: {logical: each["Type"] for logical, each in stack.template.items()}
        for stack in stacks
    }
    checks.check_skipped(_named(stacks, types), made)
    census.check_covers(made.values())
    values: dict[str, Any] = {f"{stack.name} outputs": stack.outputs for stack in stacks}
    for role in deployed.ROLES:
        values |= _checked_node(deployment, role, stacks)
    checks.check_no_empty_values(values)
    return stacks


def _named(stacks: Sequence[Stack], by_stack: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Logical ids are a stack's own: with the stack's name they are the account's."""
    return {
        f"{stack.name}/{logical}": each
        for stack in stacks
        for logical, each in by_stack[stack.name].items()
    }


def _checked_node(deployment: str, role: str, stacks: Sequence[Stack]) -> dict[str, Any]:
    """What an instance of a role would boot from; returns its parameter's content."""
    name = resource_name(deployment, role)
    template = deployed.launch_template(deployment, role)
    checks.check_launch_template(name, _wanted_template(stacks, name), template)
    variables = deployed.boot_variables(template)
    check_variables(name, variables)
    _check_wheel(variables)
    parameter = variables["TURNBACK_PARAMETER"]
    text = deployed.parameter(parameter)
    if role == "router":
        return {parameter: text.splitlines()}
    deployed.node_spec(parameter)
    # Its own text, which stacks write without nulls: the model would fill in what is lost.
    return {parameter: json.loads(text)}


def check_variables(name: str, variables: Mapping[str, str]) -> None:
    """What user data says refers to something; first of all, since all else is found by it.

    Args:
        name: of the launch template.
        variables: as decoded.

    Raises:
        StartFailed: with every variable that does not.
    """
    told = {
        variable: text
        for variable, text in variables.items()
        if text or variable not in EMPTY_BY_DESIGN
    }
    checks.check_no_empty_values({f"user data of {name}": told})


def _wanted_template(stacks: Sequence[Stack], name: str) -> Any:
    (data,) = (
        resource["Properties"]["LaunchTemplateData"]
        for stack in stacks
        for resource in stack.template.values()
        if resource.get("Properties", {}).get("LaunchTemplateName") == name
    )
    return data


def _check_wheel(variables: Mapping[str, str]) -> None:
    digest = hashlib.sha256(deployed.wheel(variables)).hexdigest()
    if digest != variables["TURNBACK_WHEEL_SHA256"]:
        raise StartFailed(
            "a node would refuse the kit's wheel",
            got=f"{variables['TURNBACK_WHEEL_URI']} with sha256 {digest}",
            allowed=variables["TURNBACK_WHEEL_SHA256"],
            fix="mend stacks/constructs/kit.py",
        )


def check_only_parameters_changed(
    before: Sequence[Stack], after: Sequence[Stack], was: Any, now: Any
) -> int:
    """A new TTL is a change of parameters alone; returns of how many.

    Args:
        before, after: stacks, in the same order.
        was, now: `deployed.identities`.

    Raises:
        StartFailed: another resource was changed, or one was replaced.
    """
    changed = {
        f"{one.name}/{logical}": kind
        for one, other in zip(before, after, strict=True)
        for logical, kind in checks.changed_resources(one.template, other.template).items()
    }
    if {*changed.values()} != {"AWS::SSM::Parameter"} or now != was:
        raise StartFailed(
            "a new TTL changes more, or less, than parameters",
            got=f"changed: {changed}; now: {now}",
            allowed=f"changed: SSM parameters; still: {was}",
            fix="find what depends on the TTL in stacks/",
        )
    return len(changed)


def retained(stacks: Sequence[Stack]) -> dict[str, int]:
    """Type -> how many resources outlive their stack."""
    kinds = [
        resource["Type"]
        for stack in stacks
        for resource in stack.template.values()
        if resource.get("DeletionPolicy") == "Retain"
    ]
    return {kind: kinds.count(kind) for kind in kinds}
