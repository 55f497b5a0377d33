"""Nodes of a deployment, from the tags of its running EC2 instances."""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.clients import client
from runtime.contract.node import NodeAddress, Role
from runtime.errors import BadInput

DEPLOYMENT_TAG = "turnback:deployment"
ROLE_TAG = "turnback:role"
GENERATION_TAG = "turnback:generation"
PORT_TAG = "turnback:port"
DRAINING_TAG = "turnback:draining"
"""`true` on an instance that is about to end."""

_DEFAULT_PORT = 8000
_PORT = re.compile(r"[0-9]{1,5}")

logger = logging.getLogger("turnback.aws")


def instance_listing(deployment: str) -> Callable[[], Sequence[NodeAddress]]:
    """A callable that lists a deployment's nodes; region and credentials are the environment's.

    Args:
        deployment: value of the tag `turnback:deployment`.

    Raises:
        BadInput: no region; the callable raises it when AWS refuses or cannot be reached.
    """
    told: set[str] = set()

    def node_of(instance: dict[str, Any]) -> NodeAddress | None:
        try:
            return _node(instance)
        except ValueError as error:
            # One instance with wrong tags must not keep the others from being listed.
            problem = f"{instance['InstanceId']}: {error}"
            if problem not in told:
                told.add(problem)
                logger.warning("an instance is left out for its tags: %s", problem)
            return None

    try:
        ec2 = client("ec2")
    except BotoCoreError as error:
        raise _failed(deployment, error) from error

    def listing() -> Sequence[NodeAddress]:
        filters = [
            {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        try:
            pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
            return [
                node
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
                if (node := node_of(instance)) is not None
            ]
        except (BotoCoreError, ClientError) as error:
            raise _failed(deployment, error) from error

    return listing


def _node(instance: dict[str, Any]) -> NodeAddress | None:
    """An instance that serves; None for one of another role, such as a router.

    Raises:
        ValueError: its tags make no node.
    """
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    address = instance.get("PrivateIpAddress") or next(
        (f"[{each['Ipv6Address']}]" for each in _ipv6(instance)), None
    )
    if tags.get(ROLE_TAG) not in ("prefill", "decode") or address is None:
        return None
    port = tags.get(PORT_TAG, str(_DEFAULT_PORT))
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65_535:
        raise ValueError(f"{PORT_TAG} must be 1..65535, not {port!r}")
    return NodeAddress(
        role=cast(Role, tags[ROLE_TAG]),
        url=f"http://{address}:{port}",
        generation=tags.get(GENERATION_TAG, ""),
        draining=tags.get(DRAINING_TAG) == "true",
    )


def _ipv6(instance: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        address
        for interface in instance.get("NetworkInterfaces", ())
        for address in interface.get("Ipv6Addresses", ())
    ]


def _failed(deployment: str, error: Exception) -> BadInput:
    return BadInput(
        f"the instances of deployment {deployment} cannot be listed",
        got=str(error),
        allowed="credentials with ec2:DescribeInstances, and a region",
        fix="set AWS_REGION and credentials, or an instance role that may do this",
    )
