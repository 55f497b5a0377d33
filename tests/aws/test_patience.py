"""What passes by itself is asked again; what does not is told at once."""

from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ReadTimeoutError

from runtime.aws.patience import ask
from runtime.errors import BadInput
from tests.aws.fleet import Clock


def refusal(code: str, status: int = 400) -> ClientError:
    """As AWS sends one."""
    error: Any = {"Error": {"Code": code, "Message": "told by a test"}}
    return ClientError(error | {"ResponseMetadata": {"HTTPStatusCode": status}}, "It")


class Asked:
    """A call with these answers in a row, and the time it took."""

    def __init__(self, *answers: Exception | int) -> None:
        self.left, self.clock = [*answers], Clock()

    def call(self) -> int:
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def result(self) -> int:
        """What asking for it ends with."""
        return ask("it cannot be done", "x:Do", self.call, self.clock.sleep)


@pytest.mark.parametrize(
    "error",
    [
        refusal("ThrottlingException"),
        refusal("RequestLimitExceeded", 503),
        refusal("InternalFailure", 500),
        ReadTimeoutError(endpoint_url="https://x.invalid"),
    ],
)
def test_passing_trouble_is_asked_again(error: Exception) -> None:
    """With a pause, at most five times in all."""
    assert Asked(error, error, 7).result() == 7
    often = Asked(*[error] * 5, 7)
    with pytest.raises(BadInput, match="it cannot be done") as failure:
        often.result()
    assert (often.clock.slept, often.left) == ([5.0] * 4, [7])
    assert "x:Do" in failure.value.allowed


@pytest.mark.parametrize("error", [refusal("AccessDenied"), NoCredentialsError()])
def test_refusal_is_told_at_once(error: Exception) -> None:
    """Asking again would change nothing."""
    asked = Asked(error, 7)
    with pytest.raises(BadInput, match="it cannot be done"):
        asked.result()
    assert (asked.clock.slept, asked.left) == ([], [7])
