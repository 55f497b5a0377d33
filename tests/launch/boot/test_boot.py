"""A whole boot, with real processes under a folder that stands for `/`."""

import asyncio
import os
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime.contract.status import KIT_STAMP, NodeStatus
from runtime.errors import BadInput, EngineDied, StartFailed, TurnbackError
from runtime.launch.boot.boot import Node, Sources, serve
from runtime.launch.boot.engine import KEPT_LOGS, LOGS
from runtime.launch.boot.journal import Journal
from runtime.launch.machine import Machine
from runtime.local.checks import free_ports
from tests.launch.boot.node import (
    QUICK,
    boot_file,
    journal,
    node,
    sources,
    spec,
    status_file,
    tree,
    until,
)


def is_serving(machine: Machine) -> bool:
    """As its file says."""
    try:
        return boot_file(machine).state == "serving"
    except FileNotFoundError:
        return False


def booting(of: Node, asked: Sources, told: Journal) -> "asyncio.Task[None]":
    """In the background."""
    return asyncio.create_task(serve(of, asked, told, lambda: 1.0))


async def ended(task: "asyncio.Task[None]") -> None:
    """By its caller, as SIGTERM does it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_ready_node_serves_and_says_so(tmp_path: Path) -> None:
    """Each step has its line, the status is what the spec says, and the end leaves none."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    told, stream = journal(machine)
    task = booting(node(machine), sources(wanted.model_dump_json(exclude_none=True)), told)
    await until(lambda: is_serving(machine))
    report = boot_file(machine)
    assert (report.step, report.generation, report.starts) == ("engine", wanted.generation, 1)
    status = NodeStatus.model_validate_json(status_file(machine).read_bytes())
    assert status.url == f"http://127.0.0.1:{wanted.serving.port}"
    assert (status.role, status.generation) == ("decode", wanted.generation)
    assert (status.decoder_kv_blocks_ttl_s, status.kv_lease_duration_s) == (480, 12)
    await ended(task)
    assert not status_file(machine).exists()
    steps = [line.split(":")[1].strip() for line in stream.getvalue().splitlines()]
    assert list(dict.fromkeys(steps)) == ["spec", "image", "transport", "checks", "engine"]


async def test_status_is_there_before_the_engine_is(tmp_path: Path) -> None:
    """A rollout must not take a node that starts for one that runs nothing."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    told, _ = journal(machine)
    task = booting(
        node(machine, "--never-ready"), sources(wanted.model_dump_json(exclude_none=True)), told
    )
    await until(status_file(machine).exists)
    assert boot_file(machine).state == "booting"
    await ended(task)


def _missing() -> str:
    raise BadInput("parameter x cannot be read", got="ParameterNotFound", allowed="-", fix="-")


def _fails(*_: Any) -> None:
    raise StartFailed("S3 does not answer", got="no route", allowed="-", fix="-")


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device", "/opt/turnback/models/x")


def _breaks(*_: Any) -> None:
    raise ValueError("nobody expects this")


@pytest.mark.parametrize(
    ("harm", "changes", "step", "error"),
    [
        ("kit", {}, "kit", StartFailed),
        ("", {"spec_text": _missing}, "spec", BadInput),
        ("", {"spec_text": lambda: "{}"}, "spec", BadInput),
        ("image", {}, "image", BadInput),
        ("devices", {}, "transport", StartFailed),
        ("", {"sync_model": _fails}, "model", StartFailed),
        ("", {"sync_model": _full}, "model", StartFailed),
        ("", {"sync_model": _breaks}, "model", StartFailed),
    ],
)
async def test_failure_is_one_line_and_a_file(
    harm: str, changes: dict[str, Any], step: str, error: type[TurnbackError], tmp_path: Path
) -> None:
    """At whichever step: no engine starts, and journal and boot.json say why."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    harmed: dict[str, Path | str] = {
        "kit": KIT_STAMP,
        "image": "/etc/turnback/image.json",
        "devices": "/sys/class/infiniband/rdmap7s0/device/driver",
    }
    if harm:
        machine.at(harmed[harm]).unlink()
    told, stream = journal(machine)
    asked = sources(wanted.model_dump_json(exclude_none=True), **changes)
    with pytest.raises(error):
        await serve(node(machine, device_wait_s=0.1), asked, told, lambda: 1.0)
    report, last = boot_file(machine), stream.getvalue().splitlines()[-1]
    assert (report.state, report.step, report.starts) == ("failed", step, 0)
    assert last.startswith(f"turnback: {step} failed: {report.what}; got: {report.got}")
    assert not status_file(machine).exists()
    assert not machine.at(LOGS).exists()


