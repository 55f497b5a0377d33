"""Boot and doctor agree about nodes: what fails at stage boot is not started."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.contract.status import KIT_STAMP, BootReport
from runtime.errors import BadInput, StartFailed, TurnbackError
from runtime.launch.boot.boot import serve
from runtime.launch.boot.engine import LOGS
from runtime.launch.boot.examine import boot_checks, examine
from runtime.launch.doctor.check import Check
from runtime.launch.doctor.checks import checks_of
from runtime.launch.doctor.facts import gather
from runtime.launch.doctor.run import run_doctor
from runtime.local.checks import free_ports
from tests.launch.boot.node import KIT, boot_file, journal, node, sources, until
from tests.launch.engine_double import EngineDouble
from tests.launch.fake_node import FakeNode, Kind
from tests.launch.faults import FAULTS, Fault
from tests.launch.nodes import P5EN, P6_B300, good_node

OWN_STEPS = {"image-file": "image", "spec": "spec", "efa-devices": "transport"}
"""Checks that a step of boot's own comes before."""
OF_AN_ENGINE = {
    *("boot failed", "still booting", "engine restarts"),
    *("low memlock of the engine", "older vLLM still runs"),
}
"""Faults of checks of stage boot that are seen once an engine runs, or has."""
AT_BOOT = [
    each
    for each in FAULTS
    if each.check in {check.name for check in checks_of("boot")} and each.name not in OF_AN_ENGINE
]


def machine_of(root: Path, kind: Kind = P5EN, role: str = "decode") -> FakeNode:
    """A good node with the kit, whose engine has a port of its own."""
    made = good_node(root, kind, role=role)
    made.write(str(KIT_STAMP), KIT)
    raw = json.loads(made.spec_text)
    made.spec_text = json.dumps(raw | {"serving": raw["serving"] | {"port": free_ports(1)[0]}})
    return made


async def refusal(made: FakeNode, checks: Sequence[Check]) -> tuple[TurnbackError, BootReport, str]:
    """Boot it in vain: why, what boot.json says, and the journal."""
    told, stream = journal(made.machine)
    of = node(made.machine, device_wait_s=0.0, checks=checks, patience_s=0.0)
    with pytest.raises(TurnbackError) as failure:
        await serve(of, sources(made.spec_text), told, lambda: 1.0)
    assert not made.machine.at(LOGS).exists()
    return failure.value, boot_file(made.machine), stream.getvalue()


async def lines_of_a_boot(made: FakeNode) -> str:
    """Boot it until it serves; its journal."""
    told, stream = journal(made.machine)
    task = asyncio.create_task(
        serve(node(made.machine, checks=boot_checks()), sources(made.spec_text), told, lambda: 1.0)
    )
    await until(lambda: task.done() or told.report.state == "serving")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return stream.getvalue()


@pytest.mark.parametrize("kind", [P5EN, P6_B300], ids=lambda kind: kind.instance)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_good_node_boots(kind: Kind, role: str, tmp_path: Path) -> None:
    """Asked everything that the doctor asks at stage boot, but about this boot."""
    told = await lines_of_a_boot(machine_of(tmp_path, kind, role))
    asked = len(checks_of("boot")) - 1
    assert f"checks: {asked} checks of the doctor, none fails; the slowest, " in told
    assert "warns" not in told


@pytest.mark.parametrize(
    "fault", [each for each in AT_BOOT if each.status == "fail"], ids=lambda fault: fault.name
)
async def test_node_that_doctor_fails_is_not_started(fault: Fault, tmp_path: Path) -> None:
    """Refused by the check's name, with its evidence and fix, in the journal and in the file.

    An image that is wrong ends the unit for good; a machine that is wrong is tried again.
    """
    made = machine_of(tmp_path)
    fault.breaks(made, EngineDouble())
    doctor = run_doctor(gather(made.machine, "boot", lambda: made.spec_text), quick(fault))
    seen = next(each for each in doctor.findings if each.check == fault.check)
    assert seen.status == "fail"
    error, report, told = await refusal(made, quick(fault))
    step = OWN_STEPS.get(fault.check, "checks")
    assert (report.state, report.step, report.starts) == ("failed", step, 0)
    if step == "checks":
        assert report.what.endswith(f"asks: {fault.check}")
        assert report.got.startswith(f"{fault.check}: ")
        assert f"checks: {fault.check} fails; got: {seen.evidence}"[:120] in told
        title = next(each.title for each in checks_of("boot") if each.name == fault.check)
        assert report.allowed == f"{fault.check}: {title}"
        assert f"; fix: {seen.fix}"[:60] in told
        is_of_image = "image" in next(
            each.stages for each in checks_of("boot") if each.name == fault.check
        )
        assert type(error) is (BadInput if is_of_image else StartFailed)


