"""Reads what all checks start from."""

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from runtime.contract.doctor import Stage
from runtime.contract.explain import explain
from runtime.contract.image import IMAGE_FILE, ImageFile
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.node import NodeSpec
from runtime.contract.status import (
    BOOT_FILE,
    NODE_ENVIRONMENT,
    STATUS_FILE,
    BootReport,
    NodeStatus,
)
from runtime.errors import TurnbackError
from runtime.launch.doctor import parse
from runtime.launch.doctor.check import Facts, File
from runtime.launch.machine import Machine

_INSTANCE_NAME = "/sys/devices/virtual/dmi/id/product_name"
"""Source: EC2's Nitro firmware puts the instance type there."""
SPEC_S = 4.0
"""Longest wait for the node's parameter, before the checks."""
M = TypeVar("M", bound=BaseModel)


def node_environment(machine: Machine) -> dict[str, str]:
    """Variables that user data left; empty: this is no node of a deployment."""
    return parse.shell_variables(machine.text(NODE_ENVIRONMENT) or "")


def is_node(machine: Machine) -> bool:
    """Whether a machine is of an image of this kit, or of a deployment."""
    return any(machine.text(each) is not None for each in (IMAGE_FILE, NODE_ENVIRONMENT))


def likely_stage(machine: Machine) -> Stage:
    """live where a process has said what it was started with, else boot."""
    return "boot" if machine.text(STATUS_FILE) is None else "live"


def gather(
    machine: Machine, stage: Stage, read_spec: Callable[[], str], spec_s: float = SPEC_S
) -> Facts:
    """Facts of a node, without peers and window.

    Args:
        machine: the node.
        stage: whose checks run.
        read_spec: text of the node's parameter; TurnbackError: it cannot be had.
        spec_s: longest wait for it.
    """
    files = files_of(machine, stage)
    return files if stage == "image" else replace(files, spec=_spec(read_spec, spec_s))


def files_of(machine: Machine, stage: Stage) -> Facts:
    """What a node's files say, without its spec."""
    name = machine.text(_INSTANCE_NAME) or ""
    return Facts(
        machine,
        stage,
        image=_file(machine, IMAGE_FILE, ImageFile),
        boot=_file(machine, BOOT_FILE, BootReport),
        status=_file(machine, STATUS_FILE, NodeStatus),
        instance=INSTANCE_TYPES.get(name),
        instance_name=name,
    )


def _spec(read: Callable[[], str], wait_s: float) -> File[NodeSpec]:
    """Names are looked up by the system, which knows no time-out: a thread waits for it."""
    answer: queue.SimpleQueue[File[NodeSpec]] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(_spec_now(read)), daemon=True).start()
    try:
        return answer.get(timeout=wait_s)
    except queue.Empty:
        return File(problem=f"the node's parameter: no answer (waited {wait_s:.1f} s)")


def _spec_now(read: Callable[[], str]) -> File[NodeSpec]:
    try:
        text = read()
    except TurnbackError as error:
        return File(problem=f"{error.what}: {error.got}")
    except Exception as error:  # noqa: BLE001 - a check's edge: told as its finding
        return File(problem=f"the node's parameter: {type(error).__name__}: {error}")
    return _parsed(text, "the node's parameter", NodeSpec)


def _file(machine: Machine, path: Path, model: type[M]) -> File[M]:
    text = machine.text(path)
    return File(problem=f"no {path}") if text is None else _parsed(text, str(path), model)


def _parsed(text: str, source: str, model: type[M]) -> File[M]:
    try:
        return File(model.model_validate_json(text))
    except ValidationError as error:
        told = explain(error, source)
        return File(problem=f"{told.what}: {told.allowed}")
