"""The definition of the state machine, as a table of contents. Pure.

Everything that may fail after nodes were started stands in `Work`, a Parallel of one branch:
its one Catch leads any error of any state in it to the end that scales down.
"""

from dataclasses import dataclass
from typing import Any, get_args

from runtime.contract.names import resource_name
from runtime.contract.operations import (
    BAR_MISSED,
    BELOW_BAR,
    DEPLOYMENT,
    GOOD,
    NAMESPACE,
    VALIDATION_FAILED,
    Metric,
    Mode,
    ScaleDown,
    last_validation_parameter,
    run_prefix,
)
from stacks.constructs.validation import nodes
from stacks.constructs.validation.commands import Step, step_state
from stacks.constructs.validation.states import UNUSED, State, States, after, call, caught, failing

_SETTLE_S = 5
"""ListExecutions knows a new execution a moment late."""
_SURPLUS_S = 1800
"""Of the whole, over the limits of its parts: the end that scales down must not be cut off."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What the definition is made of.

    Attributes:
        deployment: its name.
        counts: nodes of prefill and decode that the settings want.
        bucket: of results.
        topic_arn: of messages.
        model_bucket, manifest_key: where a staged model's manifest lies.
        ready: waits for a node's engine; on nodes.
        doctor: on nodes.
        transport, exactness, benchmark: on a router; each prints a JSON object.
        nodes_timeout_s: longest wait for nodes in service.
    """

    deployment: str
    counts: dict[str, int]
    bucket: str
    topic_arn: str
    model_bucket: str
    manifest_key: str
    ready: Step
    doctor: Step
    transport: Step
    exactness: Step
    benchmark: Step
    nodes_timeout_s: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """In their order."""
        return self.ready, self.doctor, self.transport, self.exactness, self.benchmark

    @property
    def timeout_s(self) -> int:
        """Of an execution: a last resort, since it scales nothing down."""
        return self.nodes_timeout_s + sum(each.timeout_s + 900 for each in self.steps) + _SURPLUS_S


def definition(of: Validation) -> dict[str, Any]:
    """The definition, before references are filled in."""
    return {
        "Comment": f"Validates deployment {of.deployment}: docs/validate.md",
        "StartAt": "CheckInput",
        "TimeoutSeconds": of.timeout_s,
        "States": {**_beginning(of), **_work(of), **_good_end(of), **_bad_end(of)},
    }


def _beginning(of: Validation) -> States:
    plan = [
        {"role": role, "group": resource_name(of.deployment, role), "wanted": count}
        for role, count in of.counts.items()
    ]
    begin = {"run_id.$": "$$.Execution.Name", "input.$": "$", "groups": [], "plan": plan}
    runs = call(
        "sfn:listExecutions",
        {"StateMachineArn.$": "$$.StateMachine.Id", "StatusFilter": "RUNNING", "MaxResults": 100},
    )
    # The newest stand first.
    oldest = (
        "States.ArrayGetItem($.Executions[*].Name, "
        "States.MathAdd(States.ArrayLength($.Executions[*].Name), -1))"
    )
    runs |= {"ResultSelector": {"oldest.$": oldest}, "ResultPath": "$.runs"}
    is_first = {"Variable": "$.runs.oldest", "StringEqualsPath": "$.run_id", "Next": "LookAtGroups"}
    return {
        "CheckInput": _check_input(),
        "WrongInput": failing(
            "WrongInput",
            "the input must be an object with mode (validate or scale), scale_up (true or false), "
            "scale_down (always, on_failure or never), min_speedup and slo_ttft_p90_ms (numbers, "
            "0 for none); turnback validate gives it",
        ),
        "Begin": {"Type": "Pass", "Parameters": begin, "Next": "Settle"},
        "Settle": {"Type": "Wait", "Seconds": _SETTLE_S, "Next": "ListRuns"},
        "ListRuns": caught(after(runs, "IsFirst"), "SaveFailure"),
        "IsFirst": {"Type": "Choice", "Choices": [is_first], "Default": "AnotherRuns"},
        "AnotherRuns": failing(
            "AnotherRuns",
            "States.Format('execution {} of this deployment runs; one runs at a time', "
            "$.runs.oldest)",
        ),
        "LookAtGroups": caught(after(nodes.look_at_groups(), "Work"), "SaveFailure"),
    }