def quick(fault: Fault) -> list[Check]:
    """Boot's checks; what hangs is not waited for long."""
    most_s = 1.0 if "hangs" in fault.name else 60.0
    return [replace(each, timeout_s=min(each.timeout_s, most_s)) for each in boot_checks()]


@pytest.mark.parametrize(
    "fault", [each for each in AT_BOOT if each.status == "warn"], ids=lambda fault: fault.name
)
async def test_node_that_doctor_warns_of_is_started(fault: Fault, tmp_path: Path) -> None:
    """And the journal says what the doctor would."""
    made = machine_of(tmp_path)
    fault.breaks(made, EngineDouble())
    if fault.name == "no room for the model":  # its sync brings it
        raw = json.loads(made.spec_text)
        model = raw["serving"] | {"model": "/opt/turnback/models/Qwen/other/1"}
        made.spec_text = json.dumps(raw | {"serving": model})
        with pytest.raises(StartFailed, match="no model to serve"):
            await lines_of_a_boot(made)
        return
    told = await lines_of_a_boot(made)
    assert f"checks: {fault.check} warns; got: " in told
    assert fault.told in told


def test_faults_of_an_engine_are_none_at_boot(tmp_path: Path) -> None:
    """The list above leaves out nothing that stage boot would see."""
    for number, fault in enumerate(each for each in FAULTS if each.name in OF_AN_ENGINE):
        made = machine_of(tmp_path / str(number))
        if fault.check == "boot":
            assert fault.check not in {each.name for each in boot_checks()}
            continue
        double = EngineDouble()
        fault.breaks(made, double)
        asked = [each for each in boot_checks() if each.name == fault.check]
        examine(made.machine, made.spec(), asked, lambda _line: None, patience_s=0)


class Time:
    """A clock that its sleeps move; the node is mended meanwhile."""

    def __init__(self, mend: Any, at_s: float) -> None:
        self.now_s, self.mend, self.at_s = 0.0, mend, at_s

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now_s += seconds
        if self.now_s >= self.at_s:
            self.mend()


def examined(made: FakeNode, time: Time, said: list[str]) -> str:
    """As boot does it."""
    asked = [each for each in boot_checks() if each.name in ("clock", "rdma-core", "ports")]
    return examine(
        *(made.machine, made.spec(), asked, said.append),
        patience_s=10,
        clock=lambda: time.now_s,
        sleep=time.sleep,
    )


def test_clock_that_is_not_kept_yet_is_waited_for(tmp_path: Path) -> None:
    """chrony takes some seconds after the machine's start: told once, then it is good."""
    made, said = machine_of(tmp_path), list[str]()
    made.clock(leap="Not synchronised")
    assert "none fails" in examined(made, Time(made.clock, 6.0), said)
    assert [line.split(";")[0] for line in said] == ["clock fails"]


def test_machine_that_stays_wrong_is_refused(tmp_path: Path) -> None:
    """A wait has an end."""
    made, time = machine_of(tmp_path), Time(lambda: None, 1e9)
    made.clock(leap="Not synchronised")
    with pytest.raises(StartFailed, match="clock"):
        examined(made, time, [])
    assert 10 <= time.now_s <= 12


def test_wrong_image_is_not_waited_for(tmp_path: Path) -> None:
    """And every failed check is named, also those that might yet pass."""
    made, time = machine_of(tmp_path), Time(lambda: None, 1e9)
    made.clock(leap="Not synchronised")
    made.packages(rdma_core="50.0")
    with pytest.raises(BadInput, match="asks: rdma-core, clock") as failure:
        examined(made, time, [])
    assert time.now_s == 0
    assert "rdma-core 50.0" in failure.value.got


@pytest.mark.parametrize("field", ["transport", "cpu"])
def test_what_a_spec_does_not_want_is_not_asked(field: str, tmp_path: Path) -> None:
    """No transport: nothing of EFA. A CPU engine: nothing of GPUs."""
    made = machine_of(tmp_path)
    made.fi_info(broken="exit 61")
    made.gpus(7)
    cpu = {"cores": [*range(8)], "kv_cache_gib": 1}
    made.spec_text = json.dumps(
        json.loads(made.spec_text) | {field: cpu if field == "cpu" else None}
    )
    left = {"transport": "gpus", "cpu": "fi-info"}[field]
    with pytest.raises(StartFailed, match=rf"asks: {left}\n"):
        examine(made.machine, made.spec(), boot_checks(), lambda _line: None, patience_s=0)


def test_tcp_that_is_allowed_is_no_failure(tmp_path: Path) -> None:
    """As the doctor: told, and served over."""
    made, said = machine_of(tmp_path), list[str]()
    made.fi_info(broken="exit 61")
    transport = {"efa_devices": 16, "allow_tcp": True}
    made.spec_text = json.dumps(json.loads(made.spec_text) | {"transport": transport})
    assert "none fails" in examine(made.machine, made.spec(), boot_checks(), said.append)
    assert said[0].startswith("fi-info warns; got: no efa")
