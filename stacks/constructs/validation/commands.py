"""A step that runs a shell command on machines, by SSM Run Command: send, look, tell. Pure."""

from dataclasses import dataclass

from runtime.contract.operations import run_prefix
from stacks.constructs.validation.states import (
    State,
    States,
    after,
    call,
    caught,
    failing,
    last,
    over,
)

POLL_S = 20
_DELIVERY_S = 600
"""In which an agent must have taken a command over."""
_MOST_COMMENT = 100
_NOT_YET_ONLINE = {
    "ErrorEquals": ["Ssm.InvalidInstanceIdException", "Ssm.ThrottlingException"],
    "IntervalSeconds": 15,
    "MaxAttempts": 40,
    "BackoffRate": 1,
}
"""A machine that has just started makes itself known to SSM after some minutes. No other error
is tried again: the command might run twice."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command.

    Attributes:
        name: of the state.
        command: text with `{}` for each argument; it holds no quote.
        arguments: paths or context values, as States.Format takes them.
        targets: path of a list of lists of instance ids, each of at most 50.
        timeout_s: longest run.
        is_answer_read: whether what it prints, one JSON value, is the state's result.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    targets: str
    timeout_s: int
    is_answer_read: bool = False


def step_state(step: Step, deployment: str, bucket: str) -> State:
    """The state of a step; its result is a list with one value a chunk of machines.

    Args:
        step: the command.
        deployment: its name, for the comment that AWS shows.
        bucket: gets what each machine prints, below the run's folder.
    """
    return over(
        step.targets,
        {"run_id.$": "$.run_id", "input.$": "$.input", "ids.$": "$$.Map.Item.Value", "polls": 0},
        "Send",
        _states(step, deployment, bucket),
        prefix=step.name,
    )


def formatted(step: Step) -> str:
    """The command as an intrinsic function."""
    if "'" in step.command or step.command.count("{}") != len(step.arguments):
        raise ValueError(f"{step.name}: a command holds no quote, and a {{}} for each argument")
    return f"States.Format('{', '.join([step.command + chr(39), *step.arguments])})"


def _states(step: Step, deployment: str, bucket: str) -> States:
    printed = f"{run_prefix('{}')}commands/{step.name}"
    send = call(
        "ssm:sendCommand",
        {
            "DocumentName": "AWS-RunShellScript",
            "InstanceIds.$": "$.ids",
            "TimeoutSeconds": _DELIVERY_S,
            "Comment": f"turnback validate {deployment}: {step.name}"[:_MOST_COMMENT],
            "OutputS3BucketName": bucket,
            "OutputS3KeyPrefix.$": f"States.Format('{printed}', $.run_id)",
            "Parameters": {
                "commands.$": f"States.Array({formatted(step)})",
                "executionTimeout": [str(step.timeout_s)],
            },
        },
        again=[_NOT_YET_ONLINE],
    )
    send |= {"ResultSelector": {"id.$": "$.Command.CommandId"}, "ResultPath": "$.sent"}
    look = call("ssm:listCommands", {"CommandId.$": "$.sent.id"})
    look |= {"ResultSelector": {"all.$": "$.Commands[*].Status"}, "ResultPath": "$.look"}
    return {
        "Send": after(send, "Pause"),
        "Pause": {"Type": "Wait", "Seconds": POLL_S, "Next": "Look"},
        "Look": after(look, "Count"),
        "Count": _count(),
        "HasEnded": _has_ended(step),
        "Why": _why(),
        "Broken": failing(
            step.name,
            "States.Format('{} on {}: {}', $.told.status, $.told.id, $.told.output)",
        ),
        "Silent": failing(
            step.name,
            "States.Format('command {} has failed, and what it said cannot be had: {}', "
            "$.sent.id, $.told.Cause)",
        ),
        "Late": failing(
            step.name,
            f"States.Format('{step.name} has not ended within {step.timeout_s} s of its command "
            "{}', $.sent.id)",
        ),
        "Read": _read(step),
    }


def _count() -> State:
    kept = {f"{name}.$": f"$.{name}" for name in ("run_id", "input", "ids", "sent")}
    ended = {
        f"{word}.$": f"States.ArrayContains($.look.all, '{word}')"
        for word in ("Success", "Failed", "TimedOut", "Cancelled")
    }
    counted = {"polls.$": "States.MathAdd($.polls, 1)"}
    return {"Type": "Pass", "Parameters": kept | ended | counted, "Next": "HasEnded"}


def _has_ended(step: Step) -> State:
    failed = [
        {"Variable": f"$.{word}", "BooleanEquals": True}
        for word in ("Failed", "TimedOut", "Cancelled")
    ]
    most = (step.timeout_s + _DELIVERY_S) // POLL_S
    return {
        "Type": "Choice",
        "Choices": [
            {"Variable": "$.Success", "BooleanEquals": True, "Next": "Read"},
            {"Or": failed, "Next": "Why"},
            {"Variable": "$.polls", "NumericGreaterThanEquals": most, "Next": "Late"},
        ],
        "Default": "Pause",
    }


def _why() -> State:
    """The first machine that failed, with the end of what it printed.

    A command that was never taken over has no output: a path to it that is not there would
    end the execution at once, with nodes that nobody ends, were it read outside of a task.
    """
    why = call("ssm:listCommandInvocations", {"CommandId.$": "$.sent.id", "Details": True})
    failed = "$.CommandInvocations[?(@.Status != 'Success')]"
    told = {
        "status.$": f"States.ArrayGetItem({failed}.Status, 0)",
        "id.$": f"States.ArrayGetItem({failed}.InstanceId, 0)",
        "output.$": f"States.ArrayGetItem({failed}.CommandPlugins[*].Output, 0)",
    }
    led = after(why | {"ResultSelector": told, "ResultPath": "$.told"}, "Broken")
    return caught(led, "Silent", "$.told")


def _read(step: Step) -> State:
    if not step.is_answer_read:
        return last({"Type": "Pass", "Parameters": {"command.$": "$.sent.id"}})
    read = call(
        "ssm:getCommandInvocation",
        {"CommandId.$": "$.sent.id", "InstanceId.$": "$.ids[0]"},
    )
    selected = {"answer.$": "States.StringToJson($.StandardOutputContent)"}
    return last(read | {"ResultSelector": selected})
