"""One prefill server, one decode server and the router on this machine's loopback."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.contract.node import CpuSpec, NodeSpec, Role, ServingSpec
from runtime.contract.profile import Profile
from runtime.launch.command import Command, engine_command
from runtime.launch.supervisor import Service, Supervisor
from runtime.local.checks import free_ports

HOST = "127.0.0.1"


@dataclass(frozen=True)
class ClusterPlan:
    """What to start.

    Attributes:
        profile: sizes of the engines.
        model: folder of the model.
        engine_python: interpreter with vLLM; None starts mock engines.
        router_port: 0 takes a free one.
        logs: folder for one log per process.
    """

    profile: Profile
    model: Path
    engine_python: Path | None
    router_port: int
    logs: Path


@dataclass(frozen=True)
class Cluster:
    """Addresses of a running cluster."""

    router_url: str
    prefill_url: str
    decode_url: str
    model_name: str
    logs: Path


_KV_CACHE_GIB = 2
"""Of each engine, where a profile made for GPUs names none."""


def cores(index: int) -> tuple[int, ...]:
    """Half of the cores for each engine; the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    return tuple(cores[index * half : (index + 1) * half] or cores[:1])


def node_spec(plan: ClusterPlan, role: Role, port: int, side_channel_port: int) -> NodeSpec:
    """The spec of one engine of this cluster."""
    serving = plan.profile.serving
    return NodeSpec(
        role=role,
        serving=ServingSpec(
            model=plan.model,
            served_model_name=plan.profile.name,
            dtype=serving.dtype,
            max_model_len=serving.max_model_len,
            max_num_seqs=serving.max_num_seqs,
            enable_prefix_caching=role == "decode" or serving.prefill_prefix_caching,
            port=port,
        ),
        kv=plan.profile.kv,
        cpu=CpuSpec(
            cores=cores(role == "decode"), kv_cache_gib=serving.kv_cache_gib or _KV_CACHE_GIB
        ),
        side_channel_port=side_channel_port,
    )


def mock_command(spec: NodeSpec) -> Command:
    argv = [sys.executable, "-m", "runtime.local.mock_engine", "--role", spec.role]
    argv += ["--port", str(spec.serving.port), "--model", str(spec.serving.model)]
    argv += ["--served-model-name", spec.serving.served_model_name]
    argv += ["--block-size", str(spec.kv.block_size_tokens)]
    argv += ["--threshold-tokens", str(spec.kv.kv_recompute_threshold_tokens)]
    argv += ["--ttl-s", str(spec.kv.decoder_kv_blocks_ttl_s)]
    argv += [] if spec.kv.bidirectional else ["--one-way"]
    return Command(tuple(argv))


def _router_command(plan: ClusterPlan, port: int, engines: tuple[str, str]) -> Command:
    kv = plan.profile.kv
    argv = [sys.executable, "-m", "runtime.cli", "router", "--port", str(port)]
    argv += ["--prefill", engines[0], "--decode", engines[1]]
    argv += ["--decoder-kv-blocks-ttl-s", str(kv.decoder_kv_blocks_ttl_s)]
    argv += ["--handle-deadline-margin-s", str(kv.handle_deadline_margin_s)]
    argv += ["--block-size-tokens", str(kv.block_size_tokens)]
    return Command(tuple(argv))


def _engine_services(plan: ClusterPlan, ports: Iterator[int]) -> Iterator[Service]:
    roles: tuple[Role, ...] = ("prefill", "decode")
    for role in roles:
        spec = node_spec(plan, role, next(ports), next(ports))
        command = (
            engine_command(spec, plan.engine_python) if plan.engine_python else mock_command(spec)
        )
        url = f"http://{HOST}:{spec.serving.port}"
        yield Service(role, command, f"{url}/health", plan.logs / f"{role}.log")


@asynccontextmanager
async def running_cluster(
    plan: ClusterPlan, on_ready: Callable[[str, float], None] = lambda _name, _seconds: None
) -> AsyncIterator[tuple[Cluster, Supervisor]]:
    """Start a cluster; leaving the block ends it.

    Args:
        plan: what to start.
        on_ready: called with (service name, seconds it took).

    Raises:
        StartFailed: a process ended or did not answer in time.
    """
    ports = iter(free_ports(5))
    engines = list(_engine_services(plan, ports))
    prefill_url, decode_url = (service.ready_url.removesuffix("/health") for service in engines)
    port = plan.router_port or next(ports)
    router = Service(
        "router",
        _router_command(plan, port, (prefill_url, decode_url)),
        f"http://{HOST}:{port}/v1/models",
        plan.logs / "router.log",
    )
    async with Supervisor(on_ready=on_ready) as supervisor:
        await supervisor.start(engines)
        await supervisor.start([router])
        yield (
            Cluster(
                router_url=f"http://{HOST}:{port}",
                prefill_url=prefill_url,
                decode_url=decode_url,
                model_name=plan.profile.name,
                logs=plan.logs,
            ),
            supervisor,
        )
