"""`turnback rehearse` as a user meets it when it does not come to its end."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.errors import EXIT_INTERRUPTED


def running(word: str) -> list[str]:
    """Command lines of processes that hold a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it has just ended
            continue
        if word in line:
            found.append(line)
    return found


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_rehearsal_leaves_no_process(signum: signal.Signals, tmp_path: Path) -> None:
    """Neither the CLI and its app, nor the emulator."""
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "runtime.cli", "rehearse", "--out", str(out)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            end = time.monotonic() + 60
            while not running(str(out / "rehearsal" / "cdk.out")):
                assert time.monotonic() < end
                assert process.poll() is None, process.stdout and process.stdout.read()
                time.sleep(0.05)
            process.send_signal(signum)
            told, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == EXIT_INTERRUPTED
    assert "every process that was started has been ended" in told
    assert "interrupted in: cdk bootstrap" in told
    assert str(out / "rehearsal" / "logs") in told
    assert running(str(tmp_path)) == []


def test_wrong_environment_is_told_before_anything_starts(tmp_path: Path) -> None:
    """With the command that makes one."""
    argv = [sys.executable, "-m", "runtime.cli", "rehearse", "--out", str(tmp_path)]
    done = subprocess.run(
        [*argv, "--engine-environment", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "engine environment not found" in done.stderr
    assert "make setup" in done.stderr
