"""How a command ends: errors become messages and exit codes, signals cancel."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from runtime.errors import EXIT_INTERRUPTED, BadInput, TurnbackError


def run(
    work: Coroutine[Any, Any, Any],
    runner: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> None:
    """Run to the end; SIGTERM is taken like Ctrl-C. Errors become messages and exit codes.

    Both are handled here, since a background job starts with SIGINT ignored.
    """

    async def body() -> None:
        task = asyncio.current_task()
        if task is not None:
            for signum in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
        await work

    try:
        runner(body())
    except TurnbackError as error:
        raise exit_with(error) from None
    except OSError as error:
        raise exit_with(unusable(error)) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("\ninterrupted; every process that was started has been ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def exit_with(error: TurnbackError) -> typer.Exit:
    """Print an error; raise what comes back."""
    typer.echo(f"\nerror: {error}", err=True)
    return typer.Exit(error.exit_code)


def unusable(error: OSError) -> BadInput:
    """What the system says of a file, for a user."""
    return BadInput(
        "a file or folder cannot be used",
        got=str(error),
        allowed="folders that can be read and written, with room on the disk",
        fix="give another --out, or mend what the system names",
    )
