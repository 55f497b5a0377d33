"""Checks are run so that none holds up the others."""

import threading

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)

from runtime.aws.checks.finding import Check, Finding, run_checks

GOOD = Finding("good", "-", "pass", "seen")


def check(name: str, ask: object) -> Check:
    """A check that calls `ask`."""
    return Check(name, "it", "ec2:Ask", ask)  # type: ignore[arg-type] # some break on purpose


def raising(error: Exception) -> object:
    """A question that ends with an error."""

    def ask() -> list[Finding]:
        raise error

    return ask


def test_every_check_is_answered_after_a_failure() -> None:
    """Refusals, missing credentials and unreadable answers are warnings of their own check."""
    refusal = ClientError({"Error": {"Code": "AccessDenied"}}, "Ask")
    findings = run_checks(
        [
            check("refused", raising(refusal)),
            check("alone", raising(NoCredentialsError())),
            check("odd", raising(KeyError("Quota"))),
            check("good", lambda: [GOOD]),
        ],
        5,
    )
    assert [(each.check, each.status) for each in findings] == [
        ("refused", "warn"),
        ("alone", "warn"),
        ("odd", "warn"),
        ("good", "pass"),
    ]
    assert "AccessDenied" in findings[0].evidence
    assert "ec2:Ask" in findings[0].fix
    assert "KeyError" in findings[2].evidence


def test_hanging_check_is_given_up() -> None:
    """After its time it is told as unknown; the others have their answers."""
    release = threading.Event()

    def hang() -> list[Finding]:
        release.wait(5)
        return [GOOD]

    findings = run_checks([check("slow", hang), check("good", lambda: [GOOD])], 0.05)
    release.set()
    assert [(each.check, each.status) for each in findings] == [("slow", "warn"), ("good", "pass")]
    assert "no answer within 0.05 s" in findings[0].evidence


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (NoCredentialsError(), "give credentials"),
        (PartialCredentialsError(provider="env", cred_var="aws_secret_access_key"), "credentials"),
        (EndpointConnectionError(endpoint_url="https://sts"), "network, proxy"),
        (ReadTimeoutError(endpoint_url="https://sts"), "network, proxy"),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "Any"), "allow iam:Any"),
    ],
    ids=["none", "half", "no way", "silent", "refused"],
)
def test_fix_fits_what_kept_the_answer_away(error: Exception, fix: str) -> None:
    """Permissions are named only where AWS has refused."""

    def ask() -> list[Finding]:
        raise error

    (finding,) = run_checks([Check("quota", "x", "iam:Any", ask)], timeout_s=5)
    assert finding.status == "warn"
    assert fix in finding.fix
    assert ("iam:Any" in finding.fix) is isinstance(error, ClientError)
