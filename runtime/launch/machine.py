"""Where facts about a machine are read: the real one, or a tree made for tests."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_LAST_BYTES = 64 * 1024
_PROGRAMS = ("/opt/amazon/efa/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
"""Beside PATH, which a unit has without them: where EFA's and the system's programs lie."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended, or was ended.

    Attributes:
        code: exit code; None: it did not end in time, or there is no such program.
        out: stdout.
        err: stderr, or why it could not be run.
        took_s: wall time.
    """

    code: int | None
    out: str
    err: str
    took_s: float

    @property
    def is_good(self) -> bool:
        """It ended with 0."""
        return self.code == 0


class _Tail:
    """Reads a program's stream to its end, and keeps the last bytes.

    The reader is a thread of its own, since a child that has left the program's session may
    hold the stream open for ever.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._stream as stream:
            while block := os.read(stream.fileno(), _LAST_BYTES):
                self._kept = (self._kept + block)[-_LAST_BYTES:]

    def wait(self, timeout_s: float) -> bool:
        """Whether the stream has ended."""
        self._reader.join(max(0.0, timeout_s))
        return not self._reader.is_alive()

    @property
    def text(self) -> str:
        """What was kept."""
        return self._kept.decode("utf-8", "replace").replace("\r\n", "\n")


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *_PROGRAMS])


@dataclass(frozen=True, slots=True)
class Machine:
    """Files under a root and programs on a path.

    Attributes:
        root: `/`, or a folder that holds sys, proc, etc and so on.
        path: folders of programs, as in PATH.
        env: further variables of every program.
    """

    root: Path = Path("/")
    path: str = field(default_factory=_path)
    env: Mapping[str, str] = field(default_factory=dict)

    def at(self, path: str | Path) -> Path:
        """Where an absolute path lies."""
        return self.root / str(path).lstrip("/")

    def text(self, path: str | Path) -> str | None:
        """A file's text without white space around it; None: it cannot be read."""
        try:
            return self.at(path).read_text("utf-8", errors="replace").strip()
        except OSError:
            return None

    def names(self, folder: str | Path) -> list[str]:
        """What a folder holds, sorted; empty: it is not there."""
        try:
            return sorted(each.name for each in self.at(folder).iterdir())
        except OSError:
            return []

    def run(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a program to its end; after `timeout_s` it and all that it started are killed."""
        began_s = time.monotonic()
        env = {**os.environ, **self.env, "PATH": self.path, "LC_ALL": "C"}
        try:
            process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return Ran(None, "", str(error), time.monotonic() - began_s)
        tails = [_Tail(stream) for stream in (process.stdout, process.stderr) if stream]
        is_over = all(tail.wait(began_s + timeout_s - time.monotonic()) for tail in tails)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, began_s + timeout_s - time.monotonic()))
        if not is_over or process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            told = f"no end within {timeout_s:.1f} s"
            return Ran(None, "", told, time.monotonic() - began_s)
        out, err = (tail.text for tail in tails)
        return Ran(process.returncode, out, err, time.monotonic() - began_s)

    def efa_devices(self) -> list[str]:
        """Names of the verbs devices whose driver is EFA's.

        Source: /sys/class/infiniband; other verbs devices may stand beside them.
        """
        return [
            name
            for name in self.names("/sys/class/infiniband")
            if (link := self.link(f"/sys/class/infiniband/{name}/device/driver")) is not None
            and link.name == "efa"
        ]

    def link(self, path: str) -> Path | None:
        """Where a symbolic link leads; None: it is none."""
        try:
            return self.at(path).readlink()
        except OSError:
            return None
