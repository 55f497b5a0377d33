"""The steps of a boot, in their order."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.contract.node import OWN_ADDRESS, NodeSpec
from runtime.contract.status import ENGINE_PYTHON
from runtime.errors import TurnbackError
from runtime.launch.boot import steps
from runtime.launch.boot.address import private_address
from runtime.launch.boot.engine import Engine, Pace
from runtime.launch.boot.examine import PATIENCE_S, boot_checks, examine
from runtime.launch.boot.journal import Journal
from runtime.launch.command import Command, engine_command
from runtime.launch.doctor.check import Check
from runtime.launch.machine import Machine

DEVICE_WAIT_S = 180.0
"""P5en's EFA devices come up late."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sources:
    """What boot asks of AWS. Each blocks, has a limit, and raises TurnbackError.

    Attributes:
        spec_text: returns the text of the node's parameter.
        sync_model: brings a model, named by id and revision, into a folder; ends early once
            the event is set.
        tag_draining: tells the routers that this node takes nothing new.
    """

    spec_text: Callable[[], str]
    sync_model: Callable[[str, Path, Say, threading.Event], None]
    tag_draining: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Node:
    """The machine, and what of it is not in its spec.

    Attributes:
        machine: its files.
        parameter: name of its SSM parameter, for messages.
        kit_sha256: of the wheel that user data names; empty: not checked.
        address: returns its private address.
        fit: spec as deployed, with address and model folder -> as it is run; a rehearsal
            puts its ports in.
        command: starts the engine.
        pace: waits of the engine.
        device_wait_s: longest wait for EFA devices.
        checks: of the doctor, which must not fail.
        patience_s: how long those are asked again that may yet pass.
    """

    machine: Machine
    parameter: str
    kit_sha256: str = ""
    address: Callable[[], str] = private_address
    fit: Callable[[NodeSpec], NodeSpec] = lambda spec: spec
    command: Callable[[NodeSpec], Command] = lambda spec: engine_command(spec, ENGINE_PYTHON)
    pace: Pace = field(default_factory=Pace)
    device_wait_s: float = DEVICE_WAIT_S
    checks: Sequence[Check] = field(default_factory=boot_checks)
    patience_s: float = PATIENCE_S


async def serve(node: Node, sources: Sources, journal: Journal, own_s: Callable[[], float]) -> None:
    """Boot a node and run its engine until its capacity ends or this is cancelled.

    Args:
        node: the machine.
        sources: what it reads from AWS.
        journal: told each step; it has the failure when this raises.
        own_s: seconds since this process began.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    try:
        await _Boot(node, sources, journal, own_s).run()
    except TurnbackError as error:
        journal.fail(error)
        raise
    except OSError as error:
        failure = steps.explained(journal.report.step, error)
        journal.fail(failure)
        raise failure from error
    except Exception as error:  # the unit's edge: whatever ends a boot, its file says so
        broke = steps.broke(journal.report.step, error)
        journal.fail(broke)
        raise broke from error


@dataclass
class _Boot:
    node: Node
    sources: Sources
    journal: Journal
    own_s: Callable[[], float]
    waited_s: float = 0.0

    async def run(self) -> None:
        machine, journal = self.node.machine, self.journal
        journal.enter("kit")
        steps.check_kit(machine, self.node.kit_sha256)
        spec = await self._spec()
        journal.enter("image")
        journal.say(steps.check_image(machine, spec.image))
        spec = await self._transport(spec)
        await self._checks(spec)
        spec = self.node.fit(await self._model(spec))
        journal.enter("engine")
        engine = Engine(
            spec, self.node.command(spec), journal, self.node.pace, self.sources.tag_draining
        )
        own_s = self.own_s() - self.waited_s
        journal.say(
            f"boot's own part took {own_s:.1f} s, "
            f"devices, checks and model {self.waited_s:.1f} s more"
        )
        await engine.run()

    async def _spec(self) -> NodeSpec:
        self.journal.enter("spec")
        text = await asyncio.to_thread(self.sources.spec_text)
        spec = steps.read_spec(text, f"parameter {self.node.parameter}")
        self.journal.enter("spec", generation=spec.generation)
        steps.check_time_is_left(spec)
        steps.bucket_model(spec)
        self.journal.say(f"{spec.role}, generation {spec.generation} of {self.node.parameter}")
        return spec

    async def _transport(self, spec: NodeSpec) -> NodeSpec:
        self.journal.enter("transport")
        stop = threading.Event()
        told = await self._wait(
            stop,
            lambda: steps.wait_for_devices(
                self.node.machine,
                spec.transport,
                self.journal.say,
                wait_s=self.node.device_wait_s,
                sleep=lambda seconds: _sleep(stop, seconds),
            ),
        )
        at = self.node.address() if spec.host == OWN_ADDRESS else spec.host
        backends = ", ".join(spec.kv.backends)
        self.journal.say(f"{told}; NIXL over {backends}, side channel at {at}")
        return spec.at(at)

    async def _checks(self, spec: NodeSpec) -> None:
        """Before gigabytes are fetched for a node that must not serve."""
        self.journal.enter("checks")
        stop, node = threading.Event(), self.node
        told = await self._wait(
            stop,
            lambda: examine(
                *(node.machine, spec, node.checks, self.journal.say),
                patience_s=node.patience_s,
                sleep=lambda seconds: _sleep(stop, seconds),
            ),
        )
        self.journal.say(str(told))

    async def _model(self, spec: NodeSpec) -> NodeSpec:
        """Models of the bucket are synced; a folder elsewhere must be there."""
        self.journal.enter("model")
        machine, name = self.node.machine, steps.bucket_model(spec)
        if name is not None:
            stop, sync = threading.Event(), self.sources.sync_model
            folder = machine.at(spec.serving.model)
            await self._wait(stop, lambda: sync(name, folder, self.journal.say, stop))
        serving = spec.serving.model_copy(update={"model": steps.check_model(machine, spec)})
        return spec.model_copy(update={"serving": serving})

    async def _wait(self, stop: threading.Event, work: Callable[[], str | None]) -> str | None:
        """Blocking work in a thread, which ends soon when this is cancelled."""
        began_s = time.monotonic()
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.gather(running, return_exceptions=True)
            raise
        finally:
            self.waited_s += time.monotonic() - began_s


class _Stopped(Exception):
    """Nobody waits for this thread any more."""


def _sleep(stop: threading.Event, seconds: float) -> None:
    if stop.wait(seconds):
        raise _Stopped
