"""The `turnback` commands of a node: what its unit runs, and what fills its bucket."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from runtime.contract.model import MODEL_NAME, MODELS, model_bucket_parameter
from runtime.contract.status import ENGINE_PYTHON
from runtime.errors import EXIT_INTERRUPTED, BadInput, TurnbackError
from runtime.launch.boot.address import instance_id
from runtime.launch.boot.alone import alone
from runtime.launch.boot.boot import Node, Say, Sources
from runtime.launch.boot.boot import serve as serve_node
from runtime.launch.boot.examine import boot_checks
from runtime.launch.boot.journal import Journal, notify
from runtime.launch.command import engine_command
from runtime.launch.machine import Machine

_LATE_S = 5.0
"""From a signal until a boot without an engine ends, though AWS has not answered: tries of S3
take minutes. Nothing is lost: what is whole stays."""

model_app = typer.Typer(help="Models of a deployment.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(serve)
    app.add_typer(model_app, name="model")


def serve(
    *,
    deployment: Annotated[
        str, typer.Option(envvar="TURNBACK_DEPLOYMENT", help="The deployment's name.")
    ],
    parameter: Annotated[
        str, typer.Option(envvar="TURNBACK_PARAMETER", help="SSM parameter with the NodeSpec.")
    ],
    kit_sha256: Annotated[
        str,
        typer.Option(envvar="TURNBACK_WHEEL_SHA256", help="Of the wheel that must be installed."),
    ] = "",
    engine_python: Annotated[
        Path, typer.Option(help="Interpreter with vLLM, nixl and this kit.")
    ] = ENGINE_PYTHON,
    without_check: Annotated[
        list[str] | None,
        typer.Option(
            envvar="TURNBACK_WITHOUT_CHECK",
            help="A check of the doctor that must not keep the node from serving; repeatable.",
        ),
    ] = None,
    root: Annotated[
        Path, typer.Option(help="Folder that holds the node's sys, etc, opt, run and var.")
    ] = Path("/"),
) -> None:
    """Boot this node and run its engine: what turnback-node.service does."""
    try:
        checks = boot_checks(without_check or ())
    except BadInput as error:
        raise typer.BadParameter(f"{error.what}: {error.got}; it asks {error.allowed}") from error
    node = Node(
        Machine(root),
        parameter,
        kit_sha256=kit_sha256,
        command=lambda spec: engine_command(spec, engine_python),
        checks=checks,
    )
    raise typer.Exit(run_node(node, aws_sources(deployment, parameter)))


def aws_sources(deployment: str, parameter: str) -> Sources:
    """What a node reads from AWS, with the region of its node.env and its role's credentials."""

    def spec_text() -> str:
        from runtime.aws.clients import node_client
        from runtime.aws.parameter import parameter_text

        return parameter_text(node_client("ssm"), parameter)

    def sync(name: str, folder: Path, say: Say, stop: threading.Event) -> None:
        from runtime.aws.clients import TRANSFERS, node_client
        from runtime.aws.models.sync import sync_model
        from runtime.aws.parameter import parameter_text

        def bucket() -> str:
            return parameter_text(node_client("ssm"), model_bucket_parameter(deployment))

        sync_model(node_client("s3", TRANSFERS), bucket, name, folder, say, stop)

    def tag() -> None:
        from runtime.aws.clients import node_client
        from runtime.aws.draining import tag_draining

        tag_draining(node_client("ec2"), instance_id())

    return Sources(spec_text, sync, tag)


def run_node(node: Node, sources: Sources) -> int:
    """Boot and serve until a signal comes or the node's capacity ends.

    Returns:
        The exit code: 0 also after SIGTERM, with which systemd stops a unit.
    """
    try:
        with alone(node.machine):
            return _run_alone(node, sources)
    except BadInput as error:  # told here alone: the node's files are the other's
        line = f"turnback: {error.what}; got: {error.got}; fix: {error.fix}"
        typer.echo(line, err=True)
        return error.exit_code


def _run_alone(node: Node, sources: Sources) -> int:
    journal, signals = Journal(node.machine), list[signal.Signals]()
    late = _late(journal, signals)

    async def body() -> None:
        task = asyncio.current_task()

        def end(signum: signal.Signals) -> None:
            if task is not None and not signals:
                signals.append(signum)
                notify("STOPPING=1")
                journal.say(f"{signum.name}: the engine is ended")
                task.cancel()
                if journal.report.step != "engine":
                    late.start()

        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, end, signum)
        await serve_node(node, sources, journal, _seconds_of_this_process)

    try:
        asyncio.run(body())
    except TurnbackError as error:
        if not signals:
            return error.exit_code
    except asyncio.CancelledError:
        pass
    if signals:
        journal.enter(journal.report.step, "draining")
        journal.say("ended")
    late.cancel()
    return _code(signals)


def _late(journal: Journal, signals: Sequence[signal.Signals]) -> threading.Timer:
    """Ends this process, threads and all; to be started by a signal."""

    def give_up() -> None:
        journal.enter(journal.report.step, "draining")
        journal.say("ended, without the answer that was waited for")
        os._exit(_code(signals))

    timer = threading.Timer(_LATE_S, give_up)
    timer.daemon = True
    return timer


def _code(signals: Sequence[signal.Signals]) -> int:
    return EXIT_INTERRUPTED if signal.SIGINT in signals else 0


def _seconds_of_this_process() -> float:
    """Since the kernel started it, imports and all.

    Source: proc(5), field 22 of /proc/PID/stat, in clock ticks since the machine's start.
    """
    ticks = int(Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@model_app.command()
def stage(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    *,
    folder: Annotated[Path, typer.Option("--from", help="Folder with the model's files.")],
    model: Annotated[
        str, typer.Option(help="id/revision, such as Qwen/Qwen3-32B/9216db5. Left out: deployed.")
    ] = "",
    region: Annotated[str, typer.Option(help="Left out: the environment's.")] = "",
) -> None:
    """Upload a model to a deployment's bucket, from where its nodes take it."""
    from runtime.cli_aws import edge

    with edge("interrupted; what is uploaded stays, run it again"):
        stage_deployed(name, folder, lambda line: typer.echo(line, err=True), model, region)


def stage_deployed(
    name: str, folder: Path, say: Callable[[str], None], model: str = "", region: str = ""
) -> None:
    """Stage a folder for a deployment.

    Args:
        name: of the deployment.
        folder: with the model's files.
        say: told now and then.
        model: id/revision; empty: the one that is deployed.
        region: empty: the environment's.

    Raises:
        BadInput, StartFailed: as their names say.
    """
    from runtime.aws.clients import client, transfer_client
    from runtime.aws.models.stage import stage_model
    from runtime.aws.parameter import parameter_text

    if model and not MODEL_NAME.fullmatch(model):
        raise BadInput(
            "this is no name of a model",
            got=model,
            allowed="ID/REVISION, such as Qwen/Qwen3-32B/9216db5",
            fix="give another --model, or none for the one that is deployed",
        )
    ssm = client("ssm", region)
    bucket = parameter_text(ssm, model_bucket_parameter(name))
    named = model or _deployed_model(parameter_text(ssm, f"/turnback/{name}/decode"))
    stage_model(transfer_client(region), bucket, named, folder, say)


def _deployed_model(text: str) -> str:
    from runtime.launch.boot.steps import bucket_model, read_spec

    spec = read_spec(text, "the decode nodes' parameter")
    name = bucket_model(spec)
    if name is None:
        raise BadInput(
            "the deployment's nodes take no model from the bucket",
            got=str(spec.serving.model),
            allowed=f"a folder below {MODELS}",
            fix="give --model",
        )
    return name
