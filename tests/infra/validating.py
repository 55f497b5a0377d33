"""The deployed state machine, run by moto's interpreter in an account whose machines are played.

What is put in moto's place, all of it:
- SSM Run Command: moto knows commands and runs none. A command ends as the test says.
- Waits and pauses between tries pass at once.
- Paths: what has a `*` or a filter gives a list, also an empty one; what has neither gives the
  value itself. moto fails at the empty list, and gives a list for `$.a[0].b`.
- An error of Step Functions' own within a map goes on to what is around it; moto has no name
  for it. A body that is no text is put into S3 as JSON.
- `aws-sdk:sfn` takes and gives names with capitals; moto hands them on as they are.
- Errors of `aws-sdk:ssm` have AWS's prefix `Ssm.`; moto has the service's lower-case name.
"""

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import boto3
import botocore.client
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.cloudformation import parsing
from moto.core.config import default_user_config
from moto.stepfunctions.parser.asl.component.common.error_name import custom_error_name
from moto.stepfunctions.parser.asl.component.common.retry import retrier_decl
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
    state_task_service_aws_sdk,
)
from moto.stepfunctions.parser.asl.component.state.wait.wait_function import wait_function
from moto.stepfunctions.parser.asl.utils import boto_client, json_path

from runtime.contract.operations import last_validation_parameter, state_machine_name
from runtime.local.rehearsal import account, deletions, mends
from tests.infra.synth import Synth, raw_settings, synth

Given = dict[str, Any]
GIVEN: Given = {
    "mode": "validate",
    "scale_up": True,
    "scale_down": "always",
    "min_speedup": 0,
    "slo_ttft_p90_ms": 0,
}
GOOD = {"verdict": "good", "speedup": 1.5, "report": "s3://results/runs/one/report.html"}
OUTPUTS = {"Transport": {"transfers": 4}, "Exactness": {"compared": 6}, "Benchmark": GOOD}
"""What the commands of the steps that are read print."""
_LIMIT_S = 60.0


def _client(service: str, region: str, state_credentials: Any) -> Any:
    """Made once: making it takes longer than all else that a state does."""
    del state_credentials
    return _made_client(service, region)


_made_client = cache(lambda service, region: boto_client.boto_client_for(region, service))


def _nothing(_: str) -> None:
    """At no step."""


@dataclass
class Machines:
    """Run Command as the test wants it.

    Attributes:
        outputs: of a step's command, by the step's name.
        broken: steps whose command fails.
        endless: steps whose command does not end.
        refused: name of a task state whose call AWS refuses, each time.
        not_online: so many times SSM does not know an instance.
        no_capacity: no instance starts.
        untold: a command that fails was never taken over: it has no output.
        at_step: is told each step whose command is sent.
        sent: what was asked of SendCommand.
    """

    outputs: dict[str, Any] = field(default_factory=lambda: dict(OUTPUTS))
    broken: set[str] = field(default_factory=set)
    endless: set[str] = field(default_factory=set)
    refused: str = ""
    not_online: int = 0
    no_capacity: bool = False
    untold: bool = False
    at_step: Callable[[str], None] = _nothing
    sent: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, operation: str, asked: dict[str, Any], real: Callable[..., Any]) -> Any:
        """The reply to a call of the state machine."""
        if self.no_capacity and operation == "SetDesiredCapacity" and asked["DesiredCapacity"]:
            return {}
        played: dict[str, Callable[[dict[str, Any]], Any]] = {
            "SendCommand": self._send,
            "ListCommands": self._list,
            "ListCommandInvocations": self._invocations,
            "GetCommandInvocation": self._read,
            "ListExecutions": partial(_cased, real),
            "PutObject": partial(_put_object, real),
            "DescribeScalingActivities": _activities,
        }
        answer: Callable[[dict[str, Any]], Any] = played.get(operation, real)
        return answer(asked)

    def step(self, command_id: str) -> str:
        """Name of the step that sent a command."""
        return str(self.sent[int(command_id.rpartition("-")[2])]["Comment"]).rpartition(" ")[2]

    def _send(self, asked: dict[str, Any]) -> Any:
        if self.not_online:
            self.not_online -= 1
            raise error("InvalidInstanceId", "SendCommand")
        self.sent.append(asked)
        self.at_step(str(asked["Comment"]).rpartition(" ")[2])
        return {"Command": {"CommandId": f"command-{len(self.sent) - 1}"}}

    def _list(self, asked: dict[str, Any]) -> Any:
        step = self.step(asked["CommandId"])
        status = "Failed" if step in self.broken else "Success"
        return {"Commands": [{"Status": "InProgress" if step in self.endless else status}]}

    def _invocations(self, asked: dict[str, Any]) -> Any:
        sent = self.sent[int(asked["CommandId"].rpartition("-")[2])]
        told = {"Output": "it's said {why}\n----------ERROR-------\nfailed to run commands"}
        good, bad = sent["InstanceIds"][1:], sent["InstanceIds"][0]
        return {
            "CommandInvocations": [
                *({"InstanceId": each, "Status": "Success"} for each in good),
                {
                    "InstanceId": bad,
                    "Status": "Failed",
                    "CommandPlugins": [] if self.untold else [told],
                },
            ]
        }

    def _read(self, asked: dict[str, Any]) -> Any:
        output = self.outputs[self.step(asked["CommandId"])]
        text = output if isinstance(output, str) else json.dumps(output)
        return {"StandardOutputContent": text}


