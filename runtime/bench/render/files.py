"""The files of a report, each whole or not at all."""

from collections.abc import Callable
from pathlib import Path

from runtime.bench.render.charts import ttft_by_turn
from runtime.bench.render.csv import rows
from runtime.bench.render.data import Json, arms_of, good
from runtime.bench.render.html import page
from runtime.bench.render.markdown import summary
from runtime.bench.render.svg import WIDE_PX, standalone_svg
from runtime.bench.report import write_report
from runtime.bench.write import write_whole
from runtime.contract.bench import REPORT

PAGE, ROWS, SUMMARY = "report.html", "requests.csv", "summary.md"
CHART = "ttft.svg"

_RENDERED: dict[str, Callable[[Json], str]] = {ROWS: rows, SUMMARY: summary, PAGE: page}


def write_reports(report: Json, folder: Path) -> list[Path]:
    """Write all files of a report.

    A reader sees the old file or the new one, never half. report.json comes first: what
    was measured is on the disk before anything is drawn.

    Returns:
        Their paths, the one for people to read last.
    """
    write_report(report, folder / REPORT)
    for name, render in _RENDERED.items():
        write_whole(folder / name, render(report))
    names = [REPORT]
    if has_turns(report):
        write_turn_chart(report, folder / CHART)
        names.append(CHART)
    return [folder / name for name in (*names, *_RENDERED)]


def has_turns(report: Json) -> bool:
    """Whether the main pass has a turn to draw."""
    return any(good(report, arm) for arm in arms_of(report))


def write_turn_chart(report: Json, path: Path) -> None:
    """Write the README's chart: TTFT by turn of the main pass, as an SVG of its own.

    Raises:
        ValueError: no turn of it succeeded.
    """
    if not has_turns(report):
        raise ValueError("no turn succeeded, so there is nothing to draw")
    svg = standalone_svg(
        lambda figure: ttft_by_turn(figure, report),
        name="turns",
        label="Time to first token by turn, one-way and bidirectional KV transfer",
        width_px=WIDE_PX,
        height_px=340,
    )
    write_whole(path, svg)
