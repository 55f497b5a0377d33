"""Benchmarks on one machine: one pass after the other, each with servers of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.bench.folder import PASS, PassFolder, PassInfo
from runtime.bench.measure import Workload, measure, read_workload
from runtime.bench.player import Target
from runtime.bench.progress import shown
from runtime.bench.report import read_report
from runtime.bench.results import report_in_any_case, told_why
from runtime.bench.scrape import Server
from runtime.bench.workloads.load import WorkloadFile
from runtime.contract.bench import REPORT, BenchSpec
from runtime.contract.profile import Profile
from runtime.local.cluster import Cluster, ClusterPlan, running_cluster
from runtime.local.up import STARTING, LocalOptions, prepare, say_ready

PASSES = ("caching-off", "caching-on", "feature-off")
"""Prefix caching of P off, on; and as the first, with KV going one way on both servers."""


@dataclass(frozen=True)
class LocalBench:
    """What to run.

    Attributes:
        name: of the command; its folder under `out` takes everything.
        options: what to start.
        bench: how a pass is played.
        passes: of PASSES, in their order.
        workload: a file in place of the profile's.
    """

    name: str
    options: LocalOptions
    bench: BenchSpec
    passes: Sequence[str] = PASSES[:1]
    workload: WorkloadFile | None = None

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.options.out / self.name


def profile_of(name: str, profile: Profile) -> Profile:
    """A profile with what makes a pass of it."""
    return profile.model_copy(
        update={
            "serving": profile.serving.model_copy(
                update={"prefill_prefix_caching": name == "caching-on"}
            ),
            "kv": profile.kv.model_copy(update={"bidirectional": name != "feature-off"}),
        }
    )


def keep_earlier_results(folder: Path) -> Path | None:
    """Move the results of an earlier run aside; returns where they are now."""
    if not (folder / REPORT).exists() and not any(folder.glob(f"*/{PASS}")):
        return None
    number = 1
    while (kept := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(kept)
    return kept


async def run_local(plan: LocalBench, console: Console) -> dict[str, Any]:
    """Run all passes; returns the report.

    Whatever ends it early, the turns measured until then are in the passes' folders, and in
    a report that is marked as partial.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    if kept := keep_earlier_results(plan.folder):
        console.print(f"earlier results moved to {kept}")
    cluster, environment = prepare(plan.options, plan.name, console)
    workload = read_workload(
        plan.options.profile, cluster.model, plan.bench, plan.workload, console.print
    )
    with report_in_any_case(plan.folder, console):
        for name in plan.passes:
            profile = profile_of(name, plan.options.profile)
            info = workload.pass_of(name, profile, plan.bench, environment)
            folder = PassFolder(plan.folder / name)
            variant = replace(cluster, profile=profile, logs=cluster.logs / name)
            with told_why(folder):
                await _run_pass(variant, workload, folder, info, console)
    console.print(f"logs:    {cluster.logs}")
    return read_report(plan.folder / REPORT)


def _target(cluster: Cluster, workload: Workload, info: PassInfo) -> Target:
    return Target(
        *(cluster.router_url, cluster.model_name, info.run_id),
        allowed_token_ids=workload.allowed_token_ids,
    )


def _servers(cluster: Cluster) -> list[Server]:
    return [
        Server("prefill", cluster.prefill_url),
        Server("decode", cluster.decode_url),
        Server("router", cluster.router_url),
    ]


async def _run_pass(
    plan: ClusterPlan, workload: Workload, folder: PassFolder, info: PassInfo, console: Console
) -> None:
    with console.status(STARTING) as status:
        async with running_cluster(plan, say_ready(console)) as (cluster, supervisor):
            status.stop()
            with shown(console, info.name, workload.turns(info)) as progress:
                await supervisor.run(
                    measure(
                        _target(cluster, workload, info),
                        _servers(cluster),
                        workload,
                        folder,
                        info,
                        progress.on_turn,
                        progress.on_warm,
                    )
                )
