"""Clients of AWS APIs, with limits on every wait."""

import os
from typing import Any

import boto3
from botocore.config import Config

_TIMEOUTS = Config(connect_timeout=3, read_timeout=5, retries={"max_attempts": 2})


def client(service: str, region: str | None = None) -> Any:
    """A client with the environment's credentials.

    Args:
        service: as boto3 names it.
        region: None: the environment's.

    Raises:
        BotoCoreError: no region.

    Source:
        boto3 reads AWS_DEFAULT_REGION alone; ECS, Lambda and other SDKs set AWS_REGION.
    """
    return boto3.client(
        service, region_name=region or os.environ.get("AWS_REGION") or None, config=_TIMEOUTS
    )
