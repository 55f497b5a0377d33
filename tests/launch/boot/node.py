"""A node to boot: a folder that stands for `/`, a spec, and an engine that is a stand-in."""

import asyncio
import io
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from runtime.contract.model import MODELS
from runtime.contract.node import NodeSpec
from runtime.contract.status import BOOT_FILE, STATUS_FILE, BootReport
from runtime.launch.boot.boot import Node, Sources
from runtime.launch.boot.engine import Pace
from runtime.launch.boot.journal import Journal
from runtime.launch.command import Command
from runtime.launch.machine import Machine
from runtime.local.rehearsal.node import folder_checks, make_tree
from tests.infra.synth import golden

STAND_IN = Path(__file__).parents[1] / "stand_in.py"
PARAMETER = "/turnback/demo/decode"
KIT = "ab" * 32
QUICK = Pace(
    ready_s=20, grace_s=2, pause_s=0.05, longest_pause_s=0.1, notice_s=0.1, drain_s=5, poll_s=0.05
)


def spec(port: int, *, drains_at: datetime | None = None, role: str = "decode") -> NodeSpec:
    """As it is deployed, but for what loopback needs."""
    raw = golden(f"node-spec-{role}.json")
    raw["serving"]["port"] = port
    raw["kv"]["kv_lease_duration_s"] = 12
    return NodeSpec.model_validate({**raw, "drains_at": drains_at})


def tree(root: Path, wanted: NodeSpec) -> Machine:
    """A machine on which it can be served, model and all."""
    make_tree(root, wanted, KIT)
    model = Machine(root).at(wanted.serving.model)
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}", "utf-8")
    return Machine(root)


def node(machine: Machine, *words: str, **changes: Any) -> Node:
    """A node whose engine is the stand-in.

    Args:
        machine: from `tree`.
        words: options of the stand-in.
        changes: of the node.
    """

    def command(wanted: NodeSpec) -> Command:
        assert wanted.serving.model == machine.at(MODELS) / wanted.serving.model.relative_to(
            machine.at(MODELS)
        )
        return Command((sys.executable, str(STAND_IN), str(wanted.serving.port), *words))

    given = {"kit_sha256": KIT, "address": lambda: "127.0.0.1", "command": command, "pace": QUICK}
    return Node(machine, PARAMETER, **{**given, "checks": folder_checks(), **changes})


def sources(text: str, **changes: Any) -> Sources:
    """AWS, as far as a boot asks it."""
    given = {"spec_text": lambda: text, "sync_model": lambda *_: None}
    return Sources(**{**given, **changes})


def journal(machine: Machine) -> tuple[Journal, io.StringIO]:
    """With what it has written."""
    stream = io.StringIO()
    return Journal(machine, stream), stream


def boot_file(machine: Machine) -> BootReport:
    """As doctor reads it."""
    return BootReport.model_validate_json(machine.at(BOOT_FILE).read_bytes())


def status_file(machine: Machine) -> Path:
    """As a rollout reads it."""
    return machine.at(STATUS_FILE)


async def until(true: Callable[[], object]) -> None:
    """Poll."""
    async with asyncio.timeout(15):
        while not true():
            await asyncio.sleep(0.02)
