"""Whatever a check does, the doctor ends in time with a finding of it."""

import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from runtime.contract.doctor import MOST_CHARACTERS, DoctorFinding, DoctorReport, NodeFacts, Stage
from runtime.errors import BadInput
from runtime.launch.doctor.check import Check, Facts, File, Finding, Look, Window, failed, passed
from runtime.launch.doctor.checks import CHECKS
from runtime.launch.doctor.facts import SPEC_S, gather
from runtime.launch.doctor.run import GRACE_S, critical_path_s, extra_s, run_doctor
from runtime.launch.machine import Machine
from tests.launch.nodes import good_node

SSM_CHARACTERS = 24_000
"""GetCommandInvocation gives back no more of an output."""


def check(look: object, **fields: object) -> Check:
    """One that is asked at boot."""
    named = {"name": "one", "title": "", "stages": ("boot",), "timeout_s": 0.3, "fix": "mend it"}
    return Check(**(named | fields), look=look)  # type: ignore[arg-type]


def bare(root: Path) -> Facts:
    """Of a machine with nothing on it."""
    return Facts(Machine(root, str(root)), "boot")


def test_time_outs_sum_to_at_most_20_s() -> None:
    """On the critical path: the parameter, then all checks side by side."""
    for stage in get_args(Stage):
        assert critical_path_s(stage) <= 20
        own = [each.timeout_s for each in CHECKS if stage in each.stages]
        assert critical_path_s(stage) >= max(own)
    assert critical_path_s("boot") == pytest.approx(SPEC_S + 14 + GRACE_S)


def test_program_that_hangs_is_told_with_its_wait(tmp_path: Path) -> None:
    """It and what it started are ended; the fix is the check's."""
    node = good_node(tmp_path)
    node.program("slow", "/bin/sleep 60 & exec /bin/sleep 60")

    def look(one: Look) -> Finding:
        return passed(one.run(("slow", "--word")).out)

    began_s = time.monotonic()
    report = run_doctor(gather(node.machine, "boot", lambda: node.spec_text), [check(look)])
    assert time.monotonic() - began_s < 2
    finding = report.findings[0]
    assert (finding.status, finding.fix) == ("fail", "mend it")
    assert finding.evidence == "`slow --word`: no end within 0.3 s"
    assert report.worst == "fail"


