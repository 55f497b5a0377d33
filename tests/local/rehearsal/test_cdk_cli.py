"""The CDK CLI as a process: its arguments, its failures, its end."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.errors import BadInput, StartFailed
from runtime.local.rehearsal import cdk_cli
from runtime.local.rehearsal.cdk_cli import CdkCli

Play = Callable[[str], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a Python script in the place of the CLI, run by Python in the place of Node."""
    script = tmp_path / "cdk"
    script.touch()
    monkeypatch.setattr(cdk_cli, "CLI", script)
    monkeypatch.setattr(cdk_cli, "_node", lambda: Path(sys.executable))

    def write(text: str) -> None:
        script.write_text(text, "utf-8")

    return write


def cli(tmp_path: Path) -> CdkCli:
    return CdkCli({"name": "demo"}, tmp_path / "cdk.out", tmp_path / "logs")


def test_a_clone_that_was_not_set_up_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, with the command that mends it."""
    monkeypatch.setattr(cdk_cli, "CLI", tmp_path / "nowhere")
    with pytest.raises(BadInput, match="cannot deploy from here") as refusal:
        cli(tmp_path)
    assert refusal.value.fix == "make setup"


async def test_changes_of_a_deploy_are_kept_for_the_next_command(
    play: Play, tmp_path: Path
) -> None:
    """Else destroying would synthesize another deployment."""
    play("import sys; print(*sys.argv[1:], sep='\\n')")
    commands = cli(tmp_path)
    await commands.deploy("changed", {"kv.decoder_kv_blocks_ttl_s": "600"})
    await commands.destroy()
    for name in ("changed", "destroy"):
        words = (tmp_path / "logs" / f"cdk-{name}.log").read_text("utf-8").splitlines()
        assert "turnback:name=demo" in words
        assert "turnback:kv.decoder_kv_blocks_ttl_s=600" in words
        assert "--no-notices" in words


async def test_a_failure_shows_the_end_of_the_log(play: Play, tmp_path: Path) -> None:
    """What the CLI said last, and where all of it is."""
    play("import sys; print('no such export'); sys.exit(1)")
    with pytest.raises(StartFailed, match="cdk destroy failed") as failure:
        await cli(tmp_path).destroy()
    assert "no such export" in failure.value.got
    assert "cdk-destroy.log" in failure.value.fix


async def test_nothing_goes_on_when_it_is_cancelled(play: Play, tmp_path: Path) -> None:
    """Neither the CLI nor the app that it has started."""
    pids = tmp_path / "pids"
    play(
        "import os, pathlib, subprocess, sys, time\n"
        "app = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{app.pid}}')\n"
        "time.sleep(600)\n"
    )
    task = asyncio.create_task(cli(tmp_path).destroy())
    async with asyncio.timeout(20):
        while not pids.exists() or not pids.read_text("ascii"):
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    for pid in map(int, pids.read_text("ascii").split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_command_that_does_not_end_is_ended(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it said until then."""
    monkeypatch.setattr(cdk_cli, "_TIMEOUT_S", 1.0)
    play("import time; print('waiting', flush=True); time.sleep(600)")
    with pytest.raises(StartFailed, match="did not end") as failure:
        await cli(tmp_path).destroy()
    assert "waiting" in failure.value.got
