"""A rollout over processes of this machine, with mock engines for speed and the real router."""

import asyncio
import os
import signal
import threading
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.backends import get_backend
from moto.server import ThreadedMotoServer

from runtime.aws.clients import client
from runtime.aws.discovery import GENERATION_TAG, ROLE_TAG
from runtime.cli_node import stage_deployed
from runtime.contract.node import NodeSpec
from runtime.errors import StartFailed
from runtime.launch.supervisor import Supervisor
from runtime.local.checks import free_ports
from runtime.local.model import build_model
from runtime.local.rehearsal import account, deployed, fleet
from runtime.local.rehearsal.fleet import LocalFleet, Place
from stacks.constructs.router_arguments import router_arguments
from tests.infra.synth import golden

HERE = {"LocationConstraint": account.REGION}
LEASE_S = 12
"""The shortest: a drained P waits for its end."""


def tags(role: str, pairing: str) -> list[dict[str, str]]:
    """Of a group."""
    told = {ROLE_TAG: role} | ({GENERATION_TAG: pairing} if pairing else {})
    return [{"Key": key, "Value": value} for key, value in told.items()]


def variables(role: str) -> dict[str, str]:
    """Of user data."""
    return {
        "TURNBACK_DEPLOYMENT": "demo",
        "TURNBACK_PARAMETER": f"/turnback/demo/{role}",
        "TURNBACK_WHEEL_SHA256": "ab" * 32,
    }