def _activities(_: dict[str, Any]) -> Any:
    told = "InsufficientInstanceCapacity: we have none"
    return {"Activities": [{"StatusCode": "Failed", "StatusMessage": told}]}


def _gives_a_list(path: str) -> bool:
    return "[*]" in path or "[?" in path


def _put_object(real: Callable[..., Any], asked: dict[str, Any]) -> Any:
    return real(asked | {"Body": json.dumps(asked["Body"]).encode()})


def _cased(real: Callable[..., Any], asked: dict[str, Any]) -> Any:
    """Step Functions' own API has small first letters; its SDK integration has capitals."""
    reply = real({key[0].lower() + key[1:]: value for key, value in asked.items()})
    return _capitals(reply)


def _capitals(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[0].upper() + key[1:]: _capitals(each) for key, each in value.items()}
    return [_capitals(each) for each in value] if isinstance(value, list) else value


def error(code: str, operation: str) -> ClientError:
    """As AWS refuses a call."""
    client = boto3.client("ssm")
    kind = getattr(client.exceptions, code, ClientError)
    return kind(
        {
            "Error": {"Code": code, "Message": f"told by a test: {operation}"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "RequestId": "r"},
        },
        operation,
    )


@dataclass(frozen=True)
class Run:
    """What came of an execution.

    Attributes:
        states: entered, in their order.
        last: content of the last-result parameter.
        published: operation -> what was asked of it, each time.
        desired: capacity of each group, after it.
        refused: names of task states whose call was refused.
    """

    status: str
    error: str
    cause: str
    output: Any
    states: list[str]
    last: Any
    published: dict[str, list[Any]]
    desired: dict[str, int]
    refused: set[str]

    @property
    def raised(self) -> list[tuple[str, int]]:
        """What was asked of groups of nodes."""
        return [
            (each["AutoScalingGroupName"], each["DesiredCapacity"])
            for each in self.published.get("SetDesiredCapacity", ())
        ]


@contextmanager
def deployed(pair: Synth) -> Iterator[None]:
    """The templates of a deployment in an empty account."""
    clear = (parsing.get_model_list, parsing.get_model_map, parsing.get_name_type_map)
    with ExitStack() as stack:
        environment = {
            "AWS_ACCESS_KEY_ID": "rehearsal",
            "AWS_SECRET_ACCESS_KEY": "rehearsal",
            "AWS_DEFAULT_REGION": account.REGION,
        }
        stack.enter_context(patch.dict("os.environ", environment))

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(owner, name, value, create=True))

        stack.enter_context(mock_aws())
        mends.apply(put)
        deletions.apply(put)
        for each in clear:
            each.cache_clear()
        ssm, cloudformation = boto3.client("ssm"), boto3.client("cloudformation")
        ssm.put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String")
        for name, template in pair.all.items():
            cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template))
        _hand_over(stack)
        yield
    for each in clear:
        each.cache_clear()


def _hand_over(stack: ExitStack) -> None:
    """moto deploys state machines to a backend that does not run them: what was deployed there
    is given, as it is, to the one that does."""
    states = boto3.client("stepfunctions")
    (made,) = states.list_state_machines()["stateMachines"]
    found = states.describe_state_machine(stateMachineArn=made["stateMachineArn"])
    executing = {"stepfunctions": {"execute_state_machine": True}}
    stack.enter_context(patch.dict(default_user_config, executing))
    states.create_state_machine(
        name=found["name"], definition=found["definition"], roleArn=found["roleArn"]
    )


