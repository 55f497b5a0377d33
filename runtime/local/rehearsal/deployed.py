"""Reads back what a deploy has left in the account, with boto3 alone."""

import base64
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runtime.aws.clients import client
from runtime.aws.rollout.fleet import NodeRole
from runtime.contract.explain import explain
from runtime.contract.names import resource_name
from runtime.contract.node import NodeSpec
from runtime.contract.status import MACHINE_ROLES
from runtime.errors import StartFailed

STACKS = ("network", "image", "fleet", "router", "operations")
ROLES: tuple[NodeRole, ...] = MACHINE_ROLES
_VARIABLE = re.compile(r"^(TURNBACK_[A-Z0-9_]+=.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Stack:
    """One stack as the account shows it.

    Attributes:
        template: its resources.
        made: logical id -> type of what is there.
        outputs: output -> value.
    """

    name: str
    template: Mapping[str, Mapping[str, Any]]
    made: Mapping[str, str]
    outputs: Mapping[str, str]


def read_stacks(deployment: str) -> list[Stack]:
    """The deployment's stacks.

    Raises:
        StartFailed: one is not there, or was not made whole.
    """
    cloudformation = client("cloudformation")
    stacks = []
    for part in STACKS:
        name = resource_name(deployment, part)
        (told,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
        if told["StackStatus"] not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            raise StartFailed(
                f"stack {name} was not deployed",
                got=told["StackStatus"],
                allowed="CREATE_COMPLETE or UPDATE_COMPLETE",
                fix="read the log of cdk deploy",
            )
        resources = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
        stacks.append(
            Stack(
                name,
                cloudformation.get_template(StackName=name)["TemplateBody"]["Resources"],
                # moto lists what it has not made too, without a name.
                {
                    each["LogicalResourceId"]: each["ResourceType"]
                    for each in resources
                    if each.get("LogicalResourceId")
                },
                {each["OutputKey"]: each["OutputValue"] for each in told.get("Outputs", ())},
            )
        )
    return stacks


def parameter(name: str) -> str:
    """Text of an SSM parameter."""
    text: str = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    return text


def node_spec(name: str) -> NodeSpec:
    """The spec in a parameter.

    Raises:
        BadSettings: it is none.
    """
    try:
        return NodeSpec.model_validate_json(parameter(name))
    except ValidationError as error:
        raise explain(error, f"parameter {name}") from error


def launch_template(deployment: str, role: str) -> dict[str, Any]:
    """Data of a role's launch template, newest version."""
    reply = client("ec2").describe_launch_template_versions(
        LaunchTemplateName=resource_name(deployment, role), Versions=["$Latest"]
    )
    data: dict[str, Any] = reply["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


def boot_variables(template: Mapping[str, Any]) -> dict[str, str]:
    """What an instance of a launch template would be told: the variables of its user data."""
    script = base64.b64decode(template["UserData"]).decode("utf-8")
    head = script.split("\nset -", 1)[0]
    words = (shlex.split(line)[0] for line in _VARIABLE.findall(head))
    return dict(word.split("=", 1) for word in words)


def wheel(variables: Mapping[str, str]) -> bytes:
    """The kit's wheel, from where an instance would fetch it."""
    bucket, _, key = variables["TURNBACK_WHEEL_URI"].removeprefix("s3://").partition("/")
    content: bytes = client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    return content


def secret(arn: str) -> str:
    """Text of a secret."""
    text: str = client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"]
    return text


def group_tags(deployment: str, role: str) -> dict[str, str]:
    """Tags of a role's Auto Scaling group, which its instances get."""
    return {tag["Key"]: tag["Value"] for tag in _group(deployment, role)["Tags"]}


def identities(deployment: str) -> dict[str, Any]:
    """What a replacement would change: templates with versions, groups, instances."""
    found: dict[str, Any] = {}
    for role in ROLES:
        (template,) = client("ec2").describe_launch_templates(
            LaunchTemplateNames=[resource_name(deployment, role)]
        )["LaunchTemplates"]
        group = _group(deployment, role)
        found[role] = {
            "template": (template["LaunchTemplateId"], template["LatestVersionNumber"]),
            "group": group["AutoScalingGroupARN"],
            "instances": sorted(each["InstanceId"] for each in group["Instances"]),
        }
    return found


def _group(deployment: str, role: str) -> dict[str, Any]:
    (group,) = client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[resource_name(deployment, role)]
    )["AutoScalingGroups"]
    found: dict[str, Any] = group
    return found
