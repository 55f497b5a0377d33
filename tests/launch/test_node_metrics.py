"""What a machine tells CloudWatch, read from a tree of files and a server that answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.contract import node_metrics as names
from runtime.engine_api import NIXL_BYTES, REASONS, Receipt
from runtime.launch.machine import Machine
from runtime.launch.node_metrics import (
    ENGINE_SOURCES,
    REFUSALS,
    ROUTER_SOURCES,
    Since,
    read,
)
from runtime.router.metrics import RouterMetrics
from tests.launch.engine_double import EngineDouble, closed_port, engine_double
from tests.launch.fake_node import FakeNode
from tests.launch.nodes import good_node, serve


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    with engine_double() as double:
        yield double


@pytest.fixture
def node(tmp_path: Path, engine: EngineDouble) -> FakeNode:
    """A P5en node whose engine has read 8 GiB."""
    return good_node(tmp_path, url=engine.url)


def test_engine_and_devices_are_read(node: FakeNode, engine: EngineDouble) -> None:
    """Sums over labels and devices, in CloudWatch's units."""
    engine.samples |= {
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:nixl_num_failed_transfers_total": 2,
        "vllm:nixl_num_failed_notifications_total": 3,
    }
    node.count(16_000, 32_000)
    seen = read(node.machine, "decode")
    assert seen.is_answering
    assert seen.gauges[names.KV_USAGE] == 25
    assert seen.totals[names.READ_BYTES] == 8 * 2**30
    assert seen.totals[names.FAILED_READS] == 5
    assert seen.totals[names.EFA_TX_BYTES] == 16_000
    assert seen.totals[names.EFA_RX_BYTES] == 32_000


def test_minute_tells_what_was_added(node: FakeNode, engine: EngineDouble) -> None:
    """The first reading tells where counters stand; nothing is told twice."""
    since = Since()
    first = read(node.machine, "decode")
    assert names.READ_BYTES not in since.values(first)
    assert since.values(first)[names.ANSWERING] == 1
    since.sent(first)
    engine.samples[NIXL_BYTES] += 500
    node.count(0, 700)
    second = read(node.machine, "decode")
    told = since.values(second)
    assert (told[names.READ_BYTES], told[names.EFA_RX_BYTES]) == (500, 16 * (700 // 16))
    assert told[names.FAILED_READS] == 0
    since.sent(second)
    assert since.values(read(node.machine, "decode"))[names.READ_BYTES] == 0


def test_minute_that_did_not_arrive_is_part_of_the_next(
    node: FakeNode, engine: EngineDouble
) -> None:
    """Sums stay true when AWS does not answer."""
    since = Since()
    since.sent(read(node.machine, "decode"))
    engine.samples[NIXL_BYTES] += 500
    since.values(read(node.machine, "decode"))  # not sent
    engine.samples[NIXL_BYTES] += 40
    assert since.values(read(node.machine, "decode"))[names.READ_BYTES] == 540


def test_engine_that_began_anew_counts_from_its_start(node: FakeNode, engine: EngineDouble) -> None:
    """Never a negative number."""
    since = Since()
    since.sent(read(node.machine, "decode"))
    engine.samples[NIXL_BYTES] = 60
    assert since.values(read(node.machine, "decode"))[names.READ_BYTES] == 60


@pytest.mark.parametrize("harm", ["no status", "no answer", "no page", "broken status"])
def test_machine_whose_process_does_not_answer_says_so(
    harm: str, node: FakeNode, engine: EngineDouble
) -> None:
    """Its devices are told all the same, and the engine's counters stand where they stood."""
    since = Since()
    since.sent(read(node.machine, "prefill"))
    before = dict(engine.samples)
    status = "run/turnback/status.json"
    if harm == "no status":
        node.remove(status)
    elif harm == "broken status":
        node.write(status, "{")
    elif harm == "no answer":
        serve(node, f"http://127.0.0.1:{closed_port()}")
    else:
        engine.samples = {"this is no metric\x00{": 1.0}
    seen = read(node.machine, "prefill")
    told = since.values(seen)
    assert told[names.ANSWERING] == 0
    assert told[names.EFA_RX_BYTES] == 0
    assert not {names.READ_BYTES, names.KV_USAGE} & set(told)
    since.sent(seen)
    engine.samples = before | {NIXL_BYTES: before[NIXL_BYTES] + 9}
    serve(node, engine.url)
    assert since.values(read(node.machine, "prefill"))[names.READ_BYTES] == 9


def test_sources_are_all_metrics_of_a_role() -> None:
    """Every name of the contract has a source, and none is told twice."""
    engine = [each.metric for each in ENGINE_SOURCES]
    devices = [names.EFA_TX_BYTES, names.EFA_RX_BYTES]
    assert sorted([names.ANSWERING, *engine, *devices]) == sorted(names.ENGINE_METRICS)
    router = [names.ANSWERING, *(each.metric for each in ROUTER_SOURCES)]
    assert sorted(router) == sorted(names.ROUTER_METRICS)
    assert set(REFUSALS) < set(REASONS)


@pytest.fixture
def router(tmp_path: Path, engine: EngineDouble) -> Machine:
    """A machine whose router answers with the double's text."""
    status = tmp_path / "run/turnback/status.json"
    status.parent.mkdir(parents=True)
    fields = {"format": 1, "role": "router", "generation": "aa", "url": engine.url}
    status.write_text(json.dumps(fields), "utf-8")
    return Machine(tmp_path)


def test_router_is_read_by_its_own_names(router: Machine, engine: EngineDouble) -> None:
    """Each source finds what a router counts, and leaves out what is not meant."""
    counts = RouterMetrics()
    for outcome in ("done", "done", "failed"):
        counts.turn("chat", "warm", outcome)
    for stage, seconds in (("queue", 0.01), ("take", 0.02), ("prefill", 0.3), ("first_byte", 0.1)):
        counts.stage(stage, seconds)
    counts.stage("whole", 9.0)
    counts.observe("prefill", Receipt(900, 800, 100, 700, "pulled"))
    counts.observe("prefill", Receipt(50, 0, 0, 0, "no_match"))
    counts.observe("prefill", Receipt(50, 0, 0, 0, "spent"))
    counts.observe("decode", Receipt(7, 0, 0, 7, "malformed"))
    for outcome in ("equal", "noise", "different"):
        counts.canary(outcome)
    engine.text = counts.page().decode()
    seen = read(router, "router")
    told = {metric.name: value for metric, value in (seen.totals | seen.gauges).items()}
    assert told == {
        "Turns": 3,
        "TurnsFailed": 1,
        "FirstTokens": 1,
        "TtftSumMs": pytest.approx(430),
        "OfferedTokens": 1000,
        "PulledTokens": 700,
        "LocalTokens": 100,
        "RefusedHandles": 2,
        "CanaryRuns": 3,
        "CanaryDifferences": 1,
        "ReuseOn": 1,
    }


def test_router_without_a_turn_tells_zeroes(router: Machine, engine: EngineDouble) -> None:
    """An alarm that has begun ends when nothing more is counted."""
    engine.text = RouterMetrics().page().decode()
    seen = read(router, "router")
    assert set(seen.totals | seen.gauges) == set(names.ROUTER_METRICS) - {names.ANSWERING}
    assert set(seen.totals.values()) == {0.0}
