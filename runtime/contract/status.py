"""What a machine says of the process it runs: its boot writes it, a rollout reads it."""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field

from runtime.contract.node import Frozen, Url

STATUS_FILE = Path("/run/turnback/status.json")
"""In the unit's RuntimeDirectory, so that it ends with the unit."""

MachineRole = Literal["prefill", "decode", "router"]
MACHINE_ROLES: tuple[MachineRole, ...] = ("prefill", "decode", "router")


class NodeStatus(Frozen):
    """What a process was started with, written before it starts."""

    format: Literal[1] = 1
    """Of this file."""
    role: MachineRole
    generation: str = Field(min_length=1)
    """Of the NodeSpec; of a router, `arguments_generation` of its arguments."""
    url: Url
    """Where the process listens, as seen from the machine."""
    decoder_kv_blocks_ttl_s: int | None = None
    """Of an engine."""
    kv_lease_duration_s: int | None = None
    """Of an engine."""


BOOT_FILE = Path("/var/lib/turnback/boot.json")
"""In the unit's StateDirectory: a failure outlasts the unit."""


class BootReport(Frozen):
    """How far a node's boot has come, or why it did not come further."""

    format: Literal[1] = 1
    """Of this file."""
    state: Literal["booting", "serving", "draining", "failed"]
    step: str = Field(min_length=1)
    """Of the boot: kit, spec, image, transport, checks, model, engine."""
    since_unix_s: float
    """When the state or step began."""
    generation: str = ""
    """Of the NodeSpec, once it has been read."""
    starts: int = Field(default=0, ge=0)
    """Of the engine since the machine started."""
    what: str = ""
    """Of a failure, one line; with got, allowed and fix."""
    got: str = ""
    allowed: str = ""
    fix: str = ""


class NodeReport(Frozen):
    """A machine's answer to `python -m runtime.launch.node_report`."""

    format: Literal[1] = 1
    """Of this answer."""
    generation: str = ""
    """Of the status; empty: no process runs."""
    ttl_s: int | None = None
    """decoder_kv_blocks_ttl_s of the status."""
    lease_s: int | None = None
    """kv_lease_duration_s of the status."""
    is_ready: bool = False
    """Whether the process answers its health check."""
    running_requests: int | None = None
    """That run or wait; None: it does not answer."""
    idle_s: float | None = None
    """Of a router: since the last turn ended; None: it does not answer, or is no router."""


def arguments_generation(text: str) -> str:
    """Generation of a router that was started with a parameter's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


NODE_ENVIRONMENT = Path("/etc/turnback/node.env")
"""Variables that user data leaves on every machine of a deployment."""

KIT_PYTHON = "/opt/turnback/venv/bin/python"
"""On every machine of a deployment: an interpreter with this kit."""
KIT_COMMAND = "/opt/turnback/venv/bin/turnback"
"""Beside it: the `turnback` command."""
KIT_STAMP = Path("/opt/turnback/kit.sha256")
"""Digest of the wheel that is wholly installed; user data removes it before it installs."""

ENGINE_PYTHON = Path("/opt/turnback/venv-engine/bin/python")
"""On every node: an interpreter with vLLM, nixl and this kit."""

NODE_UNIT, ROUTER_UNIT = "turnback-node.service", "turnback-router.service"
"""What systemd runs: the engine, which the image brings, and the router."""
