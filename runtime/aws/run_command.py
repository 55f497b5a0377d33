"""Commands on a deployment's machines, by SSM Run Command: no SSH, no open port."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.patience import passes

_MOST_TARGETS = 50
"""SendCommand takes no more ids."""
_DELIVERY_S = 60
"""In which an agent must have taken a command over."""
_POLL_S = 2.0
_ENDED = ("Success", "Failed", "TimedOut", "Cancelled")
_GONE = "it takes no commands any more: it has stopped, or its SSM agent has"
_DOCUMENT = "AWS-RunShellScript"
_INFORMATION = "InstanceInformationList"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a command on one machine.

    Attributes:
        is_done: whether it ended with exit code 0.
        output: its stdout.
        problem: why not, in AWS's words and its stderr; empty when it did.
    """

    is_done: bool
    output: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Runs shell commands on machines that their SSM agent has made known.

    Attributes:
        ssm: boto3's client.
        sleep, clock: the real ones, but in tests.
    """

    ssm: Any
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def online(self, instances: Sequence[str]) -> set[str]:
        """Those whose agent takes commands.

        Raises:
            BotoCoreError, ClientError: AWS does not answer.
        """
        known: set[str] = set()
        for some in _parts(instances):
            pages = self.ssm.get_paginator("describe_instance_information").paginate(
                Filters=[
                    {"Key": "InstanceIds", "Values": some},
                    {"Key": "PingStatus", "Values": ["Online"]},
                ]
            )
            known |= {each["InstanceId"] for page in pages for each in page[_INFORMATION]}
        return known

    def run(
        self, instances: Sequence[str], command: str, *, timeout_s: int, comment: str
    ) -> dict[str, Outcome]:
        """Run a command and wait until it has ended everywhere. Each machine gets it once.

        A machine that has stopped since it was listed is told so, and the others get it.

        Args:
            instances: ids; their agents must be online.
            command: for /bin/sh, run as root.
            timeout_s: longest run; the wait is longer by the time of delivery.
            comment: what AWS shows beside the command, at most 100 characters.

        Raises:
            BotoCoreError, ClientError: AWS refuses, or does not answer.
        """
        outcomes: dict[str, Outcome] = {}
        asked = {
            "DocumentName": _DOCUMENT,
            "TimeoutSeconds": _DELIVERY_S,
            "Comment": comment[:100],
            "Parameters": {"commands": [command], "executionTimeout": [str(timeout_s)]},
        }
        for some in _parts(instances):
            sent = self._send(some, asked)
            until_s = self.clock() + _DELIVERY_S + timeout_s
            for instance in some:
                command_id = sent.get(instance)
                outcomes[instance] = (
                    Outcome(is_done=False, problem=_GONE)
                    if command_id is None
                    else self._follow(command_id, instance, until_s)
                )
        return outcomes

    def _send(self, instances: list[str], asked: Mapping[str, Any]) -> dict[str, str]:
        """Ids of commands by machine; one that takes none is left out.

        Source: SendCommand refuses the whole list with InvalidInstanceId where one of it does
        not run, or has no agent; it does not say which.
        """
        try:
            sent = self.ssm.send_command(InstanceIds=instances, **asked)
        except ClientError as error:
            if error.response["Error"]["Code"] != "InvalidInstanceId":
                raise
            if len(instances) == 1:
                return {}
            alone = [self._send([each], asked) for each in instances]
            return {name: command for each in alone for name, command in each.items()}
        return dict.fromkeys(instances, str(sent["Command"]["CommandId"]))

    def _follow(self, command_id: str, instance: str, until_s: float) -> Outcome:
        while True:
            try:
                found = self._invocation(command_id, instance)
            except (BotoCoreError, ClientError) as error:
                if not passes(error) or self.clock() >= until_s:
                    raise
                self.sleep(_POLL_S)
                continue
            if found is not None and found["Status"] in _ENDED:
                return _outcome(found)
            if self.clock() >= until_s:
                status = found["Status"] if found else "not delivered"
                return Outcome(is_done=False, problem=f"{status} when time was up")
            self.sleep(_POLL_S)

    def _invocation(self, command_id: str, instance: str) -> dict[str, Any] | None:
        try:
            reply = self.ssm.get_command_invocation(CommandId=command_id, InstanceId=instance)
            return dict(reply)
        except ClientError as error:
            # It is not there at once after SendCommand.
            if error.response["Error"]["Code"] == "InvocationDoesNotExist":
                return None
            raise


def _parts(instances: Sequence[str]) -> list[list[str]]:
    starts = range(0, len(instances), _MOST_TARGETS)
    return [[*instances[start : start + _MOST_TARGETS]] for start in starts]


def _outcome(found: dict[str, Any]) -> Outcome:
    output, errors = (
        str(found.get(key, "")).strip() for key in ("StandardOutputContent", "StandardErrorContent")
    )
    if found["Status"] == "Success":
        return Outcome(is_done=True, output=output)
    told = f"{found['Status']}, exit code {found.get('ResponseCode', -1)}"
    return Outcome(is_done=False, output=output, problem=f"{told}: {errors}" if errors else told)
