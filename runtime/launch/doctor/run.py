"""Asks all checks of a stage at once."""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from runtime.contract.doctor import DoctorFinding, DoctorReport, NodeFacts, Stage, TrafficReading
from runtime.launch.doctor import parse
from runtime.launch.doctor.check import (
    Check,
    Facts,
    File,
    Finding,
    Look,
    Unanswered,
    failed,
    passed,
    warned,
)
from runtime.launch.doctor.checks import checks_of
from runtime.launch.doctor.facts import SPEC_S
from runtime.launch.doctor.libraries import EFA_PACKAGES
from runtime.launch.doctor.traffic import LEAD_S, MOST_AHEAD_S, watch

GRACE_S = 1.0
"""For a check whose own time is up to say so."""


def critical_path_s(stage: Stage) -> float:
    """Longest that a doctor without a window takes: the spec, then all checks at once."""
    spec_s = 0.0 if stage == "image" else SPEC_S
    return spec_s + max(check.timeout_s for check in checks_of(stage)) + GRACE_S


def run_doctor(facts: Facts, checks: Sequence[Check] | None = None) -> DoctorReport:
    """Ask all checks of the facts' stage; a check that raises or hangs has failed.

    Args:
        facts: of the node.
        checks: in place of the stage's, for tests.
    """
    began_s = time.monotonic()
    watched = _Watched(facts) if facts.stage == "live" else None
    if watched is not None:
        facts = replace(facts, traffic=watched.result)
    asked = checks_of(facts.stage) if checks is None else checks
    findings = _ask_all(facts, asked)
    spec = facts.spec.value
    reading = watched.result(0.0).value if watched is not None else None
    return DoctorReport(
        stage=facts.stage,
        role=spec.role if spec else "",
        took_s=round(time.monotonic() - began_s, 3),
        findings=tuple(findings),
        facts=_common(facts),
        traffic=reading,
    )


class _Watched:
    """Counters that are read beside the checks."""

    def __init__(self, facts: Facts) -> None:
        self._found: File[TrafficReading] = File(problem="the counters were not read in time")
        self._done = threading.Event()
        threading.Thread(target=self._read, args=(facts,), daemon=True).start()

    def _read(self, facts: Facts) -> None:
        try:
            self._found = watch(facts)
        except Exception as error:  # noqa: BLE001 - a check's edge: told as its finding
            self._found = File(problem=f"{type(error).__name__}: {error}")
        self._done.set()

    def result(self, wait_s: float) -> File[TrafficReading]:
        self._done.wait(max(0.0, wait_s))
        return self._found


def extra_s(facts: Facts) -> float:
    """How much longer checks of traffic may take, for the window that was asked for."""
    window = facts.window
    if window is None:
        return 0.0
    ahead_s = max(0.0, window.at_unix_s - time.time()) if window.at_unix_s is not None else 0.0
    return LEAD_S + window.length_s + ahead_s if ahead_s <= MOST_AHEAD_S else 0.0


def _ask_all(facts: Facts, checks: Sequence[Check]) -> list[DoctorFinding]:
    """One thread each. They are daemons: one that hangs does not keep the doctor."""
    answers: queue.SimpleQueue[tuple[str, DoctorFinding]] = queue.SimpleQueue()
    began_s = time.monotonic()
    limits_s = {each.name: _limit_s(facts, each) for each in checks}
    for check in checks:
        look = Look(facts, began_s + limits_s[check.name])
        work = threading.Thread(target=_ask, args=(check, look, answers), daemon=True)
        work.start()
    found: dict[str, DoctorFinding] = {}
    until_s = began_s + max(limits_s.values(), default=0.0) + GRACE_S
    while len(found) < len(checks):
        try:
            name, finding = answers.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            break
        found[name] = finding
    waited_s = time.monotonic() - began_s
    return [
        found.get(each.name) or _told(each, failed(_HANGS.format(waited_s), each.fix), waited_s)
        for each in checks
    ]


_HANGS = "the check has not ended (waited {:.1f} s)"


def _limit_s(facts: Facts, check: Check) -> float:
    return check.timeout_s + (extra_s(facts) if check.name in ("traffic", "rails") else 0.0)


def _ask(check: Check, look: Look, answers: "queue.SimpleQueue[tuple[str, DoctorFinding]]") -> None:
    began_s = time.monotonic()
    try:
        finding = _not_asked(check, look.facts) or _mild(check, look.facts, check.look(look))
    except Unanswered as error:
        finding = _mild(check, look.facts, failed(str(error), check.fix))
    except Exception as error:  # noqa: BLE001 - whatever a check meets is its finding
        finding = failed(f"the check broke: {type(error).__name__}: {error}", _REPORT_IT)
    answers.put((check.name, _told(check, finding, time.monotonic() - began_s)))


_REPORT_IT = "the node is of a form that this kit does not know; report it with this text"


def _not_asked(check: Check, facts: Facts) -> Finding | None:
    """A pass where neither EFA nor GPUs nor an engine is wanted."""
    spec, image = facts.spec.value, facts.image.value
    is_routers = facts.stage == "image" and image is not None and image.kind == "router"
    if is_routers and check.name != "image-file":
        return passed("not asked: a router's image")
    if spec is None:
        return None
    if check.of == "efa" and spec.transport is None:
        return passed("not asked: the spec names no transport between machines")
    if check.of == "gpu" and spec.cpu is not None:
        return passed("not asked: the spec is of a CPU engine")
    return None


def _mild(check: Check, facts: Facts, finding: Finding) -> Finding:
    """A warning where the spec allows TCP."""
    spec = facts.spec.value
    allows = spec is not None and spec.transport is not None and spec.transport.allow_tcp
    if allows and check.of == "efa" and finding.status == "fail":
        return warned(f"{finding.evidence} (transport.allow_tcp)", finding.fix)
    return finding


def _told(check: Check, finding: Finding, took_s: float) -> DoctorFinding:
    return DoctorFinding(
        check=check.name,
        status=finding.status,
        evidence=finding.evidence,
        fix=finding.fix,
        took_s=round(took_s, 3),
    )


def _common(facts: Facts) -> NodeFacts:
    """Read from files alone: these are compared, not judged."""
    packages = parse.efa_packages(facts.machine.text(EFA_PACKAGES) or "")
    image, status = facts.image.value, facts.status.value
    return NodeFacts(
        instance_type=facts.instance_name,
        efa_devices=len(facts.machine.efa_devices()),
        efa_installer=packages.get("installer", ""),
        libfabric=packages.get("libfabric1-aws", packages.get("libfabric1", "")),
        rdma_core=packages.get("rdma-core", ""),
        driver=facts.machine.text("/sys/module/nvidia/version") or "",
        engine=(image.engine or "") if image else "",
        nixl=(image.nixl or "") if image else "",
        generation=status.generation if status else "",
    )
