"""`turnback report`: builds the report of passes that are on the disk."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from runtime.cli_aws import JsonOption
from runtime.cli_edge import exit_with, unusable
from runtime.errors import BadInput, TurnbackError

if TYPE_CHECKING:
    from runtime.bench.report import Passed

    Found = tuple[Path, Passed]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Of a run or of passes; the main pass comes first."),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Where the files go. Left out: the first folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build report.json, report.html, requests.csv, summary.md and ttft.svg of measured passes."""
    try:
        files = build(folders, out or folders[0], Console(stderr=as_json))
    except (TurnbackError, OSError) as error:
        raise exit_with(error if isinstance(error, TurnbackError) else unusable(error)) from None
    if as_json:
        typer.echo(json.dumps({path.name: str(path) for path in files}))


def build(folders: list[Path], out: Path, console: Console) -> list[Path]:
    """Read the passes, write the report's files, show the table.

    Args:
        folders: of passes, or of runs with passes in them; the first pass is the main one.
            In a run folder passes with the feature on come first, then by time.
        out: is made where it is missing.
        console: takes the table.

    Returns:
        The files.

    Raises:
        BadInput: a folder holds no pass, or nothing was measured in any.
    """
    # Late: other commands do without these.
    from runtime.bench.render.files import write_reports
    from runtime.bench.results import report_of, show_files
    from runtime.bench.table import render

    found = [one for folder in folders for one in _passes(folder)]
    kept = [one for one in found if one[1][1]]
    for path, _ in (one for one in found if not one[1][1]):
        console.print(f"{path}: no turn was measured, left out", markup=False, soft_wrap=True)
    if not kept:
        raise BadInput(
            "nothing was measured",
            got=f"passes without a turn: {', '.join(str(path) for path, _ in found)}",
            allowed="at least one pass with a turn in turns.jsonl",
            fix="run `turnback bench` again",
        )
    told = report_of([passed for _, passed in kept])
    files = write_reports(told, out)
    console.print(render(told))
    show_files(files, console)
    return files


def _passes(folder: Path) -> "list[Found]":
    """The pass of a folder, or the passes in it; there is one at least."""
    from runtime.bench.folder import PASS
    from runtime.bench.results import found_passes

    found = found_passes(folder)
    if not found:
        raise BadInput(
            "this folder holds no pass",
            got=str(folder) if folder.is_dir() else f"{folder} (no such folder)",
            allowed=f"a folder with {PASS}, or one whose folders have it",
            fix="give a folder that `turnback bench` or `turnback demo` has written",
        )
    return found
