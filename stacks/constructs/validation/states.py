"""Small pieces of an Amazon States Language definition (JSONPath). Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.contract.operations import ERRORS, INPUT_ERRORS, START_ERRORS, STEPS

State = dict[str, Any]
States = dict[str, State]

UNUSED = "$.unused"
"""Where results go that nobody reads; a null ResultPath does not outlive the CDK."""
_CALL_S = 60
_AGAIN = {
    "ErrorEquals": ["States.ALL"],
    "IntervalSeconds": 2,
    "MaxAttempts": 4,
    "BackoffRate": 2,
}
"""Of a call that is harmless to repeat."""


def call(
    service: str, parameters: Mapping[str, Any], *, again: Sequence[Mapping[str, Any]] = (_AGAIN,)
) -> State:
    """A task that calls an AWS API.

    Args:
        service: such as `ssm:listCommands`.
        parameters: of the call.
        again: its retries; empty for a call that must be made once.
    """
    return {
        "Type": "Task",
        "Resource": f"arn:aws:states:::aws-sdk:{service}",
        "Parameters": dict(parameters),
        "TimeoutSeconds": _CALL_S,
        **({"Retry": [dict(each) for each in again]} if again else {}),
    }


def over(
    items: str, select: Mapping[str, Any], start: str, states: States, *, prefix: str
) -> State:
    """A map over items, side by side.

    Args:
        items: path of the list.
        select: what each iteration is given.
        start: its first state.
        states: its states.
        prefix: of their names, which must be unique in the whole machine.
    """
    return {
        "Type": "Map",
        "ItemsPath": items,
        "ItemSelector": dict(select),
        "ItemProcessor": {
            "ProcessorConfig": {"Mode": "INLINE"},
            "StartAt": prefix + start,
            "States": {prefix + name: _led(each, prefix) for name, each in states.items()},
        },
    }


def _led(state: State, prefix: str) -> State:
    """A state whose followers have a prefix."""
    led = {
        key: prefix + each if key in ("Next", "Default") else each for key, each in state.items()
    }
    if "Choices" in led:
        led["Choices"] = [{**each, "Next": prefix + each["Next"]} for each in led["Choices"]]
    if "Catch" in led:
        led["Catch"] = [{**each, "Next": prefix + each["Next"]} for each in led["Catch"]]
    return led


def after(state: State, following: str) -> State:
    """The state, followed by another."""
    return {**state, "Next": following}


def last(state: State) -> State:
    """The state, as the last one of its chain."""
    return {**state, "End": True}


def caught(state: State, following: str, path: str = "$.failed") -> State:
    """The state; after any error the other follows, with Error and Cause at the path."""
    return {
        **state,
        "Catch": [{"ErrorEquals": ["States.ALL"], "ResultPath": path, "Next": following}],
    }


def failing(error: str, cause: str) -> State:
    """The end of a run that cannot go on.

    Args:
        error: its name, after `turnback.`.
        cause: text, or an intrinsic function.

    Raises:
        ValueError: `turnback validate` does not know the error.
    """
    known = (*INPUT_ERRORS, *START_ERRORS, *STEPS)
    if error not in known:
        raise ValueError(f"error {error} is none of {', '.join(known)}")
    key = "CausePath" if cause.startswith("States.") else "Cause"
    return {"Type": "Fail", "Error": f"{ERRORS}{error}", key: cause}
