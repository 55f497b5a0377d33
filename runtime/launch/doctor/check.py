"""A check, what it finds, and what it may look at."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

from runtime.contract.doctor import Stage, Status, TrafficReading
from runtime.contract.image import ImageFile
from runtime.contract.instances import InstanceType
from runtime.contract.node import NodeSpec
from runtime.contract.status import BootReport, NodeStatus
from runtime.launch.machine import Machine, Ran

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        status: pass, warn or fail.
        evidence: what was seen.
        fix: what to do now; empty of a pass.
    """

    status: Status
    evidence: str
    fix: str = ""


def passed(evidence: str) -> Finding:
    """Good."""
    return Finding("pass", evidence)


def warned(evidence: str, fix: str) -> Finding:
    """It serves, and someone should look."""
    return Finding("warn", evidence, fix)


def failed(evidence: str, fix: str) -> Finding:
    """It does not serve, or not as it should."""
    return Finding("fail", evidence, fix)


@dataclass(frozen=True, slots=True)
class File(Generic[T]):
    """A file as it was read.

    Attributes:
        value: its content; None: it cannot be used.
        problem: why not.
    """

    value: T | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """In which traffic is watched.

    Attributes:
        length_s: of the engine's counter.
        at_unix_s: its begin, so that several nodes share it; None: as soon as possible.
    """

    length_s: float
    at_unix_s: float | None = None


def _not_read(wait_s: float) -> File[TrafficReading]:
    return File(problem=f"counters are read at stage live ({wait_s:.0f} s were left)")


@dataclass(frozen=True, slots=True)
class Facts:
    """What all checks start from.

    Attributes:
        machine: files and programs.
        stage: whose checks run.
        image, spec, boot, status: the node's files; the spec is its parameter's text.
        instance: row of the table; None: a type that it does not have, or unknown.
        instance_name: what the firmware calls the type.
        peers: (host, port) of other nodes' side channels.
        window: None: traffic is not watched; totals are compared.
        traffic: waits at most so many seconds for the counters, which are read beside.
    """

    machine: Machine
    stage: Stage
    image: File[ImageFile] = field(default_factory=File)
    spec: File[NodeSpec] = field(default_factory=File)
    boot: File[BootReport] = field(default_factory=File)
    status: File[NodeStatus] = field(default_factory=File)
    instance: InstanceType | None = None
    instance_name: str = ""
    peers: tuple[tuple[str, int], ...] = ()
    window: Window | None = None
    traffic: Callable[[float], File[TrafficReading]] = _not_read


class Unanswered(Exception):
    """A program that a check needs did not end, or is not there.

    Args:
        evidence: which, and how long it was waited for.
    """


@dataclass(frozen=True, slots=True)
class Look:
    """One check's view: the facts, and programs until its time is up."""

    facts: Facts
    until_s: float

    @property
    def machine(self) -> Machine:
        """Files; programs are run by `run`."""
        return self.facts.machine

    @property
    def left_s(self) -> float:
        """Until this check's time is up; at least a moment."""
        return max(0.05, self.until_s - time.monotonic())

    def has(self, program: str) -> bool:
        """Whether there is such a program."""
        return shutil.which(program, path=self.machine.path) is not None

    def run(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Ran:
        """Run a program to its end.

        Raises:
            Unanswered: it does not end in time, or cannot be started.
        """
        words = [str(each) for each in argv]
        machine = self.machine
        if env:
            machine = Machine(machine.root, machine.path, {**machine.env, **env})
        ran = machine.run(words, self.left_s)
        if ran.code is None:
            shown = " ".join(words)[:80]
            raise Unanswered(f"`{shown}`: {ran.err}")
        return ran


@dataclass(frozen=True, slots=True)
class Check:
    """One question.

    Attributes:
        name: its id, in docs/doctor.md and in answers.
        title: what is asked.
        stages: in which it is asked.
        timeout_s: after which it has failed.
        look: asks.
        fix: for programs that hang or are missing.
        of: efa and gpu: asked where the spec wants them.
    """

    name: str
    title: str
    stages: tuple[Stage, ...]
    timeout_s: float
    look: Callable[[Look], Finding]
    fix: str
    of: Literal["node", "efa", "gpu"] = "node"
