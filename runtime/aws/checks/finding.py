"""A check's answer, and how checks are run."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

Status = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw.

    Attributes:
        check: its name.
        subject: what it looked at, such as an instance type or an id.
        status: `fail` where the deployment would not start as planned; `warn` where it may not,
            or where AWS did not tell.
        evidence: what AWS answered.
        fix: what to do; empty when it passed.
    """

    check: str
    subject: str
    status: Status
    evidence: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A question that takes at most a few calls.

    Attributes:
        name: of its findings, or of the one that says it could not be asked.
        subject: likewise.
        permission: IAM actions it needs.
        ask: may raise what boto3 raises.
    """

    name: str
    subject: str
    permission: str
    ask: Callable[[], Sequence[Finding]]


def run_checks(checks: Sequence[Check], timeout_s: float) -> list[Finding]:
    """Ask all at once; one that fails or hangs keeps none of the others from an answer.

    Args:
        checks: in the order of the answers.
        timeout_s: the longest wait for any of them.
    """
    answers: list[list[Finding]] = [[] for _ in checks]

    def ask(check: Check, answer: list[Finding]) -> None:
        answer.extend(_answer(check))

    # Daemons: a name server that hangs has no timeout in botocore, and must not hold the exit.
    threads = [
        threading.Thread(target=ask, args=pair, daemon=True)
        for pair in zip(checks, answers, strict=True)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    findings = []
    for check, thread, answer in zip(checks, threads, answers, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()))
        # A copy: what comes later than the deadline is not seen.
        findings += list(answer) or [_silent(check, f"no answer within {timeout_s:g} s")]
    return findings


def _answer(check: Check) -> Sequence[Finding]:
    try:
        return check.ask()
    except (NoCredentialsError, PartialCredentialsError) as error:
        return [_silent(check, str(error), "give credentials: see the check of that name")]
    except (ConnectionError, HTTPClientError) as error:
        return [_silent(check, str(error), "look for what is in the way: network, proxy")]
    except (BotoCoreError, ClientError) as error:
        return [_silent(check, str(error))]
    except Exception as error:  # noqa: BLE001 - the edge of a thread; the others still answer
        return [_silent(check, f"an answer that cannot be read: {error!r}")]


def _silent(check: Check, evidence: str, fix: str = "") -> Finding:
    fix = fix or f"allow {check.permission}, and look for what keeps AWS from answering"
    return Finding(check.name, check.subject, "warn", f"not known: {evidence}", fix)


def error_code(error: ClientError) -> str:
    """AWS's word for it."""
    return str(error.response.get("Error", {}).get("Code", ""))
