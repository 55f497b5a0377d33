"""Starts a deployment's validation, follows it, and says what came of it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from runtime.aws.patience import ask
from runtime.contract.operations import (
    ERRORS,
    INPUT_ERRORS,
    START_ERRORS,
    STEPS,
    ScaleDown,
    state_machine_name,
    validation_input,
)
from runtime.errors import BadInput, EngineDied, StartFailed, TurnbackError

_POLL_S = 5.0
_TAIL_LINES = 3
_MAY_START = "states:ListStateMachines, states:ListExecutions and states:StartExecution"
_MAY_FOLLOW = "states:DescribeExecution and states:GetExecutionHistory"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a validation is asked for.

    Attributes:
        scale_up: whether missing nodes are started.
        scale_down: when they are ended.
        min_speedup, slo_ttft_p90_ms: bars; None: none.
    """

    scale_up: bool = False
    scale_down: ScaleDown = "always"
    min_speedup: float | None = None
    slo_ttft_p90_ms: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The state machine's input."""
        return validation_input(
            "validate",
            scale_up=self.scale_up,
            scale_down=self.scale_down,
            min_speedup=self.min_speedup,
            slo_ttft_p90_ms=self.slo_ttft_p90_ms,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execution ended.

    Attributes:
        execution: its ARN.
        status: AWS's word.
        summary: what it published, where it ended well.
        error, cause: where it did not.
    """

    execution: str
    status: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    cause: str = ""

    @property
    def result(self) -> Mapping[str, Any]:
        """Of the benchmark; empty without one."""
        found: Mapping[str, Any] = self.summary.get("result", {})
        return found

    def failure(self, deployment: str) -> TurnbackError | None:
        """The error of an execution that did not end well; its exit code is the command's."""
        if self.status == "SUCCEEDED":
            return None
        word = self.error.removeprefix(ERRORS)
        kind: type[TurnbackError] = BadInput if word in INPUT_ERRORS else StartFailed
        if self.error.startswith(ERRORS) and word not in (*INPUT_ERRORS, *START_ERRORS):
            kind = EngineDied  # what a step has found wrong
        is_cut = self.status in ("ABORTED", "TIMED_OUT")
        again = f"; then turnback validate {deployment} --wait"
        return kind(
            f"the validation of {deployment} has {self.status.lower().replace('_', ' ')}"
            + (f" at {word}" if word else ""),
            got=self.cause or "no reason",
            allowed="every step ends well",
            fix=(
                f"nodes that it started may still run: turnback scale down {deployment}"
                if is_cut
                else f"mend what the reason names; docs/validate.md{again}"
            ),
        )


def find_machine(states: Any, deployment: str) -> str:
    """ARN of a deployment's state machine.

    Raises:
        BadInput: there is none, or AWS refuses.
    """
    name = state_machine_name(deployment)

    def find() -> list[str]:
        pages = states.get_paginator("list_state_machines").paginate()
        return [
            str(each["stateMachineArn"])
            for page in pages
            for each in page["stateMachines"]
            if each["name"] == name
        ]

    found = ask(f"the validation of {deployment} cannot be looked for", _MAY_START, find)
    if not found:
        raise BadInput(
            f"deployment {deployment} has no validation in {states.meta.region_name}",
            got=f"no state machine {name}",
            allowed="the name of a deployment whose Operations stack is deployed in this region",
            fix="give the right name and --region, or deploy first",
        )
    return found[0]


def running(states: Any, machine: str) -> str | None:
    """ARN of the execution that runs; None: none does."""
    reply = ask(
        "its executions cannot be listed",
        _MAY_START,
        lambda: states.list_executions(stateMachineArn=machine, statusFilter="RUNNING"),
    )
    found = reply["executions"]
    return str(found[-1]["executionArn"]) if found else None


def start(states: Any, deployment: str, wish: Wish, now: datetime | None = None) -> str:
    """Start a validation; returns its execution's ARN.

    Raises:
        BadInput: there is no such deployment, one runs already, or AWS refuses.
    """
    machine = find_machine(states, deployment)
    other = running(states, machine)
    if other is not None:
        raise BadInput(
            f"a validation of {deployment} runs already",
            got=other,
            allowed="one at a time",
            fix=f"turnback validate {deployment} --follow shows it",
        )
    name = f"{now or datetime.now(UTC):%Y%m%d-%H%M%S}-asked"
    reply = ask(
        f"the validation of {deployment} cannot be started",
        _MAY_START,
        # With one name it is started once, however often it is asked.
        lambda: states.start_execution(
            stateMachineArn=machine, name=name, input=json.dumps(wish.to_dict())
        ),
    )
    return str(reply["executionArn"])


@dataclass(slots=True)
class Follower:
    """Tells what an execution does until it has ended.

    Attributes:
        states: boto3's client.
        tell: takes lines.
        sleep: the real one, but in tests.
    """

    states: Any
    tell: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    _seen: int = 0
    _began: datetime | None = None

    def follow(self, execution: str) -> Outcome:
        """Poll until the end.

        Raises:
            BadInput: AWS refuses, or does not answer.
        """
        while True:
            found = ask(
                "the execution cannot be looked at",
                _MAY_FOLLOW,
                lambda: self.states.describe_execution(executionArn=execution),
            )
            self._tell_news(execution)
            if found["status"] != "RUNNING":
                return Outcome(
                    execution,
                    str(found["status"]),
                    json.loads(found.get("output") or "{}"),
                    str(found.get("error", "")),
                    str(found.get("cause", "")),
                )
            self.sleep(_POLL_S)

    def _tell_news(self, execution: str) -> None:
        for event in self._news(execution):
            self._began = self._began or event["timestamp"]
            passed_s = (event["timestamp"] - self._began).total_seconds()
            for line in lines_of(event):
                self.tell(f"{passed_s:6.0f} s  {line}")
            self._seen = max(self._seen, event["id"])

    def _news(self, execution: str) -> list[dict[str, Any]]:
        """Newest first from AWS, so that a long run's polls are not read again and again."""
        fresh: list[dict[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            page = ask(
                "the execution's history cannot be read",
                _MAY_FOLLOW,
                lambda token=token: self.states.get_execution_history(  # type: ignore[misc]
                    executionArn=execution, reverseOrder=True, maxResults=200, **token
                ),
            )
            new = [event for event in page["events"] if event["id"] > self._seen]
            fresh += new
            if len(new) < len(page["events"]) or not page.get("nextToken"):
                return sorted(fresh, key=lambda event: int(event["id"]))
            token = {"nextToken": page["nextToken"]}


def lines_of(event: Mapping[str, Any]) -> list[str]:
    """What an event tells a user: a step that begins, what a command printed, a failure."""
    entered = event.get("stateEnteredEventDetails", {}).get("name")
    if entered in STEPS:
        return [STEPS[entered]]
    if "taskSucceededEventDetails" in event:
        return [f"  {line}" for line in _printed(event["taskSucceededEventDetails"])]
    if event["type"] in ("TaskFailed", "ExecutionFailed"):
        key = event["type"][0].lower() + event["type"][1:] + "EventDetails"
        details = event.get(key, {})
        told = str(details.get("cause", "")).strip().splitlines() or ["no reason"]
        return [f"  {details.get('error', 'failed')}: {told[0]}"]
    return []


def _printed(details: Mapping[str, Any]) -> list[str]:
    """The last lines of a command's stderr, where a step's progress goes."""
    if details.get("resource") != "getCommandInvocation":
        return []
    told = json.loads(details.get("output") or "{}")
    lines = str(told.get("StandardErrorContent", "")).strip().splitlines()
    return lines[-_TAIL_LINES:]
