"""The `turnback` commands that speak to AWS."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runtime.cli_edge import exit_with
from runtime.errors import EXIT_INTERRUPTED, BadInput, StartFailed, TurnbackError

if TYPE_CHECKING:
    from runtime.aws.checks.finding import Finding
    from runtime.aws.rollout.report import RolloutReport
    from runtime.aws.scale import ScaleReport

JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
CountOption = Annotated[
    int | None, typer.Option(min=0, help="Nodes of the role. Left out: the deployment's count.")
]
_ROLLOUT_POLL_S = 10.0
"""Each look is a command on every machine."""
COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(scale)
    app.command()(rollout)
    app.command()(preflight)


@contextmanager
def edge(interrupted: str) -> Iterator[None]:
    """Errors become messages and exit codes.

    Args:
        interrupted: what to say at Ctrl-C.
    """
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except TurnbackError as error:
        raise exit_with(error) from None
    except BotoCoreError as error:
        raise exit_with(
            BadInput(
                "AWS cannot be asked",
                got=str(error),
                allowed="a region, and credentials where the command needs them",
                fix="give --region or set AWS_REGION; set credentials",
            )
        ) from None
    except KeyboardInterrupt:
        typer.echo(f"\n{interrupted}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM is taken like Ctrl-C: what was begun is put in order first."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def scale(
    action: Annotated[Literal["up", "down"], typer.Argument(help="up or down.")],
    name: Annotated[str, typer.Argument(help="The deployment.")],
    *,
    prefill: CountOption = None,
    decode: CountOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until the nodes are in service, or gone.")
    ] = False,
    timeout_s: Annotated[int, typer.Option(min=1, help="Longest such wait.")] = 1800,
    when_idle: Annotated[
        int | None,
        typer.Option(min=1, help="Of down: only when no turn has run for so many minutes."),
    ] = None,
    region: Annotated[str, typer.Option(help="Left out: the environment's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Start or end a deployment's nodes."""
    from runtime.aws.clients import scale_clients
    from runtime.aws.scale import Pace
    from runtime.aws.scale import scale as set_capacity

    if action == "down" and (prefill is not None or decode is not None):
        raise typer.BadParameter("down ends all nodes; for fewer, scale up with smaller counts")
    if action == "up" and when_idle is not None:
        raise typer.BadParameter("--when-idle is for down")
    with edge(f"interrupted; what was asked of {name}'s groups stays asked"):
        if when_idle is not None and _is_busy(name, region, when_idle, as_json=as_json):
            return
        report = set_capacity(
            name,
            action,
            scale_clients(region),
            teller(as_json=as_json),
            counts={"prefill": prefill, "decode": decode},
            pace=Pace(timeout_s) if wait else None,
        )
        if as_json:
            typer.echo(json.dumps(_scale_json(report)))
        failure = report.failure()
        if failure is not None:
            raise failure


def _is_busy(name: str, region: str, when_idle: int, *, as_json: bool) -> bool:
    """Whether a turn has run within so many minutes; tells it."""
    from runtime.aws.clients import client
    from runtime.aws.idle import idle_s
    from runtime.aws.run_command import RunCommand

    commands = RunCommand(client("ssm", region))
    ec2, autoscaling = client("ec2", region), client("autoscaling", region)
    idle_min = idle_s(name, ec2, autoscaling, commands, datetime.now(UTC)) / 60
    is_busy = idle_min < when_idle
    then = f"not yet {when_idle} min, nothing is ended" if is_busy else "scaling down"
    teller(as_json=as_json)(f"{name} has been idle for {idle_min:.1f} min: {then}")
    if is_busy and as_json:
        told = {"deployment": name, "action": "down", "idle_min": round(idle_min, 1)}
        typer.echo(json.dumps(told | {"reached": None, "groups": [], "problems": []}))
    return is_busy


def teller(*, as_json: bool) -> Callable[[str], None]:
    """Progress goes to stderr where a program reads stdout."""
    return lambda line: typer.echo(line, err=as_json)


