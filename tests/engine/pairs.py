"""A prefill and a decode server without a router, with settings of a test's own."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from runtime.contract.node import NodeSpec, Role
from runtime.contract.profile import load_profile
from runtime.launch.command import Command, engine_command
from runtime.launch.supervisor import Service, Supervisor
from runtime.local.checks import free_ports
from runtime.local.cluster import ClusterPlan, node_spec
from tests.engine.play import PairClient

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / ".venv-engine"
ROLES: tuple[Role, ...] = ("prefill", "decode")
_REPLY_LIMIT_S = 120.0


@asynccontextmanager
async def running_pair(
    model: Path,
    logs: Path,
    *,
    change: Callable[[NodeSpec], NodeSpec] = lambda spec: spec,
    edit: Callable[[Command], Command] = lambda command: command,
    arguments: Sequence[str] = (),
) -> AsyncIterator[PairClient]:
    """Start both servers and wait for them; leaving the block ends them.

    Args:
        model: folder of the model.
        logs: folder for the engines' logs.
        change: makes another spec of each node's.
        edit: makes another command of each engine's.
        arguments: more of vLLM's arguments.
    """
    plan = ClusterPlan(load_profile("tiny"), model, ENGINE / "bin" / "python", 0, logs)
    ports = iter(free_ports(4))
    services = []
    for role in ROLES:
        spec = change(node_spec(plan, role, next(ports), next(ports)))
        command = engine_command(spec, ENGINE / "bin" / "python")
        command = edit(Command((*command.argv, *arguments), command.env))
        url = f"http://127.0.0.1:{spec.serving.port}"
        services.append(Service(role, command, f"{url}/health", logs / f"{role}.log"))
    prefill_url, decode_url = (one.ready_url.removesuffix("/health") for one in services)
    timeout = aiohttp.ClientTimeout(total=_REPLY_LIMIT_S)
    async with Supervisor() as supervisor, aiohttp.ClientSession(timeout=timeout) as session:
        await supervisor.start(services)
        yield PairClient(session, prefill_url, decode_url, "tiny")
