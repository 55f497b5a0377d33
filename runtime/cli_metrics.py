"""`turnback node-metrics`: what turnback-metrics.service runs on every machine."""

import json
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli_aws import edge
from runtime.contract.node_metrics import PERIOD_S, ROLE
from runtime.contract.operations import DEPLOYMENT
from runtime.contract.status import MachineRole
from runtime.launch.machine import Machine
from runtime.launch.node_metrics import Reading, Since, read


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(node_metrics)


def node_metrics(
    *,
    deployment: Annotated[
        str, typer.Option(envvar="TURNBACK_DEPLOYMENT", help="The deployment's name.")
    ],
    role: Annotated[
        MachineRole,
        typer.Option(envvar="TURNBACK_ROLE", help="Of this machine."),
    ],
    period_s: Annotated[int, typer.Option(min=1, help="Between two readings.")] = PERIOD_S,
    once: Annotated[
        bool, typer.Option("--once", help="Print one reading as JSON, and send nothing.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Folder that holds the machine's sys and run.")] = Path(
        "/"
    ),
) -> None:
    """Send this machine's metrics to CloudWatch, each minute, until it is ended."""
    machine = Machine(root)
    if once:
        typer.echo(json.dumps(_plain(read(machine, role))))
        return
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    with edge("ended"):
        _send_until(ended, machine, role, deployment, period_s)


def _plain(reading: Reading) -> dict[str, Any]:
    return {
        "is_answering": reading.is_answering,
        "gauges": {metric.name: value for metric, value in reading.gauges.items()},
        "totals": {metric.name: value for metric, value in reading.totals.items()},
    }


def _send_until(
    ended: threading.Event,
    machine: Machine,
    role: MachineRole,
    deployment: str,
    period_s: int,
) -> None:
    """Read and send, each period; what AWS does not take is told and sent with the next."""
    from botocore.exceptions import BotoCoreError, ClientError

    from runtime.aws.clients import client
    from runtime.aws.node_metrics import put_metrics

    cloudwatch, since = client("cloudwatch"), Since()
    where = {DEPLOYMENT: deployment, ROLE: role}
    while not ended.is_set():
        reading = read(machine, role)
        try:
            put_metrics(cloudwatch, since.values(reading), where)
            since.sent(reading)
        except (BotoCoreError, ClientError) as error:
            typer.echo(f"turnback: metrics were not sent, they go with the next: {error}", err=True)
        ended.wait(period_s)
