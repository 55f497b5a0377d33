"""The engine's processes, out of /proc."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.launch.machine import Machine

_SERVER = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        pid: its id.
        argv: its words.
        env: its variables when it began; None: another user's.
    """

    pid: int
    argv: tuple[str, ...]
    env: Mapping[str, str] | None


def engine_process(machine: Machine) -> Process | None:
    """vLLM's API server; None: none runs. Of several the oldest: the others are its children."""
    for pid in sorted(int(name) for name in machine.names("/proc") if name.isdecimal()):
        argv = tuple((machine.text(f"/proc/{pid}/cmdline") or "").rstrip("\0").split("\0"))
        if _SERVER in argv:
            return Process(pid, argv, _variables(machine.text(f"/proc/{pid}/environ")))
    return None


def _variables(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    pairs = (word.partition("=") for word in text.split("\0") if "=" in word)
    return {name: value for name, _, value in pairs}


def family(machine: Machine, pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for name in machine.names("/proc"):
        if name.isdecimal():
            status = machine.text(f"/proc/{name}/status") or ""
            match = re.search(r"^PPid:\s+(\d+)$", status, re.MULTILINE)
            parents[int(name)] = int(match[1]) if match else 0
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)
