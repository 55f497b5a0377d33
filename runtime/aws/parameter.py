"""Texts out of SSM parameters."""

from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.clients import client
from runtime.aws.patience import passes
from runtime.errors import BadInput, StartFailed

_BRIEF = Config(connect_timeout=1.5, read_timeout=2, retries={"total_max_attempts": 1})


def parameter_text(ssm: Any, name: str) -> str:
    """Text of a parameter.

    Args:
        ssm: boto3's client.
        name: of the parameter.

    Raises:
        BadInput: there is none, or it may not be read.
        StartFailed: AWS does not answer; the same may succeed in a moment.
    """
    try:
        text: str = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    except ClientError as error:
        if passes(error):
            raise _no_answer(name, error) from error
        raise BadInput(
            f"parameter {name} cannot be read",
            got=str(error),
            allowed="a parameter of a deployment, and ssm:GetParameter on it",
            fix="deploy, then start again; aws ssm get-parameter shows what is there",
        ) from error
    except BotoCoreError as error:
        raise _no_answer(name, error) from error
    return text


def brief_parameter_text(name: str, region: str) -> str:
    """Text of a parameter, asked once and briefly: a node's doctor waits for it.

    Raises:
        BadInput, StartFailed: as of `parameter_text`, or there is no region.
    """
    try:
        return parameter_text(client("ssm", region, _BRIEF), name)
    except BotoCoreError as error:
        raise _no_answer(name, error) from error


def _no_answer(name: str, error: Exception) -> StartFailed:
    return StartFailed(
        f"AWS does not answer for parameter {name}",
        got=str(error),
        allowed="a region, credentials, and a way to SSM",
        fix="look at the node's route to SSM (NAT gateway or endpoint ssm), proxy and role",
    )
