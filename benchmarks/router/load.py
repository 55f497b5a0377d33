"""Runs the load client against a target and measures the router beside it."""

import math
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from benchmarks.router.client import Plan
from benchmarks.router.processes import NotReady, busy_s, cores, cpu_s, started
from benchmarks.router.targets import OUT

QUIET_SHARE = 0.15
"""Of a core: where other processes took more, a run tells little and is done again."""

_SLACK_S = 20.0


@dataclass(frozen=True)
class Used:
    """CPU seconds so far.

    Attributes:
        router_s: of the router under test.
        ours_s: of the benchmark with all its children.
        cores_s: of the router's core and of the other one, whoever used them.
    """

    router_s: float
    ours_s: float
    cores_s: tuple[float, float]

    @classmethod
    def now(cls, pid: int | None) -> "Used":
        """Read all of them; `pid` is the router's."""
        first, other = cores()
        return cls(cpu_s(pid) if pid else 0.0, cpu_s(os.getpid()), (busy_s(first), busy_s(other)))

    def shares(self, before: "Used", took_s: float) -> dict[str, float]:
        """Busy parts of one core since `before`; `others_share` is that of foreign processes."""
        busy_s = [now - then for now, then in zip(self.cores_s, before.cores_s, strict=True)]
        foreign_s = sum(busy_s) - (self.ours_s - before.ours_s)
        return {
            "router_share": (self.router_s - before.router_s) / took_s,
            "router_core_share": busy_s[0] / took_s,
            "other_core_share": busy_s[1] / took_s,
            "others_share": max(0.0, foreign_s) / took_s,
        }


def play(
    plan: Plan, core: int, pid: int | None, on_begin: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Play one plan in a process of its own.

    Args:
        plan: the load.
        core: where the client runs.
        pid: the router's, to measure its CPU time; None measures none.
        on_begin: called when the measured time begins.

    Returns:
        The client's results and the shares of `Used`; `cpu_ms` per answer with `pid`.

    Raises:
        NotReady: the client ended without results.
    """
    argv = [sys.executable, "-m", "benchmarks.router.client", orjson.dumps(asdict(plan)).decode()]
    limit_s = plan.ramp_s + plan.warm_s + plan.measure_s + plan.drain_s + _SLACK_S
    log = OUT / "logs" / "client.log"
    with (
        started(argv, core=core, log=log, is_read=True) as child,
        _ended_after(limit_s, child.kill),
    ):
        assert child.stdout is not None  # noqa: S101 - for the type checker; it is a pipe
        _expect(child.stdout.readline(), "begin")
        before = Used.now(pid)
        on_begin()
        _expect(child.stdout.readline(), "end")
        after = Used.now(pid)
        told: dict[str, Any] = orjson.loads(child.stdout.readline() or b"{}")
    if "answers" not in told:
        raise NotReady(f"the client gave no results; see {log}")
    for name, value in told.items():
        told[name] = math.nan if value is None else value  # JSON has no NaN
    if pid:
        used_ms = (after.router_s - before.router_s) * 1000
        told["cpu_ms"] = used_ms / told["answers"] if told["answers"] else math.nan
    return told | after.shares(before, told["took_s"])


def _expect(line: str, wanted: str) -> None:
    if line.strip() != wanted:
        raise NotReady(f"the client said {line.strip()!r}, not {wanted!r}")


@contextmanager
def _ended_after(limit_s: float, stop: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(limit_s, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def environment() -> dict[str, Any]:
    """Versions and machine, for the results file."""
    router_core, other_core = cores()
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": model[0] if model else platform.machine(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "router_core": router_core,
        "mocks_and_client_core": other_core,
        **{name: version(name) for name in ("turnback", "uvloop", "aiohttp", "orjson")},
    }
