"""Nodes that are different and good, and what checks say where they cannot know."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runtime.contract.doctor import DoctorFinding, Stage
from runtime.launch.doctor.check import Facts
from runtime.launch.doctor.checks import CHECKS
from runtime.launch.doctor.facts import gather
from runtime.launch.doctor.run import run_doctor
from tests.launch.engine_double import EngineDouble, engine_double
from tests.launch.fake_node import ENGINE_PID, FakeNode
from tests.launch.nodes import good_node

Break = Callable[[FakeNode], object]


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    """Of a node that serves."""
    with engine_double() as double:
        yield double


def found(
    name: str,
    node: FakeNode,
    stage: Stage = "live",
    asks: Callable[[Facts], Facts] = lambda facts: facts,
) -> DoctorFinding:
    """What one check finds."""
    facts = asks(gather(node.machine, stage, lambda: node.spec_text))
    return run_doctor(facts, [each for each in CHECKS if each.name == name]).findings[0]


def _spec(node: FakeNode, **fields: object) -> None:
    node.spec_text = json.dumps(json.loads(node.spec_text) | fields)


def _ucx(node: FakeNode) -> None:
    _spec(node, kv={"backends": ["UCX"], "block_size_tokens": 128})
    node.engine(plugin="libplugin_UCX.so")


def _another_users(node: FakeNode) -> None:
    node.remove(f"proc/{ENGINE_PID}/environ")


def _in_tree_module(node: FakeNode) -> None:
    node.modules(efa="")


def _systemd_clock(kept: str, node: FakeNode) -> None:
    node.remove("bin/chronyc")
    node.says("timedatectl", {"*NTPSynchronized": f"NTPSynchronized={kept}"})


def _unknown_type(node: FakeNode) -> None:
    node.write("sys/devices/virtual/dmi/id/product_name", "x9.large\n")


def _small_type(node: FakeNode) -> None:
    node.write("sys/devices/virtual/dmi/id/product_name", "g6e.48xlarge\n")
    node.units(manager="inactive")


def _no_process(node: FakeNode) -> None:
    node.remove(f"proc/{ENGINE_PID}/cmdline")


def _draining(node: FakeNode) -> None:
    node.boot(state="draining")


def _rolled_out(node: FakeNode) -> None:
    node.boot(starts=2, since_unix_s=time.time())


def _restarted_long_ago(node: FakeNode) -> None:
    node.boot(starts=9, since_unix_s=time.time() - 7200)


def _closed_driver_with_peermem(node: FakeNode) -> None:
    node.modules(licence="NVIDIA")


def _old_kernel(node: FakeNode) -> None:
    node.write("proc/sys/kernel/osrelease", "5.11.9-aws\n")
    node.write("proc/modules", "efa 1 1 - Live 0x0\n")


def _one_gpu_engine(node: FakeNode) -> None:
    serving = json.loads(node.spec_text)["serving"] | {"tensor_parallel_size": 1}
    _spec(node, serving=serving)
    node.count(9 * 2**30, 9 * 2**30, devices=2)


def _no_argument(node: FakeNode) -> None:
    node.engine(argv=["python", "-m", "vllm.entrypoints.openai.api_server"])


@pytest.mark.parametrize(
    ("check", "breaks", "stage", "status", "told"),
    [
        ("nixl-plugin", _ucx, "boot", "pass", "without LIBFABRIC"),
        ("nixl-backend", _ucx, "boot", "pass", "without LIBFABRIC"),
        ("transport", _ucx, "live", "warn", "UCX chooses EFA or TCP by itself"),
        ("hash-seed", _another_users, "live", "fail", "cannot be read"),
        ("transport", _another_users, "live", "fail", "cannot be read"),
        ("efa-driver", _in_tree_module, "image", "fail", "the kernel's own"),
        ("clock", partial(_systemd_clock, "yes"), "boot", "pass", "systemd-timesyncd"),
        ("clock", partial(_systemd_clock, "no"), "boot", "fail", "does not keep the clock"),
        ("gpus", _unknown_type, "boot", "warn", "x9.large is in no table"),
        ("gpus", lambda node: node.gpus(7), "boot", "fail", "7 of 8 GPUs answer"),
        ("nvlink", _unknown_type, "boot", "pass", "x9.large has no NVLink"),
        ("nvlink", _small_type, "boot", "pass", "g6e.48xlarge has no NVLink"),
        ("connector", _no_process, "live", "fail", "no vLLM server runs"),
        ("hash-seed", _no_process, "live", "fail", "no vLLM server runs"),
        ("transport", _no_process, "live", "fail", "no vLLM server runs"),
        ("memlock", _no_process, "live", "pass", "turnback-node.service's limit"),
        ("connector", _no_argument, "live", "fail", "without --kv-transfer-config"),
        ("boot", _draining, "live", "warn", "draining at engine"),
        ("boot", _rolled_out, "live", "pass", "started 2 times"),
        ("boot", _restarted_long_ago, "live", "pass", "started 9 times"),
        ("gpu-direct", _closed_driver_with_peermem, "live", "pass", "efa_nv_peermem, no DMA-BUF"),
        ("gpu-direct", _old_kernel, "live", "fail", "kernel 5.11.9-aws"),
        ("rails", _one_gpu_engine, "live", "pass", "2 of 16 devices"),
    ],
)
def test_other_nodes(
    check: str,
    breaks: Break,
    stage: Stage,
    status: str,
    told: str,
    tmp_path: Path,
    engine: EngineDouble,
) -> None:
    """Each is told by what it is."""
    node = good_node(tmp_path, url=engine.url if stage == "live" else "")
    node.count(9 * 2**30, 9 * 2**30)
    breaks(node)
    finding = found(check, node, stage)
    assert finding.status == status, finding
    assert told in finding.evidence


def test_device_count_without_a_spec_is_the_types(tmp_path: Path) -> None:
    """And unknown of a type that no table has."""
    node = good_node(tmp_path)
    node.spec_text = ""
    assert found("efa-devices", node, "boot").evidence.startswith("16 of 16")
    _unknown_type(node)
    told = found("efa-devices", node, "boot")
    assert (told.status, told.fix) == ("warn", "see the finding of `spec`")


def test_own_address_is_no_peer(
    tmp_path: Path, engine: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment's doctor names all nodes to each."""
    node = good_node(tmp_path, url=engine.url)
    monkeypatch.setattr("runtime.launch.doctor.engine._is_own", lambda host, _: host == "10.0.0.10")

    def asks(facts: Facts) -> Facts:
        return replace(facts, peers=(("10.0.0.10", 9),))

    assert found("peers", node, "live", asks).evidence == "no peer was named"


def test_wildcard_and_loopback_specs_may_listen_so(tmp_path: Path, engine: EngineDouble) -> None:
    """127.0.0.1 is right where the spec says so: peers on this machine."""
    node = good_node(tmp_path, url=engine.url)
    node.listen(8000, 5600, address="00000000")
    assert found("ports", node).status == "pass"
    node.listen(8000, 5600, address="0100007F")
    assert found("ports", node).status == "fail"
    _spec(node, host="127.0.0.1")
    assert found("ports", node).status == "pass"
