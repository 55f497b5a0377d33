"""Tells how far a boot has come: a line in the journal, a file, and systemd."""

import contextlib
import os
import re
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Literal, TextIO

from pydantic import ValidationError

from runtime.contract.status import BOOT_FILE, BootReport
from runtime.errors import TurnbackError
from runtime.launch.machine import Machine

State = Literal["booting", "serving", "draining", "failed"]
_MOST_CHARACTERS = 300
"""Of each part of a failure; the tail of an engine's log is longer."""


def notify(message: str) -> None:
    """Tell systemd; does nothing where no systemd listens.

    Source:
        sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names, `@` for abstract ones.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told,
    ):
        told.connect("\0" + address[1:] if address.startswith("@") else address)
        told.sendall(message.encode())


def one_line(text: str) -> str:
    """Without line breaks, and of a length that a line can have."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _MOST_CHARACTERS else f"{flat[: _MOST_CHARACTERS - 3]}..."


def _started_unix_s(machine: Machine) -> float:
    """When the machine started. Source: proc(5), btime of /proc/stat."""
    found = re.search(r"^btime (\d+)$", machine.text("/proc/stat") or "", re.MULTILINE)
    return float(found[1]) if found else 0.0


@dataclass
class Journal:
    """What a boot says of itself.

    Attributes:
        machine: where BOOT_FILE lies.
        stream: systemd puts it into the journal.
        report: as last written.
    """

    machine: Machine
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    report: BootReport = field(
        default_factory=lambda: BootReport(state="booting", step="kit", since_unix_s=time.time())
    )

    def __post_init__(self) -> None:
        """Starts of an earlier boot count, as long as the machine has not started anew."""
        with contextlib.suppress(OSError, ValidationError):
            before = BootReport.model_validate_json(self.machine.at(BOOT_FILE).read_bytes())
            if before.since_unix_s >= _started_unix_s(self.machine):
                self.report = self.report.model_copy(update={"starts": before.starts})

    def say(self, text: str) -> None:
        """A line of the step that runs."""
        self._line(f"{self.report.step}: {one_line(text)}")
        notify(f"STATUS={self.report.step}: {one_line(text)}")

    def enter(self, step: str, state: State = "booting", **told: object) -> None:
        """A step or a state begins.

        Args:
            step: kit, spec, image, transport, checks, model or engine.
            state: of the node.
            told: further fields of the report that change.
        """
        now = {"state": state, "step": step, "since_unix_s": time.time(), **told}
        self.report = BootReport.model_validate({**self.report.model_dump(), **now})
        self._write()

    def fail(self, error: TurnbackError) -> None:
        """The step that runs has failed: one line, and the same in four parts in the file."""
        parts = {name: one_line(getattr(error, name)) for name in ("what", "got", "allowed", "fix")}
        self.enter(self.report.step, "failed", **parts)
        told = "; ".join(f"{name}: {text}" for name, text in parts.items() if name != "what")
        self._line(f"{self.report.step} failed: {parts['what']}; {told}")
        notify(f"STATUS={self.report.step} failed: {parts['what']}")

    def _write(self) -> None:
        """A disk that is full must not hide why the boot failed: the journal has it too."""
        path = self.machine.at(BOOT_FILE)
        draft = path.with_suffix(".draft")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(self.report.model_dump_json(), "utf-8")
            draft.replace(path)
        except OSError as error:
            self._line(f"{path} cannot be written: {error.strerror}")

    def _line(self, text: str) -> None:
        """Where nobody reads any more, the node goes on, and ends when it is told to."""
        with contextlib.suppress(OSError):
            self.stream.write(f"turnback: {text}\n")
            self.stream.flush()
