"""The error tree and the exit codes of every `turnback` command.

TurnbackError
├── BadInput      2: settings, paths, ports or environments that cannot work
│   └── BadSettings: several of them, each with its field
├── StartFailed   3: a server did not become ready
└── EngineDied    4: a server that had been ready ended by itself
"""

from collections.abc import Sequence
from dataclasses import dataclass

EXIT_BELOW_BAR = 1
"""A measured result is below a bar that the user has set."""
EXIT_INTERRUPTED = 130


class TurnbackError(Exception):
    """A failure a user can meet, told in four parts.

    Args:
        what: what failed, one sentence.
        got: the offending value or observation.
        allowed: what would have been accepted.
        fix: what to do now, a command where there is one.
    """

    exit_code = 1

    def __init__(self, what: str, *, got: str, allowed: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.got, self.allowed, self.fix = what, got, allowed, fix

    def __str__(self) -> str:
        return (
            f"{self.what}\n  got:     {self.got}\n  allowed: {self.allowed}\n  fix:     {self.fix}"
        )


class BadInput(TurnbackError):
    """Settings, paths, ports or environments that cannot work."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One value that cannot be used.

    Attributes:
        field: dotted path of the setting.
        got: the value.
        allowed: what would have been accepted.
        fix: what to do now.
    """

    field: str
    got: str
    allowed: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.field}\n    got:     {self.got}\n"
            f"    allowed: {self.allowed}\n    fix:     {self.fix}"
        )


class BadSettings(BadInput):
    """Every setting of a file that cannot be used, at once.

    Args:
        source: the file.
        problems: all of them, at least one.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            f"{source}: {len(self.problems)} setting(s) cannot be used",
            got="; ".join(f"{each.field} = {each.got}" for each in self.problems),
            allowed="; ".join(f"{each.field}: {each.allowed}" for each in self.problems),
            fix="; ".join(f"{each.field}: {each.fix}" for each in self.problems),
        )

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {problem}" for problem in self.problems)])


class StartFailed(TurnbackError):
    """A server did not become ready."""

    exit_code = 3


class EngineDied(TurnbackError):
    """A server that had been ready ended by itself."""

    exit_code = 4
