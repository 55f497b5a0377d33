"""Calls to AWS in the middle of long work: what passes by itself is asked again."""

import time
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnection

from runtime.errors import BadInput

T = TypeVar("T")

TRIES = 5
_PAUSE_S = 5.0
_BUSY = ("Throttl", "RequestLimitExceeded", "TooManyRequests")


def ask(
    what: str,
    permissions: str,
    call: Callable[[], T],
    sleep: Callable[[float], None] = time.sleep,
    *,
    tries: int = TRIES,
) -> T:
    """What a call returns. It may be made several times: it must be harmless to repeat.

    Args:
        what: the sentence of the error, such as `the nodes of demo cannot be listed`.
        permissions: IAM actions it needs.
        call: may raise what boto3 raises.
        sleep: the real one, but in tests.
        tries: 1 for a call that is not harmless to repeat.

    Raises:
        BadInput: AWS refuses, or did not answer so many times in a row.
    """
    for _ in range(tries - 1):
        try:
            return call()
        except (BotoCoreError, ClientError) as error:
            if not passes(error):
                raise _refused(what, permissions, error) from error
            sleep(_PAUSE_S)
    try:
        return call()
    except (BotoCoreError, ClientError) as error:
        raise _refused(what, permissions, error) from error


def passes(error: BotoCoreError | ClientError) -> bool:
    """Whether the same call may succeed in a moment."""
    if isinstance(error, ClientError):
        code = error.response["Error"]["Code"]
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or any(word in code for word in _BUSY)
    return isinstance(error, HTTPClientError | NoConnection)


def _refused(what: str, permissions: str, error: Exception) -> BadInput:
    return BadInput(
        what,
        got=str(error),
        allowed=f"credentials with {permissions}, and an AWS that answers",
        fix="set credentials and region, or a role that may do this; then run it again",
    )
