"""The validation's commands, read out of the deployed state machine, and run on this machine.

What a node or router would be sent by SSM runs here in a shell; only what SWAPPED names is put
in its place.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.aws.clients import client
from runtime.contract.bench import REPORT
from runtime.contract.operations import (
    FAILED_TRANSFERS,
    GOOD,
    NAMESPACE,
    PULLED_SHARE,
    SPEED_UP,
    TTFT_P50,
    state_machine_name,
)
from runtime.contract.status import BOOT_FILE, KIT_COMMAND, KIT_STAMP, NODE_ENVIRONMENT
from runtime.errors import EngineDied, StartFailed

SWAPPED: Mapping[str, str] = {
    KIT_COMMAND: "the kit of this environment",
    str(KIT_STAMP): "below the folder that stands for the node",
    str(BOOT_FILE): "the same",
    str(NODE_ENVIRONMENT): "the same",
    "--root": "the same",
    "--url": "there is no load balancer: the router's own address",
    "--deployment": "EC2 discovery would find the emulated instances, on which nothing runs",
    "--nodes-file": "in its place",
    "--profile": "sizes of a CPU pair",
    "--tensor-parallel-size": "one rank",
    "--work": "a folder of the rehearsal",
}
"""Word or option of a command -> why it cannot stay."""

PROFILE = "smoke"
FILES = frozenset({REPORT, "report.html", "requests.csv", "summary.md", f"sample/{REPORT}"})
METRICS = frozenset({SPEED_UP.name, PULLED_SHARE.name, TTFT_P50.name, FAILED_TRANSFERS.name})
"""Some of what a run must leave in bucket and CloudWatch."""
STEPS = ("Ready", "Doctor", "Transport", "Exactness", "Benchmark")
PASSED = frozenset({"image-file", "spec", "boot", "efa-devices", "disk", "generation", "transfers"})
"""Checks of the doctor that a folder with an engine passes."""
_FORMAT = re.compile(r"States\.Array\(States\.Format\('(?P<text>[^']*)'(?P<arguments>.*)\)\)")
_TIMEOUT_S = 300.0
_TAIL = 2000


@dataclass(frozen=True)
class Spot:
    """Where a command runs in the place of a machine.

    Attributes:
        root: folder that stands for `/`.
        variables: of the machine's user data, which its node.env has.
        url: of the router.
        nodes_file: of the router.
        work: folder for run folders.
    """

    root: Path
    variables: Mapping[str, str]
    url: str
    nodes_file: Path
    work: Path


def deployed_definition(deployment: str) -> dict[str, Any]:
    """Of the state machine, as the account has it."""
    states = client("stepfunctions")
    (arn,) = (
        each["stateMachineArn"]
        for each in states.list_state_machines()["stateMachines"]
        if each["name"] == state_machine_name(deployment)
    )
    found = states.describe_state_machine(stateMachineArn=arn)
    definition: dict[str, Any] = json.loads(found["definition"])
    return definition


def commands(definition: Mapping[str, Any], arguments: Mapping[str, str]) -> dict[str, str]:
    """Step -> its command, with values for what the state machine would fill in.

    Args:
        definition: of the state machine.
        arguments: path of the state's data -> value.

    Raises:
        StartFailed: a step is missing, or its command cannot be read.
    """
    found = {}
    for name, state in _states(definition):
        if str(state.get("Resource", "")).endswith(":ssm:sendCommand"):
            text = state["Parameters"]["Parameters"]["commands.$"]
            found[name.removesuffix("Send")] = _formatted(text, arguments)
    if [*found] != [*STEPS]:
        raise StartFailed(
            "the state machine does not send the commands that are known",
            got=", ".join(found),
            allowed=", ".join(STEPS),
            fix="bring validation.py and stacks/constructs/validation/ together",
        )
    return found


def _states(scope: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, state in scope["States"].items():
        yield name, state
        for inner in (*state.get("Branches", ()), state.get("ItemProcessor")):
            if inner:
                yield from _states(inner)


def _formatted(text: str, arguments: Mapping[str, str]) -> str:
    match = _FORMAT.fullmatch(text)
    names = [] if match is None else match["arguments"].replace(" ", "").split(",")[1:]
    if match is None or match["text"].count("{}") != len(names) or {*names} - {*arguments}:
        raise StartFailed(
            "a command of the state machine cannot be read",
            got=text,
            allowed=f"a format with {', '.join(arguments)}",
            fix="mend stacks/constructs/validation/commands.py",
        )
    return match["text"].format(*(arguments[name] for name in names))


def local_command(command: str, spot: Spot) -> str:
    """A command for this machine: only what SWAPPED names is other than deployed."""
    for path in (KIT_STAMP, BOOT_FILE, NODE_ENVIRONMENT):
        command = command.replace(str(path), f"{spot.root}{path}")
    kit = f"{sys.executable} -m runtime.cli"
    command = command.replace(KIT_COMMAND, kit)
    command = _with(command, "--root", str(spot.root))
    if " --deployment " in command:
        command = _with(command, "--url", spot.url)
        command = _with(command, "--profile", PROFILE)
        command = _with(command, "--tensor-parallel-size", "1")
        command += f" --nodes-file {spot.nodes_file} --work {spot.work}"
    return command


def _with(command: str, option: str, value: str) -> str:
    return re.sub(rf"(?<= ){option} \S+", f"{option} {value}", command)


def write_environment(spot: Spot) -> None:
    """What user data's first lines leave on a machine."""
    file = Path(f"{spot.root}{NODE_ENVIRONMENT}")
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}={value}" for name, value in spot.variables.items() if name in _KEPT]
    file.write_text("\n".join(lines) + "\n", "utf-8")