class Account:
    """Parameters and a model in an emulated account; groups that are played."""

    def __init__(self) -> None:
        self.ssm = client("ssm")
        self.put(480, "0a")

    def put(self, ttl_s: int, generation: str) -> None:
        """What a deploy writes."""
        for role in ("prefill", "decode"):
            raw = golden(f"node-spec-{role}.json")
            raw["kv"] |= {"decoder_kv_blocks_ttl_s": ttl_s, "kv_lease_duration_s": LEASE_S}
            raw["generation"] = generation
            spec = NodeSpec.model_validate(raw)
            self.write(role, spec.model_dump_json(exclude_none=True))
        # Without keys: there is no secret here.
        # A last newline is no argument: neither a start script nor a rollout counts it.
        self.write("router", "\n".join(router_arguments("demo", spec.kv, "")[:-2]) + "\n")

    def write(self, role: str, text: str) -> None:
        """A parameter."""
        name = f"/turnback/demo/{role}"
        self.ssm.put_parameter(Name=name, Value=text, Type="String", Overwrite=True)

    def read(self, role: str) -> str:
        """A parameter."""
        reply = self.ssm.get_parameter(Name=f"/turnback/demo/{role}")
        return str(reply["Parameter"]["Value"])

    def stage(self, model: Path) -> None:
        """What `turnback model stage` does."""
        client("s3").create_bucket(Bucket="models", CreateBucketConfiguration=HERE)
        self.write("model-bucket", "models")
        stage_deployed("demo", model, lambda _line: None)

    def get_paginator(self, _call: str) -> "Account":
        """Of groups."""
        return self

    def paginate(self, **_asked: Any) -> list[dict[str, Any]]:
        """A group of each role, with the tags that stacks give them."""
        size = {"DesiredCapacity": 1, "MaxSize": 1}
        pairings = {"prefill": "ab", "decode": "ab", "router": ""}
        groups = [
            {"AutoScalingGroupName": role, "Tags": tags(role, pairing), **size}
            for role, pairing in pairings.items()
        ]
        return [{"AutoScalingGroups": groups}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model."""
    return build_model(tmp_path_factory.mktemp("models"))


@pytest.fixture
def parameters(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An emulated account on loopback, which boots of other processes see too."""
    (port,) = free_ports(1)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    with account.only_this_account(port):
        made = Account()
        made.stage(model)

        def read(name: str) -> str:
            assert threading.current_thread() is not threading.main_thread(), "blocks the loop"
            return made.read(name.rpartition("/")[2])

        monkeypatch.setattr(deployed, "parameter", read)
        monkeypatch.setattr(fleet, "client", lambda name: made.ssm if name == "ssm" else made)
        yield made
    server.stop()
    for each in ("ssm", "s3"):  # they are this process's, not the server's
        get_backend(each).reset()


@pytest.fixture
async def local(parameters: Account, tmp_path: Path) -> AsyncIterator[LocalFleet]:
    """A fleet that runs, with mock engines behind the real boot."""
    ports = free_ports(3)
    places = {
        role: Place(role, variables(role), "" if role == "router" else "ab", port, 5600)
        for role, port in zip(deployed.ROLES, ports, strict=True)
    }
    async with Supervisor(grace_s=20.0) as supervisor:
        made = LocalFleet("demo", places, None, tmp_path, supervisor, asyncio.get_running_loop())
        await made.start()
        yield made


def draining(local: LocalFleet) -> dict[str, bool]:
    """What the router is told."""
    listed = tomllib.loads(local.nodes_file().read_text("utf-8"))
    return {role: nodes[0]["draining"] for role, nodes in listed.items()}


async def test_rollout_brings_processes_to_their_parameters(
    local: LocalFleet, parameters: Account
) -> None:
    """Each is drained, restarted with the new TTL and taken back; a second one does nothing."""
    first = {role: local.command_line(role) for role in local.places}
    parameters.put(600, "0b")
    lines: list[str] = []
    report = await local.roll_out(lines.append)
    assert sorted(report.restarted) == ["local-decode", "local-prefill", "local-router"]
    assert draining(local) == {"prefill": False, "decode": False}
    for role in local.places:
        changed = {*local.command_line(role)} - {*first[role]}
        assert changed == {"600"}, role
    assert {node.generation for node in local.nodes() if node.role != "router"} == {"0b"}
    assert any("drains" in line for line in lines)
    again = await local.roll_out(lines.append)
    assert (again.restarted, len(again.kept)) == ([], 3)
    parameters.write("router", f"{parameters.read('router')}--pin-share\n0.4\n")
    assert (await local.roll_out(lines.append)).restarted == ["local-router"]


async def test_drained_node_is_told_to_the_router(local: LocalFleet) -> None:
    """And taken back; a router itself is in no list."""
    for node in local.nodes():
        local.drain(node)
        assert draining(local) == {role: role == node.role for role in ("prefill", "decode")}
        local.undrain(node)
    assert draining(local) == {"prefill": False, "decode": False}


async def test_other_ttl_than_the_parameters_is_seen(local: LocalFleet) -> None:
    """On the command line that the kernel shows, not in what the kit believes."""
    with pytest.raises(StartFailed, match="does not run with the TTL") as failure:
        local.check_ttl(481)
    assert "481" in failure.value.allowed


async def test_rollout_ends_with_its_caller_in_a_drain(
    local: LocalFleet, parameters: Account
) -> None:
    """Ctrl-C in the middle of a drain."""
    parameters.put(600, "0b")
    lines: list[str] = []
    task = asyncio.create_task(local.roll_out(lines.append))
    async with asyncio.timeout(10):
        while not any("drains" in line for line in lines):
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not any("taken back" in line for line in lines):
            await asyncio.sleep(0.05)


async def test_rollout_ends_with_its_caller_in_a_restart(
    local: LocalFleet, parameters: Account
) -> None:
    """Ctrl-C while a process does not end yet: it ends with the supervisor, not later."""
    parameters.put(300, "0b")  # a shorter TTL: the router is first
    guard = local.supervisor.pids()["router"]
    os.kill(guard, signal.SIGSTOP)
    lines: list[str] = []
    task = asyncio.create_task(local.roll_out(lines.append))
    try:
        async with asyncio.timeout(10):
            while not any(": restarts" in line for line in lines):
                await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while not any("gets no new connections" in line for line in lines):
                await asyncio.sleep(0.05)
        assert local.supervisor.pids()["router"] == guard
    finally:
        os.kill(guard, signal.SIGCONT)
    await local.supervisor.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(guard, 0)


async def test_a_restart_that_does_not_end_is_told(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In four parts, and not as a cancelled future."""
    monkeypatch.setattr(fleet, "_RESTART_S", 0.3)
    with pytest.raises(StartFailed, match="not restarted in time") as failure:
        await asyncio.to_thread(local._on_loop, asyncio.sleep(60))
    assert "logs" in failure.value.fix
