"""Two engines and the router on this machine: what starts them, and `turnback up`."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from runtime.contract.profile import Profile
from runtime.local.checks import check_port_free, engine_versions, machine
from runtime.local.cluster import HOST, Cluster, ClusterPlan, running_cluster
from runtime.local.model import build_model, check_model

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


async def run_up(options: LocalOptions, console: Console) -> None:
    """Start a cluster, say how to use it, and keep it until cancelled.

    Raises:
        BadInput, StartFailed, EngineDied: as their names say.
    """
    plan, _ = prepare(options, "up", console)
    with console.status(STARTING) as status:
        async with running_cluster(plan, say_ready(console)) as (cluster, supervisor):
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


def say_ready(console: Console) -> Callable[[str, float], None]:
    """Say that servers start; what comes back says which is ready, and after how long."""
    if not console.is_terminal:
        console.print(STARTING)
    return lambda name, seconds: console.print(f"{name}: ready after {seconds:.0f} s")
