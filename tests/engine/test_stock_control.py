"""Negative control: with vLLM's own connector the same cases give wrong answers.

Run alone, with what it found on the terminal:

    .venv/bin/python -m pytest -s tests/engine/test_stock_control.py
"""

import json
from pathlib import Path

import aiohttp
import pytest
from tokenizers import Tokenizer

from runtime.contract.node import Role
from runtime.contract.profile import load_profile
from runtime.launch.command import Command, engine_command
from runtime.launch.supervisor import Service, Supervisor
from runtime.local.checks import free_ports
from runtime.local.cluster import ClusterPlan, node_spec
from tests.engine.cases import FOLLOW_UPS, PairClient, Words, first_difference, play
from tests.engine.conftest import ENGINE

pytestmark = pytest.mark.engine


def with_stock_connector(command: Command) -> Command:
    """The same command line without the kit's connector."""
    argv = list(command.argv)
    at = argv.index("--kv-transfer-config") + 1
    config = json.loads(argv[at])
    del config["kv_connector_module_path"]
    argv[at] = json.dumps(config)
    return Command(tuple(argv), command.env)


async def test_stock_connector_changes_answers(
    model: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Of the five cases at least three differ from a cold run: the cases have power."""
    plan = ClusterPlan(load_profile("tiny"), model, ENGINE / "bin" / "python", 0, tmp_path)
    ports = iter(free_ports(4))
    services = []
    roles: tuple[Role, ...] = ("prefill", "decode")
    for role in roles:
        spec = node_spec(plan, role, next(ports), next(ports))
        command = with_stock_connector(engine_command(spec, ENGINE / "bin" / "python"))
        url = f"http://127.0.0.1:{spec.serving.port}"
        services.append(Service(role, command, f"{url}/health", tmp_path / f"{role}.log"))
    prefill_url, decode_url = (one.ready_url.removesuffix("/health") for one in services)
    parted: dict[str, int | None] = {}
    async with Supervisor() as supervisor, aiohttp.ClientSession() as session:
        await supervisor.start(services)
        client = PairClient(session, prefill_url, decode_url, "tiny")
        for seed, following in enumerate(FOLLOW_UPS):
            warm, cold = await play(client, Words(tokenizer, seed), following)
            assert warm.receipt is None
            parted[following] = first_difference(warm, cold)
            print(f"stock, {following}: first difference at token {parted[following]}")  # noqa: T201
    assert sum(at is not None for at in parted.values()) >= 3, parted
