"""The `turnback` script before its commands are imported."""

import importlib
import subprocess
import sys

import pytest

from runtime import entry


def test_interrupt_during_the_imports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the first second ends in 130 and a line, not in a traceback."""

    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert "interrupted" in capsys.readouterr().err


def test_entry_runs_the_commands() -> None:
    """The entry point leads to the same commands as the module."""
    argv = [sys.executable, "-m", "runtime.entry", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert all(name in done.stdout for name in ("demo", "up", "router"))
