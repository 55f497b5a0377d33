"""The `turnback tune` command."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from runtime.cli_edge import exit_with
from runtime.contract.node import RouterSpec
from runtime.errors import EXIT_INTERRUPTED, BadInput, TurnbackError

if TYPE_CHECKING:
    from runtime.bench.tune.gaps import Gaps

_PIN_SHARE = RouterSpec.model_fields["pin_share"].default


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tune)


def tune(
    report: Annotated[Path, typer.Argument(help="report.json of a benchmark.")],
    *,
    think_times: Annotated[
        Path | None,
        typer.Option(help="Seconds between turns: a JSON list, or one number a line."),
    ] = None,
    think_mean_s: Annotated[
        float | None, typer.Option(help="In place of a file: exponential gaps of this mean.")
    ] = None,
    keep_share: Annotated[
        float, typer.Option(help="Share of returns that shall find their handle.")
    ] = 0.95,
    kv_capacity_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="KV cache of all D together. Left out: the report's."),
    ] = None,
    pin_share: Annotated[float, typer.Option(help="Share of it that may be pinned.")] = _PIN_SHARE,
    turns_per_s: Annotated[
        float | None, typer.Option(help="Turns that finish in a second. Left out: the report's.")
    ] = None,
    pass_name: Annotated[
        str | None, typer.Option("--pass", help="Name of a pass. Left out: the first.")
    ] = None,
    settings: Annotated[Path, typer.Option(help="The deployment's settings.")] = Path(
        "deployment.toml"
    ),
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the suggested values into the settings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """From a report: the TTL and the threshold of the return, and what they would give."""
    # Late: other commands do without numpy.
    from runtime.bench.report import read_report
    from runtime.bench.tune.observations import observe
    from runtime.bench.tune.render import render, settings_lines
    from runtime.bench.tune.settings_file import apply as write
    from runtime.bench.tune.tuning import Wishes, tune

    try:
        wishes = Wishes(
            _gaps(think_times, think_mean_s),
            _within(keep_share, "--keep-share", 1.0, is_below=True),
            kv_capacity_tokens,
            _within(pin_share, "--pin-share", 1.0),
            None if turns_per_s is None else _within(turns_per_s, "--turns-per-s"),
        )
        told = read_report(report)
        tuned = tune(observe(told, str(report), pass_name), wishes)
        lines = settings_lines(tuned)
        if not as_json:
            Console().print(render(tuned))
            typer.echo(lines or "nothing to change is suggested")
        if not lines and tuned.threshold.verdict == "too_few" and tuned.ttl.seconds is None:
            raise _nothing(report, tuned.threshold.why, tuned.ttl.why)
        applied = None
        if apply:
            _refuse_mock(report, is_mock=tuned.seen.is_mock)
            applied = write(settings, tuned.settings)
            if applied.profile != tuned.seen.profile:
                typer.echo(_other_profile(applied.profile, tuned.seen.profile), err=True)
    except TurnbackError as error:
        raise exit_with(error) from None
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; the settings are as they were, or whole", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        written = applied and {"file": str(settings), "difference": applied.difference}
        typer.echo(json.dumps({"report": str(report), **tuned.to_dict(), "applied": written}))
    elif applied is not None:
        typer.echo(_what_next(applied.difference, settings))


def _gaps(path: Path | None, mean_s: float | None) -> "Gaps | None":
    from runtime.bench.tune.gaps import exponential, read_gaps

    if path is not None and mean_s is not None:
        raise BadInput(
            "the think times are given twice",
            got="--think-times and --think-mean-s",
            allowed="one of the two",
            fix="leave one out",
        )
    if path is not None:
        return read_gaps(path)
    return None if mean_s is None else exponential(_within(mean_s, "--think-mean-s"))


def _within(value: float, name: str, most: float = math.inf, *, is_below: bool = False) -> float:
    """A number above 0 and up to `most`, or below it; NaN is none."""
    if math.isfinite(value) and 0 < value <= most and not (is_below and value == most):
        return value
    upper = "" if most == math.inf else f" and {'below' if is_below else 'up to'} {most:g}"
    raise BadInput(
        f"{name} cannot be used",
        got=str(value),
        allowed=f"a number above 0{upper}",
        fix=f"give another {name}, or leave it out",
    )


def _nothing(report: Path, *why: str) -> BadInput:
    return BadInput(
        "the report says nothing about either setting",
        got=f"{report}: " + "; ".join(why),
        allowed="a pass whose turns pulled, or think times",
        fix="run `turnback bench` with the feature on, or give --think-times",
    )


def _refuse_mock(report: Path, *, is_mock: bool) -> None:
    if is_mock:
        raise BadInput(
            "settings are not written from mock engines' times",
            got=f"{report}: environment.engine is mock",
            allowed="a report of real engines",
            fix="leave --apply out, or run the benchmark on real engines",
        )


def _other_profile(served: str, measured: str) -> str:
    return f"warning: measured with profile {measured}, the settings serve with {served}"


def _what_next(difference: str, settings: Path) -> str:
    if not difference:
        return f"{settings} says so already"
    return (
        f"{difference}\n{settings} is written. Next:\n"
        "  cdk deploy --all        # changes the nodes' parameters, no running engine\n"
        "  turnback rollout NAME   # restarts engines one at a time, each drained first"
    )
