"""How far a pass is, on a terminal or in a log."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from runtime.bench.turn import TurnResult

_LINES = 10
"""Of a pass, in a log."""


@dataclass
class Progress:
    """Told of each turn; shows it.

    Attributes:
        total: turns of the pass.
    """

    console: Console
    bars: Bars
    bar: TaskID
    name: str
    total: int
    done: int = 0
    failed: int = 0

    def on_warm(self) -> None:
        """The warm-up is over."""
        self.bars.update(self.bar, description=self.name)

    def on_turn(self, result: TurnResult) -> None:
        """One more turn."""
        self.done += 1
        self.failed += result.outcome in ("errored", "incomplete")
        failed = f", {self.failed} failed" if self.failed else ""
        self.bars.update(self.bar, advance=1, description=f"{self.name}{failed}")
        step = max(1, self.total // _LINES)
        if not self.console.is_terminal and (self.done % step == 0 or self.done == self.total):
            self.console.print(
                f"{self.name}: {self.done} of {self.total} turns measured{failed}",
                highlight=False,
            )


@contextmanager
def shown(console: Console, name: str, total: int) -> Iterator[Progress]:
    """Show a bar on a terminal, or some lines in a log, until the block ends."""
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bars:
        bar = bars.add_task(f"{name}: warming up", total=total)
        yield Progress(console, bars, bar, name, total)