def test_endless_output_is_read_and_not_kept(tmp_path: Path) -> None:
    """Of 64 MiB the last 64 KiB stay, in memory too."""
    tracemalloc.start()
    ran = Machine(tmp_path).run(("head", "-c", "64M", "/dev/zero"), 10.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (ran.code, len(ran.out)) == (0, 64 * 1024)
    assert peak_bytes < 4 * 2**20


def test_child_that_left_its_session_is_not_waited_for(tmp_path: Path) -> None:
    """It outlives what started it, and holds its output open."""
    began_s = time.monotonic()
    ran = Machine(tmp_path).run(("sh", "-c", "setsid sleep 12 & sleep 12"), 0.3)
    assert time.monotonic() - began_s < 8
    assert (ran.code, ran.err) == (None, "no end within 0.3 s")


def test_check_that_hangs_by_itself_is_told(tmp_path: Path) -> None:
    """A process that the kernel holds cannot be killed; the others' findings stand."""
    is_over = threading.Event()

    def stuck(_: Look) -> Finding:
        is_over.wait(30)
        return passed("too late")

    checks = [check(stuck, name="stuck"), check(lambda _: passed("well"), name="well")]
    began_s = time.monotonic()
    report = run_doctor(bare(tmp_path), checks)
    is_over.set()
    assert time.monotonic() - began_s < GRACE_S + 1
    assert [each.status for each in report.findings] == ["fail", "pass"]
    assert report.findings[0].evidence.startswith("the check has not ended (waited 1.")


def test_checks_run_side_by_side(tmp_path: Path) -> None:
    """Twenty that each take a fifth of a second do not take four."""

    def look(_: Look) -> Finding:
        time.sleep(0.2)
        return passed("done")

    checks = [check(look, name=f"c{number}", timeout_s=3) for number in range(20)]
    report = run_doctor(bare(tmp_path), checks)
    assert report.worst == "pass"
    assert report.took_s < 2


def test_exception_is_a_finding(tmp_path: Path) -> None:
    """Never a traceback."""

    def look(_: Look) -> Finding:
        raise KeyError("rdmap0")

    finding = run_doctor(bare(tmp_path), [check(look)]).findings[0]
    assert finding.status == "fail"
    assert finding.evidence == "the check broke: KeyError: 'rdmap0'"


def test_missing_program_is_a_finding(tmp_path: Path) -> None:
    """With its name."""
    finding = run_doctor(
        bare(tmp_path), [check(lambda look: passed(look.run(("nvidia-smi",)).out))]
    ).findings[0]
    assert finding.status == "fail"
    assert "`nvidia-smi`: [Errno 2] No such file" in finding.evidence


def test_empty_machine_fails_without_a_break(tmp_path: Path) -> None:
    """Every check of every stage copes with a machine that has nothing."""
    for stage in get_args(Stage):
        facts = gather(Machine(tmp_path, str(tmp_path)), stage, lambda: "")
        report = run_doctor(facts)
        assert report.worst == "fail"
        assert not [each for each in report.findings if "the check broke" in each.evidence]
        assert all(each.fix for each in report.findings if each.status != "pass")


def test_parameter_that_does_not_come_is_waited_for_briefly(tmp_path: Path) -> None:
    """And so is one that AWS refuses."""
    node = good_node(tmp_path)

    is_over = threading.Event()

    def never() -> str:
        is_over.wait(30)
        return ""

    def refused() -> str:
        raise BadInput("parameter /p cannot be read", got="AccessDenied", allowed="", fix="")

    began_s = time.monotonic()
    late = gather(node.machine, "boot", never, spec_s=0.1).spec
    assert time.monotonic() - began_s < 3
    is_over.set()
    assert late == File(problem="the node's parameter: no answer (waited 0.1 s)")
    told = gather(node.machine, "boot", refused).spec
    assert told == File(problem="parameter /p cannot be read: AccessDenied")


@pytest.mark.parametrize(
    ("changes", "of", "status"),
    [
        ({"transport": {"efa_devices": 16, "allow_tcp": True}}, "efa", "warn"),
        ({"transport": {"efa_devices": 16}}, "efa", "fail"),
        ({"transport": None}, "efa", "pass"),
        ({"cpu": {"cores": list(range(8)), "kv_cache_gib": 1}}, "gpu", "pass"),
        ({"transport": None}, "gpu", "fail"),
        ({"transport": None}, "node", "fail"),
    ],
)
def test_what_the_spec_does_not_want_does_not_fail(
    changes: dict[str, object], of: str, status: str, tmp_path: Path
) -> None:
    """EFA where TCP is allowed or peers are on this machine; GPUs of a CPU engine."""
    import json

    node = good_node(tmp_path)
    node.spec_text = json.dumps(json.loads(node.spec_text) | changes)
    facts = gather(node.machine, "boot", lambda: node.spec_text)
    assert facts.spec.value is not None, facts.spec.problem
    report = run_doctor(facts, [check(lambda _: failed("no", "do"), of=of)])
    assert report.findings[0].status == status


def test_routers_image_is_asked_for_its_file_alone(tmp_path: Path) -> None:
    """It has neither EFA nor an engine; what is no image of this kit fails all the same."""
    machine = Machine(tmp_path, path="")
    file = machine.at("/etc/turnback/image.json")
    file.parent.mkdir(parents=True)
    fields = '"kind": "router", "built_at": "2026-11-30T12:00:00Z", "python": "3.12.3"'
    file.write_text(f'{{"format": 1, {fields}}}', "utf-8")
    found = run_doctor(gather(machine, "image", lambda: "")).findings
    assert {one.status for one in found} == {"pass"}
    file.write_text("{}", "utf-8")
    found = run_doctor(gather(machine, "image", lambda: "")).findings
    assert "image-file" in {one.check for one in found if one.status == "fail"}


def test_longest_answer_fits_into_what_ssm_gives_back() -> None:
    """Texts are cut in their middle: the end of a complaint often has the reason."""
    text = 'the "end" \n' * 200 + "tells"
    longest = DoctorReport(
        stage="live",
        role="prefill",
        took_s=1.0,
        findings=tuple(
            DoctorFinding(check=each.name, status="fail", evidence=text, fix="f" * 120)
            for each in CHECKS
        ),
        facts=NodeFacts(**{name: text for name in NodeFacts.model_fields if name != "efa_devices"}),
    )
    assert len(longest.facts.driver) <= MOST_CHARACTERS
    assert len(longest.findings[0].evidence) <= MOST_CHARACTERS
    assert longest.findings[0].evidence.endswith("tells")
    assert len(longest.model_dump_json()) < SSM_CHARACTERS


def test_junk_of_a_program_is_neither_long_nor_obeyed() -> None:
    """JSON needs six characters for what cannot be printed, and a terminal obeys some of it."""
    found = DoctorFinding(check="a", status="fail", evidence="\x1b[2Jgone\x00" + "\x01" * 500)
    assert found.evidence.startswith("?[2Jgone??")
    assert len(found.model_dump_json()) < MOST_CHARACTERS + 100


def test_fixes_are_short(tmp_path: Path) -> None:
    """So that the answer above is the longest."""
    assert all(len(each.fix) <= 120 for each in CHECKS)


def test_window_lengthens_the_checks_of_traffic_alone(tmp_path: Path) -> None:
    """By the lead, the window, and the wait until it begins."""
    facts = replace(bare(tmp_path), window=Window(10.0, time.time() + 20))
    assert extra_s(facts) == pytest.approx(31, abs=0.5)
    assert extra_s(replace(facts, window=Window(10.0))) == 11
    assert extra_s(bare(tmp_path)) == 0
