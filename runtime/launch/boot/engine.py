"""Runs a node's engine: starts it, starts it again, gives up, drains it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from runtime.contract.node import DRAIN_S, NodeSpec
from runtime.contract.status import NODE_UNIT, STATUS_FILE, NodeStatus
from runtime.errors import EngineDied, StartFailed, TurnbackError
from runtime.launch.boot.journal import Journal, notify, one_line
from runtime.launch.boot.steps import check_time_is_left
from runtime.launch.command import Command
from runtime.launch.node_report import node_report
from runtime.launch.supervisor import Service, Supervisor

LOGS = Path("/var/log/turnback")
"""The engine's output, a file for each start; the last KEPT_LOGS stay."""
KEPT_LOGS = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """Every wait of an engine's life.

    Attributes:
        ready_s: longest start.
        grace_s: between SIGTERM and SIGKILL.
        most_ends: so many ends of the engine within `window_s` are a crash loop.
        window_s: see above.
        pause_s: before the second start; doubles, up to `longest_pause_s`.
        longest_pause_s: see above.
        notice_s: until every router knows that a node drains.
        drain_s: longest wait for requests that run, after that.
        poll_s: between two looks at them.
    """

    ready_s: float = 3600.0
    grace_s: float = 60.0
    most_ends: int = 5
    window_s: float = 3600.0
    pause_s: float = 2.0
    longest_pause_s: float = 60.0
    notice_s: float = 20.0
    drain_s: float = float(DRAIN_S)
    poll_s: float = 2.0


@dataclass
class Engine:
    """One engine of a node.

    Attributes:
        spec: with the node's address and model.
        command: starts it.
        journal: of the boot.
        pace: its waits.
        tag_draining: tells the routers; blocks, and may raise TurnbackError.
        clock: seconds, of any origin.
    """

    spec: NodeSpec
    command: Command
    journal: Journal
    pace: Pace = field(default_factory=Pace)
    tag_draining: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _ends: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of its API server."""
        return f"http://{self.spec.host}:{self.spec.serving.port}"

    async def run(self) -> None:
        """Serve until the node's capacity ends, or this is cancelled.

        Raises:
            EngineDied: it ended too often.
            BadInput: the node's capacity has ended.
        """
        check_time_is_left(self.spec)
        try:
            while True:
                try:
                    await self._run_once()
                except (StartFailed, EngineDied) as error:
                    await self._pause_after(error)
                else:
                    return
        finally:
            self._status.unlink(missing_ok=True)

    @property
    def _status(self) -> Path:
        return self.journal.machine.at(STATUS_FILE)

    async def _run_once(self) -> None:
        """Start it, and return once it is drained."""
        starts = self.journal.report.starts + 1
        self.journal.enter("engine", starts=starts)
        self._write_status()
        service = Service("engine", self.command, f"{self.url}/health", self._log(starts))
        pace = self.pace
        async with Supervisor(ready_timeout_s=pace.ready_s, grace_s=pace.grace_s) as supervisor:
            self.journal.say(f"start {starts}, its output is in {service.log}")
            began_s = self.clock()
            await supervisor.start([service])
            self.journal.enter("engine", "serving")
            notify("READY=1")
            self.journal.say(
                f"serves {self.spec.serving.served_model_name} at {self.url}, generation "
                f"{self.spec.generation}, after {self.clock() - began_s:.0f} s"
            )
            await supervisor.run(self._until_drained())

    def _write_status(self) -> None:
        """Before the process starts: a rollout must never see one that tells nothing."""
        kv = self.spec.kv
        status = NodeStatus(
            role=self.spec.role,
            generation=self.spec.generation,
            url=self.url,
            decoder_kv_blocks_ttl_s=kv.decoder_kv_blocks_ttl_s,
            kv_lease_duration_s=kv.kv_lease_duration_s,
        )
        self._status.parent.mkdir(parents=True, exist_ok=True)
        draft = self._status.with_suffix(".draft")
        draft.write_text(status.model_dump_json(), "utf-8")
        draft.replace(self._status)

    def _log(self, starts: int) -> Path:
        folder = self.journal.machine.at(LOGS)
        folder.mkdir(parents=True, exist_ok=True)
        old = sorted(folder.glob("engine-*.log"), key=lambda path: path.stat().st_mtime)
        for path in old[: -KEPT_LOGS + 1]:
            with contextlib.suppress(OSError):
                path.unlink()
        return folder / f"engine-{starts}.log"

    # Crashes

    async def _pause_after(self, error: TurnbackError) -> None:
        """Wait before the next start.

        Raises:
            EngineDied: there shall be none.
        """
        now_s, pace = self.clock(), self.pace
        self._ends = [each for each in self._ends if now_s - each < pace.window_s] + [now_s]
        if len(self._ends) >= pace.most_ends:
            raise _crash_loop(len(self._ends), now_s - self._ends[0], error) from error
        pause_s = min(pace.pause_s * 2 ** (len(self._ends) - 1), pace.longest_pause_s)
        self.journal.enter("engine")
        self.journal.say(f"{error.what}: {one_line(error.got)}; again in {pause_s:.0f} s")
        await asyncio.sleep(pause_s)

    # The end of a Capacity Block

    async def _until_drained(self) -> None:
        """Return when nothing runs any more; without an end it never does."""
        if self.spec.drains_at is None:
            await asyncio.Event().wait()
            return
        # In pieces, since the machine's clock may be set: no event tells of that.
        while (left_s := (self.spec.drains_at - datetime.now(UTC)).total_seconds()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, 30.0))
        self.journal.enter("engine", "draining")
        try:
            await asyncio.to_thread(self.tag_draining)
        except TurnbackError as error:
            self.journal.say(f"routers cannot be told: {error.what}: {error.got}")
        self.journal.say(f"drains; {self.pace.notice_s:.0f} s until every router knows")
        await asyncio.sleep(self.pace.notice_s)
        await self._until_idle()

    async def _until_idle(self) -> None:
        """Nothing runs, and of P: nobody may read its last blocks any more."""
        pace = self.pace
        hold_s = float(self.spec.kv.kv_lease_duration_s) if self.spec.role == "prefill" else 0.0
        began_s = quiet_since_s = self.clock()
        while self.clock() - began_s < pace.drain_s:
            running = await asyncio.to_thread(self._running_requests)
            if running != 0:
                quiet_since_s = self.clock()
            elif self.clock() - quiet_since_s >= hold_s:
                self.journal.say("nothing runs; the node's capacity ends, the engine is stopped")
                return
            await asyncio.sleep(pace.poll_s)
        self.journal.say(
            f"{running} request(s) run after {pace.drain_s:.0f} s; the engine is stopped"
        )

    def _running_requests(self) -> int | None:
        try:
            return node_report(self._status).running_requests
        except TurnbackError:
            return None


def _crash_loop(ends: int, within_s: float, last: TurnbackError) -> EngineDied:
    return EngineDied(
        f"the engine ended {ends} times within {within_s / 60:.0f} min",
        got=f"last: {last.what}: {last.got}",
        allowed="an engine that stays up",
        fix=f"read {LOGS}, run turnback doctor, mend what they name, then "
        f"systemctl restart {NODE_UNIT}",
    )
