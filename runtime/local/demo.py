"""`turnback demo`: two engines, the router and the benchmark, from nothing to a report."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runtime.bench.folder import PassInfo, Sample
from runtime.bench.report import build_report, write_report
from runtime.bench.run import BenchPlan, run_benchmark
from runtime.bench.scrape import Sampler, Server
from runtime.bench.table import render
from runtime.bench.turn import TurnResult
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.errors import EngineDied, TurnbackError
from runtime.local.checks import check_port_free, engine_versions, machine
from runtime.local.cluster import HOST, Cluster, ClusterPlan, running_cluster
from runtime.local.model import build_model, check_model

REPORT = "report.json"
TURNS = "turns.jsonl"
STARTING = "starting two engines and the router (1 to 3 minutes)"


@dataclass(frozen=True)
class LocalOptions:
    """What `demo` and `up` share.

    Attributes:
        out: folder for logs, models and results.
        port: of the router; 0 takes a free one.
        model: folder of a model; None builds the tiny one.
        engine_environment: folder of the environment with vLLM; None starts mock engines.
    """

    profile: Profile
    out: Path
    port: int
    model: Path | None
    engine_environment: Path | None


@dataclass
class _Run:
    """What a benchmark run has gathered so far."""

    environment: dict[str, Any]
    created_utc: str
    results: list[TurnResult] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def prepare(
    options: LocalOptions, name: str, console: Console
) -> tuple[ClusterPlan, dict[str, Any]]:
    """Check everything that can be checked, then build the model.

    Args:
        options: what the user asked for.
        name: of the command; its folder under `out` takes the logs.
        console: for progress.

    Returns:
        The plan and what a report says of the environment.

    Raises:
        BadInput: a port, folder or environment cannot be used.
    """
    if options.port:
        check_port_free(HOST, options.port)
    environment: dict[str, Any] = {"kit": version("turnback"), "engine": "mock"}
    if options.engine_environment is not None:
        environment |= {"engine": "vllm"} | engine_versions(options.engine_environment)
        environment.pop("turnback")
    if options.model is not None:
        check_model(options.model)
    model = options.model or build_model(
        options.out / "models", on_step=lambda step: console.print(f"model: {step}")
    )
    python = options.engine_environment and options.engine_environment / "bin" / "python"
    plan = ClusterPlan(
        profile=options.profile,
        model=model.resolve(),
        engine_python=python and python.absolute(),
        router_port=options.port,
        logs=options.out / name / "logs",
    )
    return plan, environment | machine() | {"model": model.name}


def keep_earlier_results(folder: Path) -> Path | None:
    """Move the results of an earlier run aside; returns where they are now."""
    if not (folder / TURNS).exists() and not (folder / REPORT).exists():
        return None
    number = 1
    while (kept := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(kept)
    return kept


async def run_demo(options: LocalOptions, console: Console) -> Path:
    """Run the demo and return the path of its report.

    Whatever ends it early, the turns measured until then are in turns.jsonl, and in a
    report that is marked as partial.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    folder = options.out / "demo"
    plan, environment = prepare(options, "demo", console)
    if kept := keep_earlier_results(folder):
        console.print(f"earlier results moved to {kept}")
    run = _Run(environment, datetime.now(UTC).isoformat(timespec="seconds"))
    with (
        _partial_report(options.profile, run, folder, console),
        console.status(STARTING) as status,
    ):
        async with running_cluster(plan, _say_ready(console)) as (cluster, supervisor):
            status.stop()
            await supervisor.run(_measure(plan, cluster, run, folder, console))
            _refuse_empty(run, plan)
    report = _write(options.profile, run, folder, None)
    console.print(render(report))
    console.print(f"report:  {folder / REPORT}\nturns:   {folder / TURNS}\nlogs:    {plan.logs}")
    return folder / REPORT


def _refuse_empty(run: _Run, plan: ClusterPlan) -> None:
    """A run without one good turn has measured nothing, whatever its engines say."""
    if any(result.is_successful for result in run.results):
        return
    errors = [result.error for result in run.results if result.error]
    raise EngineDied(
        "no turn succeeded",
        got=errors[0] if errors else "no turn was run",
        allowed="at least one successful turn",
        fix=f"read the logs in {plan.logs}",
    )


