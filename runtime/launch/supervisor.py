"""Starts processes, waits until they answer, and leaves none behind."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from runtime.errors import EngineDied, StartFailed, TurnbackError
from runtime.launch.command import Command

T = TypeVar("T")

GUARD = Path(__file__).with_name("guard.py")
_POLL_S = 0.25
_PROBE_TIMEOUT_S = 2.0
_LOG_TAIL_LINES = 6


@dataclass(frozen=True)
class Service:
    """One supervised process.

    Attributes:
        name: short, used in messages and as the log's name.
        command: what to start.
        ready_url: answers 200 when the process can serve.
        log: gets stdout and stderr.
    """

    name: str
    command: Command
    ready_url: str
    log: Path


@dataclass
class _Running:
    service: Service
    process: asyncio.subprocess.Process
    ready: bool = False
    is_ending: bool = False

    @property
    def has_died(self) -> bool:
        """It has ended, and nobody had asked it to."""
        return self.process.returncode is not None and not self.is_ending


class Supervisor:
    """Owns processes for as long as its `async with` block lasts.

    Each runs under its own guard (guard.py) in its own process group. Leaving the block,
    however it is left, ends them all; so does SIGKILL of this process.

    Args:
        ready_timeout_s: longest time from a start to the first good answer.
        grace_s: seconds between SIGTERM and SIGKILL.
        on_ready: called with (service name, seconds it took).
    """

    def __init__(
        self,
        *,
        ready_timeout_s: float = 300.0,
        grace_s: float = 8.0,
        on_ready: Callable[[str, float], None] = lambda _name, _seconds: None,
    ) -> None:
        self._ready_timeout_s = ready_timeout_s
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._running: list[_Running] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, services: Sequence[Service]) -> None:
        """Start services side by side and return when all of them answer.

        Raises:
            StartFailed: one ended, or did not answer in time; the others are ended
                when the block is left.
        """
        started = [await self._spawn(service) for service in services]
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        ) as session:
            waits = [asyncio.ensure_future(self._until_ready(session, one)) for one in started]
            try:
                await asyncio.gather(*waits)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _spawn(self, service: Service) -> _Running:
        service.log.parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, str(GUARD), str(os.getpid()), str(self._grace_s)]
        with service.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *argv,
                *service.command.argv,
                env={**os.environ, **service.command.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        running = _Running(service, process)
        self._running.append(running)
        return running

    async def _until_ready(self, session: aiohttp.ClientSession, one: _Running) -> None:
        began = time.perf_counter()
        while not await _answers(session, one.service.ready_url):
            if died := [some for some in self._running if some.has_died]:
                raise _ended(died[0])
            if time.perf_counter() - began > self._ready_timeout_s:
                raise StartFailed(
                    f"{one.service.name} did not become ready",
                    got=f"no answer from {one.service.ready_url}\n{tail(one.service.log)}",
                    allowed=f"an answer within {self._ready_timeout_s:.0f} s",
                    fix=f"read {one.service.log}; on a slow machine wait longer",
                )
            await asyncio.sleep(_POLL_S)
        if one.process.returncode is not None:
            # Someone else answers on that port.
            raise _ended(one)
        one.ready = True
        self._on_ready(one.service.name, time.perf_counter() - began)

    def pids(self) -> dict[str, int]:
        """Service name -> process id of its guard, which leads the process group."""
        return {one.service.name: one.process.pid for one in self._running}

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that needs the services.

        Args:
            work: cancelled when a service dies before it is done; one that `end` was asked to
                end has not died.

        Raises:
            EngineDied: a service died.
        """
        job = asyncio.ensure_future(work)
        waits = {asyncio.ensure_future(one.process.wait()): one for one in self._running}
        pending: set[asyncio.Future[Any]] = {job, *waits}
        try:
            while job in pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if died := [
                    one for wait, one in waits.items() if wait.done() and not one.is_ending
                ]:
                    # Also when the work is done: what it found of a dead engine is no result.
                    raise _ended(died[0])
            return job.result()
        finally:
            for task in (job, *waits):
                task.cancel()
            await asyncio.gather(job, *waits, return_exceptions=True)

    async def stop(self) -> None:
        """End every process and wait for it; what resists is killed with its group."""
        await self._end([*self._running])

    async def end(self, name: str) -> None:
        """End the service of this name and wait for it, as `stop` does; another may follow."""
        await self._end([one for one in self._running if one.service.name == name])

    async def _end(self, running: Sequence[_Running]) -> None:
        for one in running:
            one.is_ending = True
            if one.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    one.process.terminate()
        await asyncio.gather(*(self._reap(one) for one in running))
        # Not before: when this is cancelled, a later `stop` must still know them.
        self._running = [one for one in self._running if one not in running]

    async def _reap(self, one: _Running) -> None:
        # The guard itself needs a moment after the grace it gives its program.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s + 5.0):
                await one.process.wait()
        # Also when the guard ended in good order: it may have been killed before it could clean up.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        await one.process.wait()


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _ended(one: _Running) -> TurnbackError:
    code = one.process.returncode
    how = f"exit code {code}"
    if code is not None and (code < 0 or code > 128):
        number = -code if code < 0 else code - 128
        how = signal.Signals(number).name if number in set(signal.Signals) else how
    kind, when = (EngineDied, "while it served") if one.ready else (StartFailed, "during its start")
    return kind(
        f"{one.service.name} ended {when}",
        got=f"{how}\n{tail(one.service.log)}",
        allowed="a process that runs until it is told to stop",
        fix=f"read {one.service.log}",
    )


def tail(log: Path) -> str:
    """The last lines of a log, indented to stand under a message."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    return "\n".join(f"           | {line[:200]}" for line in lines)