_KEPT = (
    *("TURNBACK_DEPLOYMENT", "TURNBACK_ROLE", "TURNBACK_PARAMETER"),
    *("TURNBACK_STORE_SECRET", "TURNBACK_WHEEL_SHA256"),
)
"""Of user data's variables; the region is the environment's."""


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    output: str
    errors: str


async def run(command: str, log: Path) -> Ran:
    """Run a command as the SSM agent does, in a shell.

    Args:
        command: for /bin/sh.
        log: without an ending; what it printed goes there.

    Raises:
        StartFailed: it took too long.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise StartFailed(
            "a command of the validation did not end",
            got=f"{log.name} after {_TIMEOUT_S:.0f} s",
            allowed="an end in that time",
            fix=f"run it by hand: {command}",
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    ran = Ran(process.returncode or 0, output.decode("utf-8"), errors.decode("utf-8"))
    log.with_suffix(".txt").write_text(
        f"{command}\n\n{ran.output}\n{ran.errors}\nexit code {ran.code}\n", "utf-8"
    )
    return ran


def answer(step: str, ran: Ran) -> dict[str, Any]:
    """The JSON that a command prints.

    Raises:
        EngineDied: it failed, or printed something else.
    """
    try:
        told = json.loads(ran.output)
    except ValueError:
        told = None
    if ran.code or not isinstance(told, dict):
        raise EngineDied(
            f"the validation's command {step} has not ended well",
            got=f"exit code {ran.code}: {ran.output[-_TAIL:]}{ran.errors[-_TAIL:]}",
            allowed="exit code 0 and a JSON object",
            fix=f"read out/rehearsal/validation/{step}.txt",
        )
    return told


def judge_doctor(ran: Ran, role: str) -> str:
    """The doctor of a folder with an engine: no EFA, GPU, unit or port of a node; what passes.

    Raises:
        EngineDied: a check fails that a folder can pass.
    """
    try:
        findings = json.loads(ran.output)["findings"]
    except (ValueError, KeyError, TypeError):
        findings = []
    passed = {each["check"] for each in findings if each["status"] == "pass"}
    if missing := PASSED - passed:
        raise EngineDied(
            f"the doctor of the {role} node does not find what its folder has",
            got=f"exit code {ran.code}, not passed: {', '.join(sorted(missing))}; "
            f"{ran.errors[-_TAIL:]}",
            allowed=f"{', '.join(sorted(PASSED))} pass, whatever hardware is missing",
            fix=f"read out/rehearsal/validation/Doctor-{role}.txt",
        )
    return f"{len(passed)} of {len(findings)}"


def judge(told: Mapping[str, Mapping[str, Any]]) -> str:
    """What a router's three steps have shown, and that their results lie where they say.

    Args:
        told: step -> its answer.

    Raises:
        EngineDied: it is not what it must be.
    """
    moved, result = told["Transport"], told["Benchmark"]
    bucket, _, key = result["report"].removeprefix("s3://").partition("/")
    folder = key.removesuffix(REPORT)
    found = client("s3").list_objects_v2(Bucket=bucket, Prefix=folder).get("Contents", ())
    files = {str(each["Key"]).removeprefix(folder) for each in found}
    metrics = client("cloudwatch").list_metrics(Namespace=NAMESPACE)["Metrics"]
    names = {str(each["MetricName"]) for each in metrics}
    is_good = result["verdict"] == GOOD and not result["failed_turns"]
    if not is_good or not files >= FILES or not names >= METRICS:
        raise EngineDied(
            "the validation does not leave what it must",
            got=f"{json.dumps(result)}; files: {sorted(files)}; metrics: {sorted(names)}",
            allowed=f"verdict good, files {sorted(FILES)}, metrics {sorted(METRICS)}",
            fix="read out/rehearsal/validation",
        )
    low, high = moved["expected_bytes"]
    return (
        f"{moved['transfers']:.0f} transfers, none failed, {moved['bytes']:.0f} bytes of "
        f"{low} to {high}; exactness {told['Exactness']['verdict']}; "
        f"{len(files)} files and {len(names)} metrics published"
    )