def _check_input() -> State:
    def one_of(name: str, *words: str) -> dict[str, Any]:
        return {"Or": [{"Variable": f"$.{name}", "StringEquals": word} for word in words]}

    def is_there(name: str) -> dict[str, Any]:
        return {"Variable": f"$.{name}", "IsPresent": True}

    # Numbers go into a shell command: nothing but a number may.
    numbers = ("min_speedup", "slo_ttft_p90_ms")
    return {
        "Type": "Choice",
        "Choices": [
            {
                "And": [
                    *map(is_there, ("mode", "scale_up", "scale_down", *numbers)),
                    one_of("mode", *get_args(Mode)),
                    {"Variable": "$.scale_up", "IsBoolean": True},
                    one_of("scale_down", *get_args(ScaleDown)),
                    *({"Variable": f"$.{name}", "IsNumeric": True} for name in numbers),
                ],
                "Next": "Begin",
            }
        ],
        "Default": "WrongInput",
    }


def _work(of: Validation) -> States:
    branch = {"StartAt": "AreNodesMissing", "States": {**_scaling(of), **_checking(of)}}
    work: State = {"Type": "Parallel", "Branches": [branch], "ResultPath": "$.work"}
    return {"Work": caught(after(work, "Scaled"), "FailedScaleDown")}


def _scaling(of: Validation) -> States:
    router = resource_name(of.deployment, "router")
    missing = {"missing.$": "States.ArrayContains($.groups[*].missing, true)"}
    there = {"Variable": "$.any.missing", "BooleanEquals": False, "Next": "WaitForNodes"}
    asked = {"Variable": "$.input.scale_up", "BooleanEquals": True, "Next": "IsModelStaged"}
    staged = call("s3:headObject", {"Bucket": of.model_bucket, "Key": of.manifest_key})
    told = after(caught(staged, "ModelNotStaged", "$.head"), "StartNodes")
    return {
        "AreNodesMissing": {
            "Type": "Pass",
            "Parameters": missing,
            "ResultPath": "$.any",
            "Next": "MayStart",
        },
        "MayStart": {"Type": "Choice", "Choices": [there, asked], "Default": "NodesMissing"},
        "NodesMissing": failing(
            "NodesMissing",
            "fewer nodes run than the settings want, and the run was not asked to start them: "
            f"turnback scale up {of.deployment} --wait, or turnback validate {of.deployment} "
            "--scale-up",
        ),
        "IsModelStaged": told | {"ResultPath": UNUSED},
        "ModelNotStaged": failing(
            "ModelNotStaged",
            f"States.Format('no node was started, since its model is not to be had: {{}}; "
            f"turnback model stage {of.deployment} --from FOLDER, then turnback validate "
            f"{of.deployment} --scale-up', $.head.Cause)",
        ),
        "StartNodes": after(nodes.start_nodes(), "WaitForNodes"),
        "WaitForNodes": after(nodes.wait_for_nodes(of.nodes_timeout_s), "FindRouter"),
        "FindRouter": caught(after(nodes.find_router(router), "Targets"), "NoRouter", "$.router"),
        "NoRouter": failing(
            "NoRouter",
            f"States.Format('no router of {router} is in service: {{}}', $.router.Cause)",
        ),
    }


def _checking(of: Validation) -> States:
    targets = {
        "nodes.$": "States.ArrayPartition($.up[*].ids[*], 50)",
        "router.$": "States.Array(States.Array($.router.id))",
    }

    def step(one: Step, following: str, result: str = UNUSED) -> State:
        state = step_state(one, of.deployment, of.bucket)
        return after(state, following) | {"ResultPath": result}

    only = {"Variable": "$.input.mode", "StringEquals": "scale", "Next": "OnlyScaled"}
    verdict = "$.benchmark[0].answer.verdict"
    good = {"Or": [{"Variable": verdict, "StringEquals": word} for word in (GOOD, BELOW_BAR)]}
    told = {"And": [{"Variable": verdict, "IsPresent": True}, good], "Next": "Result"}
    result = {"Type": "Pass", "OutputPath": "$.benchmark[0].answer", "End": True}
    scaled = {"verdict": GOOD, "mode": "scale"}
    return {
        "Targets": {
            "Type": "Pass",
            "Parameters": targets,
            "ResultPath": "$.targets",
            "Next": of.ready.name,
        },
        of.ready.name: step(of.ready, of.doctor.name),
        of.doctor.name: step(of.doctor, "IsScaleAll"),
        "IsScaleAll": {"Type": "Choice", "Choices": [only], "Default": of.transport.name},
        "OnlyScaled": {"Type": "Pass", "Result": scaled, "End": True},
        of.transport.name: step(of.transport, of.exactness.name, "$.transport"),
        of.exactness.name: step(of.exactness, of.benchmark.name, "$.exactness"),
        of.benchmark.name: step(of.benchmark, "IsTold", "$.benchmark"),
        "IsTold": {"Type": "Choice", "Choices": [told], "Default": "NotTold"},
        "NotTold": failing(
            of.benchmark.name, "the benchmark ended well, and its answer has no verdict"
        ),
        "Result": result,
    }


