"""Many long streams through this kit's router: every byte in order, and flat memory.

    python -m benchmarks.router.streams [--streams 2000] [--seconds 60]

First measures the event rate that the mock engine and the client sustain without a
router, then runs the router at half of it. Ends with 1 when a check fails; the figures
stand in out/bench-router/streams.json either way.
"""

import argparse
import os
import resource
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.router import processes, targets
from benchmarks.router.client import Plan
from benchmarks.router.load import QUIET_SHARE, environment, play
from benchmarks.router.summary import Bar, growth

_FILES_PER_STREAM = 3
_SPARE_FILES = 512
_STREAM_S = 5.0
_SPREAD = 0.5
_RAMP_S = 4.0
_SETTLED_S = 10
_BASE_MEASURE_S = 5.0
_BASE_TRIES = 4
_MAX_GROWTH = 0.05
_MAX_RSS_MIB = 500
_MIN_RATE = 0.9
_TURNS = 2
"""Short conversations whose end is told: what the router has to keep does not grow."""


def raise_file_limit(streams: int) -> None:
    """Let this process and its children open a few files per stream, as far as allowed.

    Raises:
        processes.NotReady: the hard limit is lower.
    """
    wanted = streams * _FILES_PER_STREAM + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise processes.NotReady(
            f"{streams} streams need {wanted} open files, allowed {hard}: fewer --streams"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Sampler:
    """Reads a process's memory every second, in a thread of its own.

    Attributes:
        samples_mib: one a second, from `start` on.
    """

    def __init__(self, pid: int) -> None:
        self.samples_mib: list[float] = []
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(1.0):
            self.samples_mib.append(processes.rss_mib(self._pid))


def measure_base(streams: int, core: int) -> dict[str, Any]:
    """The rate of the mock engine and the client alone, unpaced, at as many streams.

    Measured again while other processes take more than a little of the two cores.
    """
    plan = Plan(
        port=0,
        clients=streams,
        events=200,
        spread=_SPREAD,
        measure_s=_BASE_MEASURE_S,
        ramp_s=1.0,
        warm_s=2.0,
    )
    told: dict[str, Any] = {}
    for _ in range(_BASE_TRIES):
        with targets.mock_engines(core) as mocks:
            told = play(replace(plan, port=mocks.decode), core, None)
        if told["others_share"] <= QUIET_SHARE:
            break
    return told


def measure_router(
    streams: int, seconds: float, events_per_s: float
) -> tuple[dict[str, Any], list[float]]:
    """The paced streams through the router: the client's figures and the router's memory."""
    router_core, other_core = processes.cores()
    paced = ("--events-per-s", str(events_per_s), "--shared-by", str(streams))
    with (
        targets.mock_engines(other_core, *paced) as mocks,
        targets.turnback(mocks, router_core) as router,
    ):
        sampler = Sampler(router.pid)
        plan = Plan(
            port=router.port,
            clients=streams,
            events=max(2, int(events_per_s / streams * _STREAM_S)),
            spread=_SPREAD,
            turns=_TURNS,
            says_last=True,
            measure_s=seconds,
            ramp_s=_RAMP_S,
            warm_s=0.0,
            drain_s=4 * _STREAM_S,
        )
        told = play(plan, other_core, router.pid, sampler.start)
        sampler.stop()
        return told, sampler.samples_mib[: int(seconds)]


def checks(told: dict[str, Any], memory: dict[str, float], events_per_s: float) -> list[Bar]:
    """What a run must keep.

    Args:
        told: the client's figures.
        memory: growth after the first seconds.
        events_per_s: the rate that was asked for.
    """
    return [
        Bar("answers that failed, differed or broke off", "<= 0", float(told["errored"])),
        Bar("answers that did not end", "<= 0", float(told["incomplete"])),
        Bar("handles that reached a client", "<= 0", float(told["leaks"])),
        Bar("events/s over the paced rate", f">= {_MIN_RATE}", told["events_s"] / events_per_s),
        Bar(f"memory growth after {_SETTLED_S} s", f"<= {_MAX_GROWTH}", memory["growth"]),
        Bar("most memory, MiB", f"<= {_MAX_RSS_MIB}", memory["max_mib"]),
    ]


def _measure(console: Console, streams: int, seconds: float, results: dict[str, Any]) -> list[Bar]:
    """Both measurements, into `results` as they come; returns the checks."""
    _, other_core = processes.cores()
    base = measure_base(streams, other_core)
    results["without_router"] = base
    events_per_s = base["events_s"] / 2
    console.print(
        f"without a router: {base['events_s']:,.0f} events/s on {streams} streams; "
        f"the router gets {events_per_s:,.0f}"
    )
    told, samples_mib = measure_router(streams, seconds, events_per_s)
    memory = growth(samples_mib[_SETTLED_S - 1 :])
    results |= {"through_router": told, "memory": memory | {"samples_mib": samples_mib}}
    console.print(
        f"{told['events_s']:,.0f} events/s, {told['answers']} answers, first byte p50 "
        f"{told['p50_ms']:.0f} p99 {told['p99_ms']:.0f} ms; router {told['router_share']:.0%} of "
        f"its core, others {told['others_share']:.0%}\n"
        f"memory {memory['first_mib']:.0f} MiB at {_SETTLED_S} s, "
        f"{memory['slope_mib_per_min']:+.1f} MiB a minute"
    )
    for problem in [*base["problems"], *told["problems"]]:
        console.print(f"  {problem}", markup=False)
    return checks(told, memory, events_per_s)


def _print(console: Console, bars: Sequence[Bar]) -> None:
    table = Table("check", "limit", "measured", "holds")
    for bar in bars:
        table.add_row(bar.bar, bar.limit, f"{bar.measured:.3f}", "yes" if bar.holds else "NO")
    console.print(table)


def main() -> int:
    """Measure, print and write; returns 1 when a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    if options.seconds < 2 * _SETTLED_S:
        parser.error(f"--seconds must be at least {2 * _SETTLED_S}: memory settles first")
    console = Console(width=max(140, Console().width))
    processes.end_on_sigterm()
    raise_file_limit(options.streams)
    _, other_core = processes.cores()
    results: dict[str, Any] = {"schema_version": 1, "environment": environment()}
    os.sched_setaffinity(0, {other_core})
    try:
        bars = _measure(console, options.streams, options.seconds, results)
    except processes.NotReady as error:
        console.print(str(error), markup=False)
        results |= {"checks": [], "failure": str(error)}
        bars = []
    else:
        results["checks"] = [bar.to_dict() for bar in bars]
        _print(console, bars)
    console.print(f"results: {targets.write_results(results, 'streams.json')}")
    return 0 if bars and all(bar.holds for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
