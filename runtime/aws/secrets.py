"""Texts out of AWS Secrets Manager."""

from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.clients import client
from runtime.errors import BadInput


def secret_text(secret_id: str) -> Callable[[], str]:
    """A callable that reads a secret's current text.

    Args:
        secret_id: name or ARN; region and credentials are the environment's.

    The callable raises BadInput when there is no such text, or AWS does not answer.
    """

    clients: list[Any] = []  # one, made at the first reading: it takes a tenth of a second

    def read() -> str:
        try:
            if not clients:
                clients.append(client("secretsmanager"))
            value = clients[0].get_secret_value(SecretId=secret_id)
        except (BotoCoreError, ClientError) as error:
            raise _unreadable(f"{secret_id}: {error}") from error
        if "SecretString" not in value:
            raise _unreadable(f"{secret_id}: bytes, no text")
        return str(value["SecretString"])

    return read


def _unreadable(got: str) -> BadInput:
    return BadInput(
        "a secret cannot be read",
        got=got,
        allowed="a secret with text, and secretsmanager:GetSecretValue on it",
        fix="give the secret's ARN, and credentials that may read it",
    )