async def test_boot_after_a_failure_forgets_it(tmp_path: Path) -> None:
    """What failed yesterday is no word about today."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    text = wanted.model_dump_json(exclude_none=True)
    with pytest.raises(BadInput):
        await serve(node(machine), sources("{}"), journal(machine)[0], lambda: 1.0)
    task = booting(node(machine), sources(text), journal(machine)[0])
    await until(lambda: is_serving(machine))
    assert boot_file(machine).what == ""
    await ended(task)


async def test_dead_engine_is_started_again(tmp_path: Path) -> None:
    """Killed while it served: the next start has a log of its own, and old ones go."""
    wanted = spec(*free_ports(1))
    machine, pids = tree(tmp_path / "root", wanted), tmp_path / "pids"
    machine.at(LOGS).mkdir(parents=True)
    for number in range(9):
        (machine.at(LOGS) / f"engine-old{number}.log").write_text("")
    told, stream = journal(machine)
    task = booting(
        node(machine, "--pids", str(pids)),
        sources(wanted.model_dump_json(exclude_none=True)),
        told,
    )
    await until(lambda: is_serving(machine))
    os.kill(int(pids.read_text("ascii").split()[0]), 9)
    await until(lambda: told.report.starts == 2 and is_serving(machine))
    assert "SIGKILL" in stream.getvalue()
    logs = {path.name for path in machine.at(LOGS).iterdir()}
    assert {"engine-1.log", "engine-2.log"} <= logs
    assert len(logs) == KEPT_LOGS
    await ended(task)


@pytest.mark.parametrize("words", [("--exit-after", "0.2"), ("--exit-after", "0")])
async def test_crash_loop_ends_the_boot(words: tuple[str, str], tmp_path: Path) -> None:
    """Five ends, after it served or before: given up, with its last words in one line."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    told, stream = journal(machine)
    asked = sources(wanted.model_dump_json(exclude_none=True))
    with pytest.raises(EngineDied, match="ended 5 times"):
        await serve(node(machine, *words), asked, told, lambda: 1.0)
    report = boot_file(machine)
    assert (report.state, report.step, report.starts) == ("failed", "engine", 5)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("turnback: engine failed: the engine ended 5 times")
    assert "exit code 7" in last
    assert not status_file(machine).exists()


async def test_ends_that_lie_far_apart_are_no_crash_loop(tmp_path: Path) -> None:
    """An engine that dies now and then goes on being started."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    told, _ = journal(machine)
    of = node(machine, "--exit-after", "0", pace=replace(QUICK, window_s=0.05))
    task = booting(of, sources(wanted.model_dump_json(exclude_none=True)), told)
    await until(lambda: told.report.starts >= 7)
    await ended(task)


async def test_boot_that_waits_can_be_ended(tmp_path: Path) -> None:
    """For devices, and in the middle of a sync: the thread does not go on."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    text = wanted.model_dump_json(exclude_none=True)
    stopped = threading.Event()

    def endless(_name: str, _folder: Path, _say: Any, stop: threading.Event) -> None:
        stop.wait(60)
        stopped.set()

    told, _ = journal(machine)
    task = booting(node(machine), sources(text, sync_model=endless), told)
    await until(lambda: told.report.step == "model")
    await ended(task)
    assert stopped.is_set()
    machine.at("/sys/class/infiniband/rdmap7s0/device/driver").unlink()
    told, stream = journal(machine)
    task = booting(node(machine), sources(text), told)
    await until(lambda: "15 of 16" in stream.getvalue())
    async with asyncio.timeout(5):
        await ended(task)


