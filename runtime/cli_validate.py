"""`turnback validate`: what a deploy starts by itself, by hand."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from runtime.cli_aws import JsonOption, edge, teller
from runtime.contract.operations import BELOW_BAR, ScaleDown, last_validation_parameter
from runtime.errors import EXIT_BELOW_BAR

if TYPE_CHECKING:
    from runtime.aws.validate import Outcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def validate(
    name: Annotated[str, typer.Argument(help="The deployment.")],
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show what it does, until it has ended.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the one that runs; start none.")
    ] = False,
    scale_up: Annotated[
        bool, typer.Option("--scale-up", help="Start nodes that are missing; they are paid for.")
    ] = False,
    scale_down: Annotated[
        ScaleDown | None,
        typer.Option(help="When nodes that it has started are ended. Left out: always."),
    ] = None,
    min_speedup: Annotated[
        float | None, typer.Option(min=0, help="Bar: least speed-up of turns 2 and later.")
    ] = None,
    slo_ttft_p90_ms: Annotated[
        float | None, typer.Option(min=0, help="Bar: longest p90 of TTFT of those turns.")
    ] = None,
    region: Annotated[str, typer.Option(help="Left out: the environment's.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Check a deployment's nodes, and measure what it gains, on the deployment itself."""
    from runtime.aws.clients import client
    from runtime.aws.validate import Follower, Wish, find_machine, running, start

    if follow and (scale_up or scale_down or min_speedup or slo_ttft_p90_ms):
        raise typer.BadParameter("--follow shows a validation that runs as it was asked for")
    tell = teller(as_json=as_json)
    with edge(f"interrupted; the validation goes on. {_how_to(name)}"):
        states = client("stepfunctions", region)
        if follow:
            execution = running(states, find_machine(states, name))
            if execution is None:
                _say_last(name, region, as_json=as_json)
                return
        else:
            wish = Wish(scale_up, scale_down or "always", min_speedup, slo_ttft_p90_ms)
            execution = start(states, name, wish)
        tell(f"execution {execution}")
        if not (wait or follow):
            tell(_how_to(name))
            if as_json:
                typer.echo(json.dumps({"deployment": name, "execution": execution}))
            return
        outcome = Follower(states, tell).follow(execution)
        _tell_end(name, outcome, as_json=as_json)


def _how_to(name: str) -> str:
    return (
        f"Follow it: turnback validate {name} --follow. Stop it: aws stepfunctions "
        f"stop-execution --execution-arn ARN, then turnback scale down {name}: a stopped one "
        "ends no nodes"
    )


def _tell_end(name: str, outcome: "Outcome", *, as_json: bool) -> None:
    failure = outcome.failure(name)
    is_missed = outcome.result.get("verdict") == BELOW_BAR
    code = failure.exit_code if failure else EXIT_BELOW_BAR if is_missed else 0
    if as_json:
        told = {
            "deployment": name,
            "execution": outcome.execution,
            "status": outcome.status,
            "error": outcome.error,
            "cause": outcome.cause,
            "result": dict(outcome.result),
            "exit_code": code,
        }
        typer.echo(json.dumps(told))
    elif failure is None:
        _print_result(name, outcome.result)
    if failure is not None:
        raise failure
    raise typer.Exit(code)


def _say_last(name: str, region: str, *, as_json: bool) -> None:
    """No validation runs: what the last one has left."""
    from runtime.aws.clients import client
    from runtime.aws.parameter import parameter_text

    last = json.loads(parameter_text(client("ssm", region), last_validation_parameter(name)))
    if as_json:
        typer.echo(json.dumps({"deployment": name, "execution": None, "last": last}))
        return
    typer.echo(f"no validation of {name} runs; the last: {last['state']}")
    if last["state"] == "ended":
        _print_result(name, last["result"])
    elif last["state"] == "failed":
        typer.echo(f"{last['failed']['Error']}: {last['failed']['Cause']}")


def _print_result(name: str, result: Mapping[str, Any]) -> None:
    if "speedup" not in result:
        typer.echo(f"the nodes of {name} run, and their doctor finds no fault")
        return
    table = Table(title=f"validation of {name}", title_justify="left", show_header=False)
    for row in result_rows(result):
        table.add_row(*row)
    Console().print(table)
    typer.echo(f"report: {result['report']}")
    for line in result["missed"]:
        typer.echo(f"below a bar: {line}", err=True)


def result_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the table says."""
    speedup, ttft = result["speedup"], result["ttft_ms"]
    low, high = speedup["ci95"] or (None, None)
    answers = result["answers"]

    def times(arm: str) -> str:
        one = ttft[arm]
        return f"p50 {_shown(one['p50'])}, p90 {_shown(one['p90'])} (n {one['n']})"

    return [
        (
            "speed-up of TTFT, turns 2 and later",
            f"{_shown(speedup['ratio'])} ({_shown(low)} to {_shown(high)}, n {speedup['n']})",
        ),
        ("TTFT in ms, one-way", times("one_way")),
        ("TTFT in ms, bidirectional", times("bidirectional")),
        ("prompt tokens pulled, percent", _shown(result["pulled_share_percent"])),
        ("turns without a whole answer", str(result["failed_turns"])),
        (
            "answers that differ",
            f"{answers['different']} of {answers['compared']} ({result['exactness']})",
        ),
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
