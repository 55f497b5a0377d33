"""The deployment's nodes as processes of this machine: a fleet that a rollout can work on."""

import asyncio
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.aws.clients import client
from runtime.aws.machines import rolled_groups
from runtime.aws.rollout.fleet import ENGINE_ROLES, NodeRole, RunningNode, Target
from runtime.aws.rollout.parameters import read_targets
from runtime.aws.rollout.report import Pace, RolloutReport
from runtime.aws.rollout.rollout import roll_out
from runtime.contract.node import CpuSpec, Role
from runtime.contract.status import (
    BOOT_FILE,
    STATUS_FILE,
    BootReport,
    NodeStatus,
    arguments_generation,
)
from runtime.errors import StartFailed
from runtime.launch.command import Command
from runtime.launch.machine import Machine
from runtime.launch.node_report import node_report
from runtime.launch.supervisor import Service, Supervisor, tail
from runtime.local.cluster import HOST, cores
from runtime.local.rehearsal import deployed
from runtime.local.rehearsal.node import LocalNode, make_tree
from runtime.local.rehearsal.swaps import local_arguments

_RESTART_S = 400.0
_LOOK_S = 0.2
_KV_CACHE_GIB = 2
OWN_PART_S = 5.0
"""Longest that boot takes for itself, on a machine with devices and model."""


class _Stopped(Exception):
    """Nobody waits for the rollout any more."""


@dataclass(frozen=True)
class Place:
    """What a node of this machine keeps over restarts.

    Attributes:
        variables: of its user data; one names the SSM parameter that says what it runs.
        pairing: tag `turnback:generation` of its group; empty for a router.
    """

    role: NodeRole
    variables: Mapping[str, str]
    pairing: str
    port: int
    side_channel_port: int = 0

    @property
    def parameter(self) -> str:
        """What it runs."""
        return self.variables["TURNBACK_PARAMETER"]

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}"


