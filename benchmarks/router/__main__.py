"""`make bench-router`: this kit's router beside vllm-router.

    python -m benchmarks.router [--quick] [--repeats N] [--null-params] [--vllm-policy P]
        [--options="..."]

Both have the same mock engines and the same load, in turns: A B A B. The router under
test has one core; the engines and the clients have another. Ends with 1 when a bar is
missed; the results stand in out/bench-router/results.json either way.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.router import processes, summary, targets
from benchmarks.router.client import Plan
from benchmarks.router.load import QUIET_SHARE, environment, play

_RESULTS = "results.json"
_EVENTS = 64
_NUMBERS_PER_RUN = 10_000_000
_MAX_REDONE = 15
"""At most so many runs, of all together, are done again: a bound on the time it takes."""


@dataclass(frozen=True)
class Case:
    """One shape of load.

    Attributes:
        name: of its row.
        clients: conversations at a time.
        first_bytes: length of each conversation's first message.
    """

    name: str
    clients: int
    first_bytes: int = 200


CASES = (
    Case("stream, c=1", 1),
    Case("stream, c=16", 16),
    Case("stream, c=64", 64),
    Case(summary.LARGE_BODY, 1, 100_000),
)


class Bench:
    """The repeats of all cases at all targets.

    Args:
        console: for progress.
        measure_s: measured time of one repeat; a part of it comes before, to warm up.
        policy: of vllm-router.
        options: further ones of `turnback router`.

    Attributes:
        redone: runs done again.
    """

    def __init__(
        self, console: Console, measure_s: float, policy: str, options: Sequence[str]
    ) -> None:
        self._console, self._measure_s, self._policy = console, measure_s, policy
        self._options = options
        self._router_core, self._other_core = processes.cores()
        self._first = count(1, _NUMBERS_PER_RUN)
        self.redone = 0

    def rows(self, repeats: int, mock_options: Sequence[str]) -> list[dict[str, Any]]:
        """Start everything, measure, end everything."""
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {
            case.name: defaultdict(list) for case in CASES
        }
        with ExitStack() as stack:
            mocks = stack.enter_context(targets.mock_engines(self._other_core, *mock_options))
            routers = [
                stack.enter_context(targets.turnback(mocks, self._router_core, *self._options)),
                stack.enter_context(targets.vllm_router(mocks, self._router_core, self._policy)),
            ]
            direct = targets.Target("direct", mocks.decode, 0)
            for router in routers:
                self._run(CASES[1], router, mocks)  # first requests cost more
            for repeat in range(repeats):
                for case in CASES:
                    for target in (*routers, direct):
                        told = self._run_quietly(case, target, mocks)
                        runs[case.name][target.name].append(told)
                        self._tell(f"{repeat + 1}/{repeats} {case.name}: {target.name}", told)
        return [summary.row(case.name, case.clients, runs[case.name]) for case in CASES]

    def _run_quietly(
        self, case: Case, target: targets.Target, mocks: targets.Mocks
    ) -> dict[str, Any]:
        """Run, and run again where other processes took more than a little of the two cores."""
        told = self._run(case, target, mocks)
        while told["others_share"] > QUIET_SHARE and self.redone < _MAX_REDONE:
            self.redone += 1
            self._console.print(f"others used {told['others_share']:.0%} of a core: once more")
            told = self._run(case, target, mocks)
        return told

    def _run(self, case: Case, target: targets.Target, mocks: targets.Mocks) -> dict[str, Any]:
        plan = Plan(
            port=target.port,
            clients=case.clients,
            events=_EVENTS,
            first_bytes=case.first_bytes,
            warm_s=self._measure_s / 4,
            measure_s=self._measure_s if target.pid else self._measure_s / 2,
            first_number=next(self._first),
        )
        before = processes.get_json(mocks.decode, "/mock/counts")
        told = play(plan, self._other_core, target.pid or None)
        after = processes.get_json(mocks.decode, "/mock/counts")
        return told | {
            name: after.get(name, 0) - before.get(name, 0)
            for name in ("prefill", "decode", "with_p_dict", "warm", "releases", "aborted")
        }

    def _tell(self, what: str, told: dict[str, Any]) -> None:
        cpu = f" CPU {told['cpu_ms']:5.2f} ms/req" if "cpu_ms" in told else ""
        self._console.print(
            f"{what:45} {told['req_s']:7.0f} req/s  first byte p50 {told['p50_ms']:6.2f} "
            f"p99 {told['p99_ms']:6.2f} ms {cpu} errors {told['errored'] + told['incomplete']}"
        )
        for problem in told["problems"]:
            self._console.print(f"  {problem}", markup=False)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    heads = ("case", "", "req/s", "p50 ms", "p99 ms", "CPU ms/req", "whole p50 ms")
    table = Table(
        *(*heads, "busy: cores, others", "errors", "warm"),
        title="median (spread) over the repeats; p50 and p99 of the first byte",
    )
    for row in rows:
        for target in (*summary.ROUTERS, "direct"):
            told = row[target]
            cells = [
                f"{told[name]:.2f} ({told['spread'][name]:.0%})" if name in told else ""
                for name in (*summary.FIGURES, "total_p50_ms")
            ]
            busy = f"{told['router_core_share']:.0%} {told['other_core_share']:.0%}"
            cells.append(f"{busy}, {told['others_share']:.0%}")
            errors = str(told["errored"] + told["incomplete"])
            warm = f"{told['warm'] / told['prefill']:.0%}" if told["prefill"] else ""
            table.add_row(row["case"], target, *cells, errors, warm)
        ratios = [f"{row['ratio'][name]:.2f}" for name in summary.FIGURES]
        table.add_row("", "turnback / vllm-router", *ratios, end_section=True)
    return table


def _bar_table(bars: Sequence[summary.Bar]) -> Table:
    table = Table("bar", "limit", "measured", "holds")
    for bar in bars:
        table.add_row(bar.bar, bar.limit, f"{bar.measured:.3f}", "yes" if bar.holds else "NO")
    return table


def main() -> int:
    """Measure, print and write; returns 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short repeat, to see it work")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure-s", type=float, default=3.0)
    parser.add_argument(
        "--null-params", action="store_true", help="every event names kv_transfer_params, as 0.33's"
    )
    parser.add_argument("--vllm-policy", default=targets.VLLM_POLICY)
    parser.add_argument("--options", default="", help="further ones of turnback router")
    options = parser.parse_args()
    repeats, measure_s = (1, 1.0) if options.quick else (options.repeats, options.measure_s)
    console = Console(width=max(140, Console().width))
    processes.end_on_sigterm()
    _, other_core = processes.cores()
    told_environment = environment() | {
        "vllm_router": targets.VLLM_ROUTER,
        "repeats": repeats,
        "measure_s": measure_s,
        "null_params": options.null_params,
        "vllm_router_policy": options.vllm_policy,
        "turnback_options": options.options,
    }
    targets.vllm_router_binary()
    os.sched_setaffinity(0, {other_core})
    mock_options = ["--null-params"] if options.null_params else []
    bench = Bench(console, measure_s, options.vllm_policy, options.options.split())
    results: dict[str, Any] = {"schema_version": 1, "environment": told_environment}
    try:
        rows = bench.rows(repeats, mock_options)
    except processes.NotReady as error:
        console.print(str(error), markup=False)
        targets.write_results(results | {"rows": [], "bars": [], "failure": str(error)}, _RESULTS)
        return 1
    bars = summary.bars(rows)
    told_environment["runs_redone"] = bench.redone
    results |= {"rows": rows, "bars": [bar.to_dict() for bar in bars]}
    path = targets.write_results(results, _RESULTS)
    console.print(_table(rows), _bar_table(bars), f"results: {path}")
    return 0 if all(bar.holds for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
