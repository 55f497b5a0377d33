"""The error tree and the exit codes of every `turnback` command.

TurnbackError
├── BadInput      2: settings, paths, ports or environments that cannot work
├── StartFailed   3: a server did not become ready
└── EngineDied    4: a server that had been ready ended by itself
"""

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


class StartFailed(TurnbackError):
    """A server did not become ready."""

    exit_code = 3


class EngineDied(TurnbackError):
    """A server that had been ready ended by itself."""

    exit_code = 4
