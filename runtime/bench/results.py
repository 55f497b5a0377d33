"""From passes on the disk to the reports beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from runtime.bench.folder import PassFolder
from runtime.bench.render.files import write_reports
from runtime.bench.report import Passed, build_report
from runtime.bench.run import told
from runtime.bench.table import render

REPORT = "report.json"


@contextmanager
def told_why(folder: PassFolder) -> Iterator[None]:
    """What ends a pass from outside of it, as the end of a server, is its reason too."""
    try:
        yield
    except BaseException as reason:
        if folder.is_begun:
            folder.end(folder.read()[0], told(reason))
        raise


def read_passes(folder: Path) -> list[Passed]:
    """All passes of a folder: those with both arms first, then by time.

    Raises:
        BadInput: a pass's file is broken.
    """
    folders = [PassFolder(path) for path in folder.iterdir()] if folder.is_dir() else []
    passes = [each.read() for each in folders if each.is_begun]
    return sorted(passes, key=lambda one: (not one[0].is_feature_on, one[0].created_utc))


@contextmanager
def report_in_any_case(folder: Path, console: Console) -> Iterator[None]:
    """Write what was measured, also when the block is left early; the reason then passes."""
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        passes = read_passes(folder)
        if any(turns for _, turns, _ in passes):
            report = build_report(passes)
            files = write_reports(report, folder)
            console.print(render(report))
            if not is_whole:
                console.print("partial report:")
            for path in files:
                console.print(f"{path.name + ':':13} {path}", soft_wrap=True, highlight=False)
        else:
            console.print("nothing was measured yet")
