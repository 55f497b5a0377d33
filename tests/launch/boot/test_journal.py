"""What a boot tells: lines, a file, systemd."""

import io
import os
import socket
from pathlib import Path

import pytest

from runtime.contract.status import BOOT_FILE, BootReport
from runtime.errors import StartFailed
from runtime.launch.boot.journal import notify
from runtime.launch.machine import Machine
from tests.launch.boot.node import boot_file, journal

FAILURE = StartFailed("it failed", got="first\nsecond" + " x" * 500, allowed="good", fix="mend it")


class Broken(io.StringIO):
    """Its reader has gone."""

    def flush(self) -> None:
        """As a pipe does it."""
        raise BrokenPipeError


def test_failure_is_one_line_of_a_length_one_reads(tmp_path: Path) -> None:
    """However long the engine's last words are; the file has the same."""
    told, stream = journal(Machine(tmp_path))
    told.enter("model")
    told.fail(FAILURE)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("turnback: model failed: it failed; got: first second x x")
    assert line.endswith("...; allowed: good; fix: mend it")
    assert len(line) < 1000
    report = boot_file(Machine(tmp_path))
    assert (report.state, report.step, report.fix) == ("failed", "model", "mend it")
    assert "\n" not in report.got


def test_file_is_never_half_written(tmp_path: Path) -> None:
    """Doctor may read at any moment: it is replaced as a whole."""
    told, _ = journal(Machine(tmp_path))
    told.enter("kit")
    inode = Machine(tmp_path).at(BOOT_FILE).stat().st_ino
    told.enter("spec")
    assert Machine(tmp_path).at(BOOT_FILE).stat().st_ino != inode
    assert BootReport.model_validate_json(Machine(tmp_path).at(BOOT_FILE).read_bytes())


@pytest.mark.parametrize(("started_s", "starts"), [(0, 3), (None, 3), (4_000_000_000, 0)])
def test_starts_count_since_the_machine_started(
    started_s: int | None, starts: int, tmp_path: Path
) -> None:
    """Over restarts of the unit, so that no log of an engine is written over; a reboot ends it."""
    journal(Machine(tmp_path))[0].enter("engine", starts=3)
    if started_s is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/stat").write_text(f"cpu 1 2\nbtime {started_s}\n", "utf-8")
    assert journal(Machine(tmp_path))[0].report.starts == starts


def test_file_that_cannot_be_written_hides_no_failure(tmp_path: Path) -> None:
    """The disk is full: the journal still says why the boot failed."""
    (tmp_path / "var").write_text("no folder", "utf-8")
    told, stream = journal(Machine(tmp_path))
    told.fail(FAILURE)
    assert "boot.json cannot be written" in stream.getvalue()
    assert "kit failed: it failed" in stream.getvalue()


def test_node_goes_on_where_nobody_reads_its_lines(tmp_path: Path) -> None:
    """A journal that has gone away must not keep a node from ending in order."""
    told, _ = journal(Machine(tmp_path))
    told.stream = Broken()
    told.say("to nobody")
    told.fail(FAILURE)
    assert boot_file(Machine(tmp_path)).state == "failed"


@pytest.mark.parametrize("kind", ["file", "abstract", "nobody", "none"])
def test_systemd_is_told_where_it_listens(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a path, by an abstract name; where none listens nothing happens."""
    if kind == "none":
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        notify("READY=1")
        return
    name = f"@{tmp_path.name}-{os.getpid()}" if kind == "abstract" else str(tmp_path / "socket")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    if kind == "nobody":
        notify("READY=1")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0", 1))
        systemd.settimeout(5)
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"
