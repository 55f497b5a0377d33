"""vLLM's bytes beside EFA's: direction, window, bounds."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.contract.doctor import TrafficReading
from runtime.launch.doctor.check import Facts, Window
from runtime.launch.doctor.checks import CHECKS
from runtime.launch.doctor.facts import gather
from runtime.launch.doctor.fleet import traffic as fleet_traffic
from runtime.launch.doctor.run import extra_s, run_doctor
from runtime.launch.doctor.traffic import LEAD_S, counters, judge, watch
from tests.launch.engine_double import SERVED, EngineDouble, engine_double
from tests.launch.fake_node import FakeNode
from tests.launch.nodes import good_node

_MIB = 2**20
_GIB = 2**30
_NIXL = "vllm:nixl_bytes_transferred_sum"


def reading(
    nixl: float, rx: float, tx: float = 0.0, window_s: float | None = 10.0
) -> TrafficReading:
    """Counts in MiB."""
    return TrafficReading(
        window_s=window_s,
        nixl_bytes=int(nixl * _MIB),
        efa_rx_bytes=int(rx * _MIB),
        efa_tx_bytes=int(tx * _MIB),
        moved_devices=16,
    )


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (reading(100, 100), "pass"),
        (reading(100, 125), "pass"),
        (reading(100, 99.9), "fail"),
        (reading(100, 0), "fail"),
        (reading(100, 0, tx=500), "fail"),
        (reading(100, 126), "warn"),
        (reading(100, 126, tx=100), "pass"),
        (reading(1, 9), "pass"),
        (reading(0, 0), "warn"),
        (reading(0, 0, tx=100), "pass"),
        (reading(100, 900, window_s=None), "pass"),
        (reading(100, 99, window_s=None), "fail"),
    ],
)
def test_node_receives_what_it_reads(one: TrafficReading, status: str) -> None:
    """Its rx_bytes are held against vLLM's count; what it sends is other nodes' reading."""
    assert judge(one).status == status


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ([reading(100, 101, tx=5), reading(5, 5, tx=101)], "pass"),
        ([reading(100, 101, tx=0), reading(0, 0, tx=99)], "fail"),
        ([reading(100, 0, tx=0), reading(0, 0, tx=0)], "fail"),
        ([reading(100, 100, tx=0), reading(0, 0, tx=125)], "pass"),
        ([reading(100, 100, tx=0), reading(0, 0, tx=126)], "fail"),
        ([reading(1, 1, tx=0), reading(0, 0, tx=9)], "pass"),
        ([reading(0, 0, tx=0), reading(0, 0, tx=0)], "warn"),
        ([reading(100, 100, tx=100), None], "warn"),
        ([reading(100, 100, window_s=None), reading(0, 0, tx=900, window_s=None)], "pass"),
        ([reading(100, 100, window_s=None), reading(0, 0, tx=90, window_s=None)], "warn"),
    ],
)
def test_fleet_sends_what_it_reads(nodes: list[TrafficReading | None], status: str) -> None:
    """The owner of the blocks sends: only the sums over all nodes go together.

    Of totals, a node that has ended since may have sent what is missing.
    """
    assert fleet_traffic(nodes).status == status


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    """Of a node that has served."""
    with engine_double() as double:
        yield double


@pytest.fixture
def node(tmp_path: Path, engine: EngineDouble) -> FakeNode:
    """One that has received 9 GiB for the 8 that its engine read."""
    made = good_node(tmp_path, url=engine.url)
    made.count(tx_bytes=3 * _GIB, rx_bytes=9 * _GIB)
    return made


def facts_of(node: FakeNode, window: Window | None) -> Facts:
    """At stage live."""
    return replace(gather(node.machine, "live", lambda: node.spec_text), window=window)


def test_totals_without_a_window(node: FakeNode) -> None:
    """All devices, since their begin."""
    found = watch(facts_of(node, None)).value
    assert found == TrafficReading(
        nixl_bytes=8 * _GIB, efa_tx_bytes=3 * _GIB, efa_rx_bytes=9 * _GIB, moved_devices=16
    )


def test_efa_window_holds_the_engines(node: FakeNode, engine: EngineDouble) -> None:
    """It begins earlier: a transfer that began before vLLM's window and ends in it counts."""
    waits: list[float] = []

    def sleep(for_s: float) -> None:
        waits.append(for_s)
        if for_s == LEAD_S:  # the transfer's bytes arrive before vLLM's window
            node.count(tx_bytes=3 * _GIB, rx_bytes=10 * _GIB)
        else:  # it ends, and vLLM counts it
            engine.samples[_NIXL] = SERVED[_NIXL] + _GIB

    found = watch(facts_of(node, Window(10.0)), sleep).value
    assert waits == [LEAD_S, 10.0]
    assert found is not None
    assert (found.nixl_bytes, found.efa_rx_bytes, found.efa_tx_bytes) == (_GIB, _GIB, 0)
    assert found.window_s == 10.0
    assert judge(found).status == "pass"