def _good_end(of: Validation) -> States:
    always = {"Variable": "$.input.scale_down", "StringEquals": "always", "Next": "ScaleDown"}
    summary = {
        "state": "ended",
        "run_id.$": "$.run_id",
        "ended_utc.$": "$$.State.EnteredTime",
        "result.$": "$.work[0]",
    }
    is_missed = {"Variable": "$.work[0].verdict", "StringEquals": BELOW_BAR, "Next": "BarMissed"}

    def publish(state: State, following: str) -> State:
        return caught(after(state, following), "FailedScaleDown") | {"ResultPath": UNUSED}

    return {
        "Scaled": {"Type": "Choice", "Choices": [always], "Default": "Summary"},
        "ScaleDown": caught(after(nodes.end_nodes("Down"), "Summary"), "FailedScaleDown")
        | {"ResultPath": UNUSED},
        "Summary": {
            "Type": "Pass",
            "Parameters": summary,
            "ResultPath": "$.summary",
            "Next": "SaveResult",
        },
        "SaveResult": publish(_save(of), "IsBarMissed"),
        "IsBarMissed": {"Type": "Choice", "Choices": [is_missed], "Default": "GoodMetrics"},
        "BarMissed": publish(_metrics(of, {VALIDATION_FAILED: 0, BAR_MISSED: 1}), "NotifyMissed"),
        "GoodMetrics": publish(_metrics(of, {VALIDATION_FAILED: 0, BAR_MISSED: 0}), "Notify"),
        "NotifyMissed": publish(_notify(of, "a result is below a bar"), "Ended"),
        "Notify": publish(_notify(of, "validated"), "Ended"),
        "Ended": {"Type": "Succeed", "OutputPath": "$.summary"},
    }


def _bad_end(of: Validation) -> States:
    """Nodes first, so that nothing that comes after keeps them running."""
    never = {"Variable": "$.input.scale_down", "StringEquals": "never", "Next": "SaveFailure"}
    summary = {
        "state": "failed",
        "run_id.$": "$.run_id",
        "ended_utc.$": "$$.State.EnteredTime",
        "failed.$": "$.failed",
    }
    file = call(
        "s3:putObject",
        {
            "Bucket": of.bucket,
            "Key.$": f"States.Format('{run_prefix('{}')}failure.json', $.run_id)",
            "Body.$": "$.summary",
            "ContentType": "application/json",
        },
    )

    def go_on(state: State, following: str) -> State:
        return caught(after(state, following), following, "$.unpublished") | {"ResultPath": UNUSED}

    return {
        "FailedScaleDown": {"Type": "Choice", "Choices": [never], "Default": "EndNodes"},
        "EndNodes": caught(after(nodes.end_nodes("End"), "SaveFailure"), "NodesRun", "$.running")
        | {"ResultPath": UNUSED},
        "NodesRun": {
            "Type": "Pass",
            "Parameters": {
                "Error.$": "$.failed.Error",
                "Cause.$": "States.Format('the nodes still run: they could not be ended ({}); "
                f"turnback scale down {of.deployment}. Before that: {{}}', "
                "$.running.Cause, $.failed.Cause)",
            },
            "ResultPath": "$.failed",
            "Next": "SaveFailure",
        },
        "SaveFailure": {
            "Type": "Pass",
            "Parameters": summary,
            "ResultPath": "$.summary",
            "Next": "SaveFailureFile",
        },
        "SaveFailureFile": go_on(file, "SaveFailureResult"),
        "SaveFailureResult": go_on(_save(of), "FailureMetrics"),
        "FailureMetrics": go_on(_metrics(of, {VALIDATION_FAILED: 1}), "NotifyFailure"),
        "NotifyFailure": go_on(_notify(of, "the validation failed"), "Failed"),
        "Failed": {"Type": "Fail", "ErrorPath": "$.failed.Error", "CausePath": "$.failed.Cause"},
    }


def _save(of: Validation) -> State:
    return call(
        "ssm:putParameter",
        {
            "Name": last_validation_parameter(of.deployment),
            "Value.$": "States.JsonToString($.summary)",
            "Overwrite": True,
            "Tier": "Intelligent-Tiering",
        },
    )


def _metrics(of: Validation, values: dict[Metric, int]) -> State:
    data = [
        {
            "MetricName": metric.name,
            "Unit": metric.unit,
            "Value": value,
            "Dimensions": [{"Name": DEPLOYMENT, "Value": of.deployment}],
        }
        for metric, value in values.items()
    ]
    return call("cloudwatch:putMetricData", {"Namespace": NAMESPACE, "MetricData": data})


def _notify(of: Validation, what: str) -> State:
    return call(
        "sns:publish",
        {
            "TopicArn": of.topic_arn,
            "Subject": f"turnback {of.deployment}: {what}",
            "Message.$": "States.JsonToString($.summary)",
        },
    )
