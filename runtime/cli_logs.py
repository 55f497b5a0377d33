"""`turnback logs`: what a deployment's machines say."""

import json
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli_aws import JsonOption, edge
from runtime.contract.status import MACHINE_ROLES, MachineRole
from runtime.errors import BadInput

if TYPE_CHECKING:
    from runtime.aws.logs import Line

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NODE = re.compile(r"i-[0-9a-f]{8,17}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(logs)


def logs(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    *,
    role: Annotated[
        MachineRole | None,
        typer.Option(help="Of the machines. Left out: all."),
    ] = None,
    node: Annotated[str, typer.Option(help="Instance id. Left out: all.")] = "",
    since: Annotated[str, typer.Option(help="How far back: 30s, 15m, 2h, 1d.")] = "15m",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C.")] = False,
    text: Annotated[str, typer.Option("--filter", help="Only lines with this text.")] = "",
    request_id: Annotated[str, typer.Option(help="Only lines of this request.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Most lines of a look.")] = 10_000,
    region: Annotated[str, typer.Option(help="Left out: the environment's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Print what a deployment's machines have said, by time."""
    from runtime.aws.clients import client
    from runtime.aws.logs import Logs, Wanted

    with edge("ended"):
        wanted = Wanted(
            name,
            roles=(role,) if role else MACHINE_ROLES,
            since_unix_ms=int((time.time() - seconds_of(since)) * 1000),
            node=_checked(node),
            texts=[each for each in (text, request_id) if each],
            most=limit,
        )
        source = Logs(client("logs", region))
        if follow:
            for line in source.follow(wanted):
                _print(line, as_json=as_json)
            return
        lines = source.look(wanted)
        for line in lines:
            _print(line, as_json=as_json)
        if len(lines) == limit:
            typer.echo(f"the first {limit} lines; --limit and --since show others", err=True)
        elif not lines:
            typer.echo(f"no such line in the last {since}", err=True)


def seconds_of(text: str) -> int:
    """Seconds of a length of time such as 15m.

    Raises:
        BadInput: it is none.
    """
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if found is None:
        raise BadInput(
            "--since is no length of time",
            got=repr(text),
            allowed="a number and s, m, h or d: 30s, 15m, 2h, 1d",
            fix="give another --since",
        )
    return int(found[1]) * _UNITS_S[found[2]]


def _checked(node: str) -> str:
    if node and not _NODE.fullmatch(node):
        raise BadInput(
            "--node is no instance id",
            got=repr(node),
            allowed="i- and 8 to 17 of 0-9 and a-f",
            fix="take it from `turnback doctor` or EC2's console",
        )
    return node


def _print(line: "Line", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(line._asdict()))
        return
    when = datetime.fromtimestamp(line.unix_ms / 1000, UTC)
    stamp = f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z"
    typer.echo(f"{stamp} {line.role} {line.node} {line.source}: {line.text}")