async def test_model_is_named_by_its_folder(tmp_path: Path) -> None:
    """Id and revision, into the folder that the engine is given."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    asked: list[Any] = []
    task = booting(
        node(machine),
        sources(
            wanted.model_dump_json(exclude_none=True), sync_model=lambda *given: asked.append(given)
        ),
        journal(machine)[0],
    )
    await until(lambda: is_serving(machine))
    name, folder, *_ = asked[0]
    assert name == str(wanted.serving.model).removeprefix("/opt/turnback/models/")
    assert folder == machine.at(wanted.serving.model)
    await ended(task)


def _in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_node_drains_before_its_capacity_ends(tmp_path: Path) -> None:
    """Routers are told, what runs may end, then the engine is stopped and the boot is over."""
    wanted = spec(*free_ports(1), drains_at=_in(2.5))
    machine, busy = tree(tmp_path / "root", wanted), tmp_path / "busy"
    busy.write_text("3", "ascii")
    told, stream = journal(machine)
    tagged: list[str] = []
    asked = sources(
        wanted.model_dump_json(exclude_none=True), tag_draining=lambda: tagged.append("me")
    )
    task = booting(node(machine, "--running", str(busy)), asked, told)
    await until(lambda: is_serving(machine))
    assert tagged == []
    await until(lambda: told.report.state == "draining")
    await until(lambda: tagged)
    await asyncio.sleep(0.5)
    assert not task.done()
    busy.write_text("0", "ascii")
    async with asyncio.timeout(5):
        await task
    assert "nothing runs" in stream.getvalue()
    assert boot_file(machine).state == "draining"
    assert not status_file(machine).exists()


async def test_requests_that_do_not_end_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    """EC2 ends the instance in any case; that the tag failed does not keep it either."""
    wanted = spec(*free_ports(1), drains_at=_in(2.5))
    machine, busy = tree(tmp_path / "root", wanted), tmp_path / "busy"
    busy.write_text("3", "ascii")
    told, stream = journal(machine)
    of = node(machine, "--running", str(busy), pace=replace(QUICK, drain_s=0.5))
    asked = sources(wanted.model_dump_json(exclude_none=True), tag_draining=_fails)
    async with asyncio.timeout(10):
        await serve(of, asked, told, lambda: 1.0)
    assert "3 request(s) run after" in stream.getvalue()
    assert "routers cannot be told" in stream.getvalue()


async def test_node_whose_capacity_has_ended_does_not_start(tmp_path: Path) -> None:
    """Its routers have been told of none."""
    wanted = spec(*free_ports(1), drains_at=_in(-1))
    machine = tree(tmp_path, wanted)
    asked = sources(wanted.model_dump_json(exclude_none=True))
    told, _ = journal(machine)
    with pytest.raises(BadInput, match="about to end"):
        await serve(node(machine), asked, told, lambda: 1.0)
    assert told.report.step == "spec"
    assert not status_file(machine).exists()


@pytest.mark.parametrize("path", ["/opt/turnback/models/../../../etc/a/b", "/opt/turnback/models"])
async def test_model_outside_its_folder_is_not_fetched(path: str, tmp_path: Path) -> None:
    """Whoever writes the parameter must not write anywhere on the node."""
    wanted = spec(*free_ports(1))
    machine = tree(tmp_path, wanted)
    serving = wanted.serving.model_copy(update={"model": Path(path)})
    text = wanted.model_copy(update={"serving": serving}).model_dump_json(exclude_none=True)
    asked: list[Any] = []
    sync = sources(text, sync_model=lambda *given: asked.append(given))
    told, _ = journal(machine)
    with pytest.raises(BadInput, match="no folder that the bucket could fill") as failure:
        await serve(node(machine), sync, told, lambda: 1.0)
    assert (failure.value.got, asked, told.report.step) == (path, [], "spec")
