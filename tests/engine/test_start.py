"""A real engine that is killed while it starts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.conftest import alive, descendants
from tests.engine.pairs import ENGINE

pytestmark = pytest.mark.engine


def test_engine_killed_at_start(tmp_path: Path, model: Path) -> None:
    """SIGKILL of one starting server: exit code 3, a message in four parts, no process left."""
    argv = [sys.executable, "-m", "runtime.cli", "up", "--out", str(tmp_path)]
    argv += ["--model", str(model), "--engine-environment", str(ENGINE)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        server = wait_for_server(process.pid)
        below = descendants(process.pid)
        os.kill(server, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    for part in ("error:", "SIGKILL", "got:", "allowed:", "fix:", ".log"):
        assert part in output, output
    end = time.monotonic() + 10
    while any(map(alive, below)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in below if alive(pid)]


def wait_for_server(pid: int) -> int:
    """The first API server below a process, once its interpreter runs."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in descendants(pid):
            line = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"api_server" in line and b"guard.py" not in line:
                return child
        time.sleep(0.1)
    raise AssertionError("no server was started")