@contextmanager
def played(machines: Machines, refused: set[str]) -> Iterator[dict[str, list[Any]]]:
    """Calls of the state machine are answered by the machines; what was asked is kept."""
    real_call = botocore.client.BaseClient._make_api_call
    real_task = state_task_service_aws_sdk.StateTaskServiceAwsSdk._eval_service_task
    published: dict[str, list[Any]] = {}
    within = threading.local()

    def task(self: Any, *rest: Any, **more: Any) -> None:
        if self.name == machines.refused:
            refused.add(self.name)
            raise error("AccessDeniedException", self.name)
        within.task = True
        try:
            real_task(self, *rest, **more)
        finally:
            within.task = False

    def call(self: Any, operation: str, asked: dict[str, Any]) -> Any:
        if not getattr(within, "task", False):
            return real_call(self, operation, asked)
        within.task = False  # what is called from here on is the test's
        published.setdefault(operation, []).append(asked)
        return machines.answer(operation, asked, partial(real_call, self, operation))

    sdk = state_task_service_aws_sdk.StateTaskServiceAwsSdk
    with (
        patch.object(sdk, "_eval_service_task", task),
        patch.object(state_task_service_aws_sdk, "boto_client_for", _client),
        patch.object(botocore.client.BaseClient, "_make_api_call", call),
        patch.object(custom_error_name, "ILLEGAL_CUSTOM_ERROR_PREFIX", "none"),
        patch.object(json_path, "_contains_slice_or_wildcard_array", _gives_a_list),
        patch.object(json_path, "_is_singleton_array_access", lambda path: not _gives_a_list(path)),
        patch.object(wait_function.WaitFunction, "_wait_interval", lambda *_, **__: None),
        patch.object(retrier_decl, "time", SimpleNamespace(sleep=lambda _: None)),
        patch.dict(state_task_service_aws_sdk._SERVICE_ERROR_NAMES, {"ssm": "Ssm"}),
    ):
        yield published


def stage_model(pair: Synth, *, remove: bool = False) -> None:
    """A manifest where the state machine looks for one, or none."""
    bucket = boto3.client("ssm").get_parameter(Name="/turnback/demo/model-bucket")
    text = json.dumps(pair.all["operations"])
    (key,) = set(re.findall(r"models/[\w./-]+/manifest.json", text))
    file, s3 = {"Bucket": bucket["Parameter"]["Value"], "Key": key}, boto3.client("s3")
    if remove:
        s3.delete_object(**file)
    else:
        s3.put_object(**file, Body=b"{}")


def set_capacity(wanted: Mapping[str, int], least: int | None = None) -> None:
    """Desired capacity of groups, by their names; and the least that they may have."""
    autoscaling = boto3.client("autoscaling")
    for name, count in wanted.items():
        if least is not None:
            autoscaling.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=least)
        autoscaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=count)


@cache
def definition() -> dict[str, Any]:
    """Of the committed settings, with a word for each reference."""
    with tempfile.TemporaryDirectory() as folder:
        made = synth(raw_settings(), Path(folder))
    machine = made.only("operations", "StepFunctions::StateMachine")
    found: dict[str, Any] = json.loads(_filled(machine["DefinitionString"]))
    return found


def _filled(value: Any) -> str:
    parts = value["Fn::Join"][1]
    return "".join(each if isinstance(each, str) else "reference" for each in parts)


def every_state(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a definition, those of branches and maps too, with their names."""
    for name, state in found["States"].items():
        yield name, state
        for inner in [*state.get("Branches", ()), state.get("ItemProcessor")]:
            if inner:
                yield from every_state(inner)


def tasks(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """States that call AWS."""
    return [(name, each) for name, each in every_state(found) if each["Type"] == "Task"]


def run(machines: Machines, given: Given = GIVEN, name: str = "one") -> Run:
    """Start an execution and wait until it has ended."""
    states, ssm = boto3.client("stepfunctions"), boto3.client("ssm")
    (arn,) = (
        each["stateMachineArn"]
        for each in states.list_state_machines()["stateMachines"]
        if each["name"] == state_machine_name("demo")
    )
    refused: set[str] = set()
    with played(machines, refused) as published:
        started = states.start_execution(stateMachineArn=arn, name=name, input=json.dumps(given))
        until_s = time.monotonic() + _LIMIT_S
        while True:
            found = states.describe_execution(executionArn=started["executionArn"])
            if found["status"] != "RUNNING":
                break
            assert time.monotonic() < until_s, "the execution does not end"
            time.sleep(0.02)
    pages = states.get_paginator("get_execution_history").paginate(
        executionArn=started["executionArn"]
    )
    entered = [
        each["stateEnteredEventDetails"]["name"]
        for page in pages
        for each in page["events"]
        if "stateEnteredEventDetails" in each
    ]
    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return Run(
        status=found["status"],
        error=found.get("error", ""),
        cause=found.get("cause", ""),
        output=json.loads(found["output"]) if found.get("output") else None,
        states=entered,
        last=json.loads(
            ssm.get_parameter(Name=last_validation_parameter("demo"))["Parameter"]["Value"]
        ),
        published=published,
        desired={each["AutoScalingGroupName"]: each["DesiredCapacity"] for each in groups},
        refused=refused,
    )