async def run_up(options: LocalOptions, console: Console) -> None:
    """Start a cluster, say how to use it, and keep it until cancelled.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    plan, _ = prepare(options, "up", console)
    with console.status(STARTING) as status:
        async with running_cluster(plan, _say_ready(console)) as (cluster, supervisor):
            status.stop()
            for line in _how_to_use(cluster):
                console.print(line, soft_wrap=True, markup=False, highlight=False)
            await supervisor.run(asyncio.Event().wait())


def _how_to_use(cluster: Cluster) -> Iterator[str]:
    yield f"router:  {cluster.router_url}"
    yield f"prefill: {cluster.prefill_url}"
    yield f"decode:  {cluster.decode_url}"
    yield f"logs:    {cluster.logs}"
    yield "try:"
    yield (
        f"curl -sS {cluster.router_url}/v1/chat/completions -H 'Content-Type: application/json' "
        "-H 'X-Conversation-ID: first' -d '"
        f'{{"model":"{cluster.model_name}","max_tokens":16,"messages":'
        '[{"role":"user","content":"Say something."}]}\''
    )
    yield "Ctrl-C ends it."


def _say_ready(console: Console) -> Callable[[str, float], None]:
    if not console.is_terminal:
        console.print(STARTING)
    return lambda name, seconds: console.print(f"{name}: ready after {seconds:.0f} s")


async def _measure(
    plan: ClusterPlan, cluster: Cluster, run: _Run, folder: Path, console: Console
) -> None:
    workload = plan.profile.workload
    bench = BenchPlan(
        router_url=cluster.router_url,
        served_model_name=cluster.model_name,
        tokenizer_path=plan.model / "tokenizer.json",
        workload=workload,
        run_id=run.created_utc,
    )
    servers = (
        Server("prefill", cluster.prefill_url),
        Server("decode", cluster.decode_url),
        Server("router", cluster.router_url),
    )
    async with aiohttp.ClientSession() as session:
        sampler = Sampler(session, servers, run.samples.append)
        with _progress(console) as progress:
            total = 2 * workload.conversations * workload.turns
            bar = progress.add_task("warming up", total=total)

            async def on_warm() -> None:
                await sampler.settle()
                sampler.begin()
                progress.update(bar, description="measuring")

            def on_turn(result: TurnResult) -> None:
                progress.advance(bar)
                if result.turn == workload.turns and not console.is_terminal:
                    console.print(f"{len(run.results)} of {total} turns measured")

            async with sampler.running():
                await run_benchmark(bench, run.results, folder / TURNS, on_turn, on_warm)
        await sampler.settle()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _write(profile: Profile, run: _Run, folder: Path, stopped_by: str | None) -> dict[str, Any]:
    info = PassInfo(
        name="main",
        created_utc=run.created_utc,
        profile=profile,
        bench=BenchSpec(again_share=0.0),
        workload=profile.name,
        prefill_prefix_caching=profile.serving.prefill_prefix_caching,
        environment=run.environment,
        stopped_by=stopped_by,
    )
    report = build_report([(info, run.results, run.samples)])
    write_report(report, folder / REPORT)
    return report


def _told(reason: BaseException) -> str:
    if isinstance(reason, TurnbackError):
        return reason.what
    is_interrupt = isinstance(reason, asyncio.CancelledError | KeyboardInterrupt)
    return "interrupted" if is_interrupt else repr(reason)


@contextlib.contextmanager
def _partial_report(profile: Profile, run: _Run, folder: Path, console: Console) -> Iterator[None]:
    """Write what was measured when the block is left early, then let the reason pass."""
    try:
        yield
    except BaseException as reason:
        stopped_by = _told(reason)
        if run.results:
            console.print(render(_write(profile, run, folder, stopped_by)))
            console.print(f"partial report: {folder / REPORT}")
        else:
            console.print("nothing was measured yet")
        raise
