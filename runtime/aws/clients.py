"""Clients of AWS APIs, with limits on every wait."""

import os
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from runtime.contract.status import NODE_ENVIRONMENT
from runtime.errors import BadInput

_TIMEOUTS = Config(connect_timeout=3, read_timeout=5, retries={"max_attempts": 2})
_ONCE = _TIMEOUTS.merge(Config(retries={"total_max_attempts": 1}))
"""For calls that are not harmless to repeat: `runtime.aws.patience` repeats those that are."""
TRANSFERS = Config(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "max_attempts": 4},
    max_pool_connections=40,
)
"""For gigabytes: a stalled connection is left, a broken range is asked for again."""

_PRICE_LIST_REGION = "us-east-1"
"""The Price List API has endpoints in a few regions only; each tells the prices of all."""


def client(service: str, region: str = "", config: Config = _TIMEOUTS) -> Any:
    """A client with the environment's credentials.

    Args:
        service: boto3's name of it.
        region: AWS's name; empty: the environment's.
        config: limits on waits and retries.

    Raises:
        BotoCoreError: no region.

    Source:
        boto3 reads AWS_DEFAULT_REGION alone; ECS, Lambda and other SDKs set AWS_REGION.
    """
    name = region or os.environ.get("AWS_REGION") or None
    return boto3.client(service, region_name=name, config=config)


def transfer_client(region: str = "") -> Any:
    """S3 for models, which may be used by many threads."""
    return client("s3", region, TRANSFERS)


def node_client(service: str, config: Config = _TIMEOUTS) -> Any:
    """A client of a node, whose settings user data has written.

    Raises:
        BadInput: they cannot be used: trying again changes nothing.
    """
    try:
        return client(service, config=config)
    except (BotoCoreError, ValueError) as error:
        raise BadInput(
            "the node's settings for AWS cannot be used",
            got=str(error),
            allowed=f"AWS_REGION, and proxies if any, in {NODE_ENVIRONMENT}",
            fix="mend the file, or deploy again and start new nodes; then restart the unit",
        ) from error


@dataclass(frozen=True, slots=True)
class PreflightClients:
    """What preflight asks. boto3's clients may be shared by threads; making them may not."""

    ec2: Any
    quotas: Any
    pricing: Any
    sts: Any


def preflight_clients(region: str) -> PreflightClients:
    """Clients of one region."""
    return PreflightClients(
        ec2=client("ec2", region),
        quotas=client("service-quotas", region),
        pricing=client("pricing", _PRICE_LIST_REGION),
        sts=client("sts", region),
    )


@dataclass(frozen=True, slots=True)
class ScaleClients:
    """What scaling asks."""

    autoscaling: Any
    ec2: Any
    pricing: Any


def scale_clients(region: str = "") -> ScaleClients:
    """Clients of one region; empty: the environment's.

    Raises:
        BotoCoreError: no region.
    """
    return ScaleClients(
        autoscaling=client("autoscaling", region),
        ec2=client("ec2", region),
        pricing=client("pricing", _PRICE_LIST_REGION),
    )


@dataclass(frozen=True, slots=True)
class RolloutClients:
    """What a rollout asks."""

    autoscaling: Any
    ec2: Any
    elbv2: Any
    ssm: Any


def rollout_clients(region: str = "") -> RolloutClients:
    """Clients of one region; empty: the environment's.

    Raises:
        BotoCoreError: no region.
    """
    return RolloutClients(
        autoscaling=client("autoscaling", region, _ONCE),
        ec2=client("ec2", region),
        elbv2=client("elbv2", region),
        ssm=client("ssm", region, _ONCE),
    )