@dataclass
class LocalFleet:
    """Engines and router from the parameters of the account.

    Implements `runtime.aws.rollout.fleet.Fleet`, whose calls come from another thread.
    """

    deployment: str
    places: Mapping[NodeRole, Place]
    engine_python: Path | None
    out: Path
    supervisor: Supervisor
    loop: asyncio.AbstractEventLoop
    draining: set[NodeRole] = field(default_factory=set)
    starts: Counter[NodeRole] = field(default_factory=Counter)
    stopped: threading.Event = field(default_factory=threading.Event)

    # What runs

    def logs(self, role: NodeRole) -> Path:
        """Log of a role's process; each start has its own."""
        return self.out / "logs" / f"{role}-{self.starts[role]}.log"

    def root(self, role: NodeRole) -> Path:
        """The folder that stands for `/` on a role's machine."""
        return (self.out / "machines" / role).absolute()

    def _status(self, role: NodeRole) -> Path:
        return Machine(self.root(role)).at(STATUS_FILE)

    def prepare_start(self, role: NodeRole) -> Service:
        """Count a start, and return the process to start: a node's boot, or the router.

        Blocks: the parameter is read now.
        """
        self.starts[role] += 1
        place = self.places[role]
        command = self._router(place) if role == "router" else self._boot(place, role)
        return Service(role, command, f"{place.url}/health", self.logs(role))

    def _boot(self, place: Place, role: Role) -> Command:
        """Its machine is made at the first start, and stays."""
        root, digest = self.root(role), place.variables["TURNBACK_WHEEL_SHA256"]
        make_tree(root, deployed.node_spec(place.parameter), digest)
        local = LocalNode(
            root=root,
            variables=dict(place.variables),
            port=place.port,
            side_channel_port=place.side_channel_port,
            cpu=CpuSpec(cores=cores(ENGINE_ROLES.index(role)), kv_cache_gib=_KV_CACHE_GIB),
            engine_python=self.engine_python,
        )
        file = root / "node.json"
        file.write_text(local.model_dump_json(), "utf-8")
        return Command((sys.executable, "-m", "runtime.local.rehearsal.node", str(file)))

    def _router(self, place: Place) -> Command:
        """With the status that its start script would write."""
        text = deployed.parameter(place.parameter)
        # As the script reads it.
        generation = arguments_generation(text.rstrip("\n"))
        status = NodeStatus(role="router", generation=generation, url=place.url)
        self._status("router").parent.mkdir(parents=True, exist_ok=True)
        self._status("router").write_text(status.model_dump_json(), "utf-8")
        arguments = local_arguments(text.splitlines(), self.nodes_file(), HOST, place.port)
        return Command((sys.executable, "-m", "runtime.cli", "router", *arguments))

    def nodes_file(self) -> Path:
        """The router's."""
        return self.out / "nodes.toml"

    def write_nodes(self) -> None:
        """Tell the router its nodes; it follows the file."""
        lines = []
        for role in ENGINE_ROLES:
            place = self.places[role]
            lines += [f"[[{role}]]", f"url = {json.dumps(place.url)}"]
            lines += [f"generation = {json.dumps(place.pairing)}"]
            lines += [f"draining = {json.dumps(role in self.draining)}"]
        draft = self.nodes_file().with_suffix(".draft")
        draft.write_text("\n".join(lines) + "\n", "utf-8")
        draft.replace(self.nodes_file())

    async def start(self) -> None:
        """Start both engines, then the router."""
        self.write_nodes()
        engines = [await asyncio.to_thread(self.prepare_start, role) for role in ENGINE_ROLES]
        await self.supervisor.start(engines)
        await self.supervisor.start([await asyncio.to_thread(self.prepare_start, "router")])

    def command_line(self, role: NodeRole) -> list[str]:
        """Arguments of the process that runs now, as the kernel tells them."""
        pid = self.supervisor.pids()[role]
        # A guard's child is what it guards; a boot's child is the guard of its engine.
        for _ in range(1 if role == "router" else 3):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
            pid = int(children[0])
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8").split("\0")[:-1]

    def boot_report(self, role: Role) -> BootReport:
        """What a node's boot says of itself."""
        text = Machine(self.root(role)).at(BOOT_FILE).read_text("utf-8")
        return BootReport.model_validate_json(text)

    def boots(self) -> str:
        """How the boots of both nodes went.

        Raises:
            StartFailed: one serves, and does not say so, or took too long for it.
        """
        told = []
        for role in ENGINE_ROLES:
            report, log = self.boot_report(role), self.logs(role).read_text("utf-8")
            own = re.search(r"own part took ([\d.]+) s", log)
            if report.state != "serving" or own is None or float(own[1]) > OWN_PART_S:
                raise StartFailed(
                    f"the {role} node does not say of itself that it serves, after a quick boot",
                    got=f"{report.model_dump_json()}, {own[0] if own else 'no time'}",
                    allowed=f'"state": "serving", and at most {OWN_PART_S:g} s of boot\'s own',
                    fix=f"read {self.logs(role)}",
                )
            told.append(f"{role}'s own part of boot took {own[1]} s")
        return ", ".join(told)

    def check_ttl(self, ttl_s: int) -> None:
        """Every process runs with this TTL.

        Raises:
            StartFailed: with the command line of the first that does not.
        """
        engine = f'"decoder_kv_blocks_ttl":{ttl_s},'
        words: dict[NodeRole, str] = {
            "prefill": engine,
            "decode": engine,
            "router": f"--decoder-kv-blocks-ttl-s {ttl_s} ",
        }
        for role, word in words.items():
            line = " ".join(self.command_line(role))
            if word not in line:
                raise StartFailed(
                    f"the {role} process does not run with the TTL of its parameter",
                    got=line,
                    allowed=f"a command line with {word.strip()}",
                    fix=f"read {self.logs(role)}",
                )

    # What a rollout asks for

    def targets(self) -> Mapping[NodeRole, Target]:
        """Of the parameters and groups as they are now, read as the real rollout does."""
        groups = rolled_groups(client("autoscaling"), self.deployment)
        return read_targets(client("ssm"), self.deployment, groups)

    def nodes(self) -> Sequence[RunningNode]:
        """What each process was started with, and whether it answers."""
        found = []
        for role, place in self.places.items():
            report = node_report(self._status(role))
            found.append(
                RunningNode(
                    name=f"local-{role}",
                    role=role,
                    generation=report.generation,
                    ttl_s=report.ttl_s,
                    lease_s=report.lease_s,
                    pairing=place.pairing,
                    is_ready=report.is_ready,
                    is_draining=role in self.draining,
                )
            )
        return found

    def drain(self, node: RunningNode) -> None:
        """Tell the router; a router is drained by being the only one that nobody asks."""
        if node.role != "router":
            self.draining.add(node.role)
            self.write_nodes()

    def undrain(self, node: RunningNode) -> None:
        """Tell the router."""
        self.draining.discard(node.role)
        self.write_nodes()

    def running_requests(self, node: RunningNode) -> int:
        """As the process counts them."""
        running = node_report(self._status(node.role)).running_requests
        if running is None:
            raise StartFailed(
                f"{node.name} does not say what it runs",
                got=self.trouble(node),
                allowed="metrics with the number of requests",
                fix=f"read {self.logs(node.role)}",
            )
        return running

    def restart(self, node: RunningNode) -> None:
        """End the process and start it from the parameter as it is now."""
        self._on_loop(self._restart(node.role))

    async def _restart(self, role: NodeRole) -> None:
        await self.supervisor.end(role)
        await self.supervisor.start([await asyncio.to_thread(self.prepare_start, role)])

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it where the supervisor lives, and wait for it here."""
        running = asyncio.run_coroutine_threadsafe(work, self.loop)
        until_s = time.monotonic() + _RESTART_S
        while True:
            try:
                running.result(_LOOK_S)
            except TimeoutError:
                if running.done():
                    raise
                if self.stopped.is_set():
                    running.cancel()
                    raise _Stopped from None
                if time.monotonic() > until_s:
                    running.cancel()
                    raise _late() from None
            else:
                return

    async def roll_out(self, tell: Callable[[str], None]) -> RolloutReport:
        """Bring the processes to the parameters' generation.

        Raises:
            TurnbackError: it stopped on the way.
        """
        pace = Pace(ready_s=_RESTART_S, drain_s=60.0, notice_s=2.0, poll_s=0.5, sleep=self._sleep)
        self.stopped.clear()
        try:
            report = await asyncio.to_thread(roll_out, self, tell, pace)
        finally:
            self.stopped.set()  # also when this is cancelled: the thread must not outlive it
        if report.failure is not None:
            raise report.failure
        return report

    def _sleep(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise _Stopped

    def trouble(self, node: RunningNode) -> str:
        """The last lines of its log."""
        return tail(self.logs(node.role))


def _late() -> StartFailed:
    return StartFailed(
        "a process was not restarted in time",
        got=f"no end after {_RESTART_S:.0f} s",
        allowed=f"an old process that ends and a new one that answers within {_RESTART_S:.0f} s",
        fix="read the logs of both starts; the process that was to end may hang",
    )
