"""Good nodes pass, and every fault trips its check and no other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.contract.doctor import DoctorReport, Stage
from runtime.launch.doctor.check import Facts
from runtime.launch.doctor.checks import CHECKS, checks_of
from runtime.launch.doctor.facts import gather
from runtime.launch.doctor.run import run_doctor
from tests.launch.engine_double import EngineDouble, engine_double
from tests.launch.fake_node import FakeNode, Kind
from tests.launch.faults import FAULTS, Fault
from tests.launch.nodes import P5EN, P6_B300, good_node

_GIB = 2**30
QUICK_S = 1.0
"""In place of the time-outs of a node's programs."""


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    """Of a node that has served."""
    with engine_double() as double:
        yield double


def node_at(
    root: Path, stage: Stage, engine: EngineDouble, kind: Kind = P5EN, role: str = "decode"
) -> FakeNode:
    """A good node; at stage live it has moved its engine's KV over EFA."""
    node = good_node(root, kind, url=engine.url if stage == "live" else "", role=role)
    node.count(tx_bytes=3 * _GIB, rx_bytes=9 * _GIB)
    return node


def facts_of(node: FakeNode, stage: Stage) -> Facts:
    """What its doctor starts from."""
    return gather(node.machine, stage, lambda: node.spec_text)


def others(report: DoctorReport) -> dict[str, str]:
    """Evidence of what is no pass, less what only points at another check's finding."""
    return {
        each.check: f"{each.status}: {each.evidence}"
        for each in report.findings
        if each.status != "pass" and not each.fix.startswith("see the finding of")
    }


@pytest.mark.parametrize("kind", [P5EN, P6_B300], ids=lambda kind: kind.instance)
@pytest.mark.parametrize("stage", ["image", "boot", "live"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_good_node_passes(
    kind: Kind, stage: Stage, role: str, tmp_path: Path, engine: EngineDouble
) -> None:
    """Every check of every stage, without a warning."""
    node = node_at(tmp_path, stage, engine, kind, role)
    report = run_doctor(facts_of(node, stage))
    assert others(report) == {}
    assert [each.check for each in report.findings] == [each.name for each in checks_of(stage)]
    assert report.worst == "pass"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_trips_its_check_alone(fault: Fault, tmp_path: Path, engine: EngineDouble) -> None:
    """With the evidence and a fix."""
    node = node_at(tmp_path, fault.stage, engine)
    fault.breaks(node, engine)
    quick = [
        replace(each, timeout_s=min(each.timeout_s, QUICK_S)) for each in checks_of(fault.stage)
    ]
    report = run_doctor(fault.asks(facts_of(node, fault.stage)), quick)
    found = others(report)
    assert list(found) == [fault.check], found
    assert found[fault.check].startswith(f"{fault.status}: ")
    assert fault.told in found[fault.check]
    assert all(each.fix for each in report.findings if each.status != "pass")


def test_every_check_has_a_fault() -> None:
    """A check that nothing trips would be no check."""
    assert {each.check for each in FAULTS} == {each.name for each in CHECKS}
    assert len({each.name for each in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.check in {each.name for each in checks_of(fault.stage)}
