"""The doctor of every node of a deployment, asked by SSM."""

import contextlib
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from runtime.aws.machines import Machine, machines_of
from runtime.aws.parameter import parameter_text
from runtime.aws.run_command import Outcome, RunCommand
from runtime.contract.doctor import DoctorReport, Stage
from runtime.contract.node import NodeSpec
from runtime.contract.status import BOOT_FILE, KIT_COMMAND, BootReport
from runtime.errors import BadInput, TurnbackError

_RUN_S = 60
"""Beside the window; the doctor's own time-outs end it well before."""
_DELIVERY_S = 20.0
"""From the sending of a command until it runs on every node: the window begins after it."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one node says.

    Attributes:
        instance: its id.
        role: of its tag.
        report: None: it could not be asked, or said something else.
        problem: why not.
    """

    instance: str
    role: str
    report: DoctorReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        stage: None: each node takes the one that fits.
        window_s: of traffic, on all nodes at the same time; None: totals.
    """

    stage: Stage | None = None
    window_s: float | None = None


def ask_fleet(
    deployment: str,
    ec2: Any,
    ssm: Any,
    commands: RunCommand,
    question: Question,
    tell: Callable[[str], None],
    now: Callable[[], float] = time.time,
) -> list[NodeAnswer]:
    """Ask all nodes of a deployment at once; routers have no doctor.

    Args:
        deployment: its name.
        ec2, ssm: boto3's clients.
        commands: on its machines.
        question: of every node.
        tell: takes lines of progress.
        now: the real clock, but in tests.

    Raises:
        BadInput: it has no running node.
        BotoCoreError, ClientError: AWS refuses, or does not answer.
    """
    nodes = [each for each in machines_of(ec2, deployment) if each.role != "router"]
    if not nodes:
        raise BadInput(
            f"deployment {deployment} has no running node",
            got="no instance with its tags",
            allowed="at least one prefill or decode node",
            fix=f"turnback scale up {deployment} --wait, or give another name or --region",
        )
    names = [each.name for each in nodes]
    online = commands.online(names)
    peers = _peers(ec2, ssm, deployment, nodes)
    if not peers:
        tell("no node is asked for its peers: the deployment's parameters cannot be read")
    tell(f"asking {len(online)} of {len(nodes)} nodes of {deployment}")
    command = doctor_command(question, peers, now())
    outcomes = commands.run(
        [each for each in names if each in online],
        command,
        timeout_s=_RUN_S + int((question.window_s or 0) + _DELIVERY_S),
        comment=f"turnback doctor {deployment}",
    )
    return [answer_of(each, outcomes.get(each.name)) for each in nodes]


def doctor_command(question: Question, peers: Sequence[str], now_unix_s: float) -> str:
    """What each node runs; it leaves itself out of the peers.

    A node whose kit could not be installed has no doctor: user data has left the reason.
    """
    words = [each for peer in peers for each in ("--peer", peer)]
    if question.stage is not None:
        words += ["--stage", question.stage]
    if question.window_s is not None:
        begin = now_unix_s + _DELIVERY_S
        words += ["--window-s", f"{question.window_s:g}", "--window-at", f"{begin:.0f}"]
    asked = shlex.join([KIT_COMMAND, "doctor", "--json", *words])
    return f"if [ -x {KIT_COMMAND} ]; then {asked}; else cat {BOOT_FILE}; fi"


def answer_of(node: Machine, outcome: Outcome | None) -> NodeAnswer:
    """A node's report; the doctor ends with 1 where a check failed, so its output comes first."""
    answer = NodeAnswer(node.name, node.role)
    if outcome is None:
        return replace(answer, problem="its SSM agent is offline")
    try:
        report = DoctorReport.model_validate_json(outcome.output)
    except ValidationError as error:
        return replace(answer, problem=_misread(outcome, error))
    return replace(answer, report=report)


def _misread(outcome: Outcome, error: ValidationError) -> str:
    if not outcome.output:
        return outcome.problem or "it says nothing"
    with contextlib.suppress(ValidationError):
        boot = BootReport.model_validate_json(outcome.output)
        return f"it has no kit: {boot.what}; got: {boot.got}; fix: {boot.fix}"
    if error.errors()[0]["loc"] == ("format",):
        return "its doctor's answer is of another kit's form: turnback rollout brings it up to date"
    return f"an answer of another form: {outcome.output[:120]!r} {outcome.problem}".strip()


def _peers(ec2: Any, ssm: Any, deployment: str, nodes: Sequence[Machine]) -> list[str]:
    """Addresses of the nodes' side channels; none where their ports are not known."""
    ports = {role: _side_channel_port(ssm, deployment, role) for role in ("prefill", "decode")}
    roles = {each.name: each.role for each in nodes}
    pages = ec2.get_paginator("describe_instances").paginate(InstanceIds=[*roles])
    return [
        f"{instance['PrivateIpAddress']}:{port}"
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
        if instance.get("PrivateIpAddress")
        and (port := ports.get(roles[instance["InstanceId"]])) is not None
    ]


def _side_channel_port(ssm: Any, deployment: str, role: str) -> int | None:
    try:
        text = parameter_text(ssm, f"/turnback/{deployment}/{role}")
        return NodeSpec.model_validate_json(text).side_channel_port
    except (TurnbackError, ValidationError):
        return None  # each node's own doctor says what is wrong with it