def test_window_begins_when_it_is_told_to(node: FakeNode) -> None:
    """EFA's begins by the lead earlier, so that vLLM's begins at the moment."""
    waits: list[float] = []
    watch(facts_of(node, Window(10.0, at_unix_s=1030.0)), waits.append, lambda: 1000.0)
    assert waits == [pytest.approx(30.0 - LEAD_S), LEAD_S, 10.0]
    late = watch(facts_of(node, Window(10.0, at_unix_s=1000.0)), waits.append, lambda: 1002.0)
    assert late.problem == "asked 3.0 s after the window's begin"
    assert len(waits) == 3


@pytest.mark.parametrize("ahead_s", [3600.0, 1e300])
def test_window_far_ahead_is_not_waited_for(ahead_s: float, node: FakeNode) -> None:
    """A node whose clock is an hour late answers, and its `clock` can be read."""
    facts = facts_of(node, Window(10.0, at_unix_s=time.time() + ahead_s))
    assert extra_s(facts) == 0
    assert "see `clock`" in watch(facts, lambda _s: pytest.fail("it waits")).problem


def _restart_engine(node: FakeNode, engine: EngineDouble) -> None:
    engine.samples[_NIXL] = 5.0


def _reload_driver(node: FakeNode, engine: EngineDouble) -> None:
    node.count(0, 0)


def _lose_a_device(node: FakeNode, engine: EngineDouble) -> None:
    node.drop_efa(83, is_attached=True)


@pytest.mark.parametrize("event", [_restart_engine, _reload_driver, _lose_a_device])
def test_counters_that_begin_anew_are_told(
    event: Callable[[FakeNode, EngineDouble], None], node: FakeNode, engine: EngineDouble
) -> None:
    """A difference of them would be no count."""

    def sleep(for_s: float) -> None:
        if for_s == 10.0:
            event(node, engine)

    found = watch(facts_of(node, Window(10.0)), sleep)
    assert found.value is None
    assert "counters began anew" in found.problem


def test_engine_that_does_not_answer_is_told(node: FakeNode) -> None:
    """And one that does not run."""
    node.status(url="http://127.0.0.1:9")
    assert watch(facts_of(node, None)).problem == "the engine does not answer /metrics"
    node.remove("run/turnback/status.json")
    assert watch(facts_of(node, None)).problem.startswith("no engine runs: no /run/")


def test_counters_that_are_junk_are_left_out(node: FakeNode) -> None:
    """As those that are missing."""
    folder = "sys/class/infiniband/{}/ports/1/hw_counters"
    node.write(folder.format("rdmap79s0") + "/tx_bytes", "a lot\n")
    node.remove(folder.format("rdmap80s0") + "/rx_bytes")
    assert len(counters(node.machine)) == 14


def test_doctor_watches_a_window_beside_its_checks(node: FakeNode, engine: EngineDouble) -> None:
    """By the real clock: its finding, the devices that carried, and the counts in the answer."""

    def transfer() -> None:
        engine.samples[_NIXL] = SERVED[_NIXL] + _GIB

    received = threading.Timer(LEAD_S / 2, node.count, (3 * _GIB, 10 * _GIB))
    ended = threading.Timer(LEAD_S + 0.3, transfer)
    received.start()
    ended.start()
    asked = [each for each in CHECKS if each.name in ("traffic", "rails")]
    report = run_doctor(facts_of(node, Window(0.8)), asked)
    assert report.worst == "pass", report.findings
    assert report.findings[0].evidence.startswith("in 0.8 s: vLLM read 1024.0 MiB")
    assert report.findings[1].evidence == "16 of 16 devices carried KV"
    assert report.traffic == TrafficReading(
        window_s=0.8, nixl_bytes=_GIB, efa_tx_bytes=0, efa_rx_bytes=_GIB, moved_devices=16
    )
    assert report.took_s >= LEAD_S + 0.8
