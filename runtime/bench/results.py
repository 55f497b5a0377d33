"""From passes on the disk to the reports beside them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.bench.folder import PASS, PassFolder
from runtime.bench.render.files import write_reports
from runtime.bench.report import Passed, build_report
from runtime.bench.run import told
from runtime.bench.table import render
from runtime.contract.published import load_published


@contextmanager
def told_why(folder: PassFolder) -> Iterator[None]:
    """What ends a pass from outside of it, as the end of a server, is its reason too."""
    try:
        yield
    except BaseException as reason:
        if folder.is_begun:
            folder.end(folder.read()[0], told(reason))
        raise


def found_passes(folder: Path) -> list[tuple[Path, Passed]]:
    """The pass of a folder, or those in it: with both arms first, then by time.

    Raises:
        BadInput: a pass's file is broken.
    """
    paths = (
        [folder] if (folder / PASS).exists() else [file.parent for file in folder.glob(f"*/{PASS}")]
    )
    found = [(path, PassFolder(path).read()) for path in paths]
    return sorted(found, key=lambda one: (not one[1][0].is_feature_on, one[1][0].created_utc))


def report_of(passes: Sequence[Passed]) -> dict[str, Any]:
    """The report, with the published figures of the main pass's profile where there are any."""
    return build_report(passes, load_published(passes[0][0].profile.name))


def show_files(files: Iterable[Path], console: Console) -> None:
    """Say where a report's files are, a line each."""
    for path in files:
        console.print(f"{path.name + ':':13} {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def report_in_any_case(folder: Path, console: Console) -> Iterator[None]:
    """Write what was measured, also when the block is left early; the reason then passes."""
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        passes = [passed for _, passed in found_passes(folder)]
        if any(turns for _, turns, _ in passes):
            report = report_of(passes)
            files = write_reports(report, folder)
            console.print(render(report))
            if not is_whole:
                console.print("partial report:")
            show_files(files, console)
        else:
            console.print("nothing was measured yet")