def _scale_json(report: "ScaleReport") -> dict[str, Any]:
    return {
        "deployment": report.deployment,
        "action": report.action,
        "reached": report.reached,
        "waited_s": round(report.waited_s, 1),
        "usd_per_hour": report.usd_per_hour,
        "groups": [
            {
                "name": group.name,
                "role": group.role,
                "wanted": report.goals.get(group.name, 0),
                "in_service": group.in_service,
                "instances": group.instances,
            }
            for group in report.groups
        ],
        "problems": [
            {"group": each.group, "kind": each.kind.word, "message": each.message}
            for each in report.problems
        ],
    }


def rollout(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    *,
    timeout_s: Annotated[
        int, typer.Option(min=1, help="Longest wait for one node to become ready.")
    ] = 1800,
    drain_s: Annotated[
        int, typer.Option(min=1, help="Longest wait for one engine's running requests.")
    ] = 900,
    region: Annotated[str, typer.Option(help="Left out: the environment's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Bring running nodes to what is deployed, one at a time, each drained first."""
    from runtime.aws.clients import rollout_clients
    from runtime.aws.rollout.deployment import roll_out_deployment
    from runtime.aws.rollout.report import Pace

    with edge(f"interrupted; turnback rollout {name} continues"), _sigterm_as_interrupt():
        report = roll_out_deployment(
            name,
            rollout_clients(region),
            teller(as_json=as_json),
            Pace(ready_s=timeout_s, drain_s=drain_s, poll_s=_ROLLOUT_POLL_S),
        )
        if as_json:
            typer.echo(json.dumps(_rollout_json(name, report)))
        if report.failure is not None:
            raise report.failure


def _rollout_json(name: str, report: "RolloutReport") -> dict[str, Any]:
    failure = report.failure
    told = failure and {
        "what": failure.what,
        "got": failure.got,
        "allowed": failure.allowed,
        "fix": failure.fix,
    }
    return {
        "deployment": name,
        "done": failure is None,
        "kept": report.kept,
        "restarted": report.restarted,
        "started": report.started,
        "ended": report.ended,
        "left": report.left,
        "failure": told,
    }


def preflight(
    *,
    settings: Annotated[Path, typer.Option(help="The deployment's settings.")] = Path(
        "deployment.toml"
    ),
    context: Annotated[
        list[str] | None, typer.Option("--context", "-c", help="turnback:PATH=VALUE; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask AWS whether a deployment can run. Changes nothing, starts nothing."""
    from runtime.aws.clients import preflight_clients
    from runtime.aws.plan import plan_of
    from runtime.aws.preflight import preflight as ask
    from runtime.contract.settings_file import FILE_KEY, overrides_in, read_settings

    given = dict(each.partition("=")[::2] for each in context or ())
    with edge("interrupted; nothing was changed"):
        file = Path(given.get(FILE_KEY, settings))
        plan = plan_of(read_settings(file, overrides_in(given)))
        findings = ask(plan, preflight_clients(plan.region))
        if as_json:
            typer.echo(json.dumps(_preflight_json(plan.name, findings)))
        else:
            _print_findings(plan.name, findings)
        failed = [finding for finding in findings if finding.status == "fail"]
        if failed:
            raise StartFailed(
                f"{plan.name} would not start as it is planned",
                got=f"{len(failed)} of {len(findings)} checks fail: "
                + ", ".join(f"{each.check} ({each.subject})" for each in failed),
                allowed="every check passes or warns",
                fix="; ".join(f"{each.check}: {each.fix}" for each in failed),
            )


def _preflight_json(name: str, findings: "Sequence[Finding]") -> dict[str, Any]:
    counts = {status: sum(finding.status == status for finding in findings) for status in COLOURS}
    return {
        "deployment": name,
        "counts": counts,
        "findings": [asdict(finding) for finding in findings],
    }


def _print_findings(name: str, findings: "Sequence[Finding]") -> None:
    table = Table(title=f"preflight of {name}", title_justify="left", show_lines=True)
    for column in ("check", "subject", "", "evidence", "fix"):
        table.add_column(column, overflow="fold")
    for each in findings:
        colour = COLOURS[each.status]
        shown = f"[{colour}]{each.status}[/{colour}]"
        table.add_row(each.check, each.subject, shown, escape(each.evidence), escape(each.fix))
    Console().print(table)
