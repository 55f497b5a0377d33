"""What the doctor fails before an engine starts, boot refuses to start one on."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from runtime.contract.doctor import DoctorFinding
from runtime.contract.node import NodeSpec
from runtime.errors import BadInput, StartFailed, TurnbackError
from runtime.launch.doctor.check import Check, File
from runtime.launch.doctor.checks import checks_of
from runtime.launch.doctor.facts import files_of
from runtime.launch.doctor.run import run_doctor
from runtime.launch.machine import Machine

PATIENCE_S = 60.0
"""chrony and udev take some seconds after the machine's start."""
_PAUSE_S = 2.0
_SLOWER = 4
"""Programs that a new machine runs for the first time wait for their disk.

Source: EC2's guide, "Initialize EBS volumes": the blocks of a volume that was made from a
snapshot come from S3 when they are first read.
"""


def boot_checks(without: Collection[str] = ()) -> tuple[Check, ...]:
    """The doctor's of stage boot, with time; `boot` asks about this boot itself.

    Args:
        without: names of checks that must not keep the node from serving.

    Raises:
        BadInput: there is no such check.
    """
    known = tuple(each for each in checks_of("boot") if each.name != "boot")
    names = [each.name for each in known]
    if unknown := sorted({*without} - {*names}):
        raise BadInput(
            "checks are left out that boot does not ask",
            got=", ".join(unknown),
            allowed=", ".join(names),
            fix="give one of these to --without-check, or nothing",
        )
    asked = (each for each in known if each.name not in without)
    return tuple(replace(each, timeout_s=each.timeout_s * _SLOWER) for each in asked)


def examine(
    machine: Machine,
    spec: NodeSpec,
    checks: Sequence[Check],
    say: Callable[[str], None],
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Ask checks, all at once; returns a line when none fails.

    Those that do not look at the image are asked again, since a clock, a port and a device
    may yet become right.

    Args:
        machine: the node.
        spec: its own.
        checks: from `boot_checks`.
        say: told of each warning and failure.
        patience_s: how long checks are asked again.
        clock, sleep: the real ones, but in tests.

    Raises:
        BadInput: the image fails one: another start changes nothing.
        StartFailed: the machine fails one.
    """
    began_s, told = clock(), set[str]()
    found = left = _ask(machine, spec, checks)
    while True:
        for each in left:
            if each.status != "pass" and each.check not in told:
                say(_line(each, checks))
                told.add(each.check)
        failed = {each.check for each in left if each.status == "fail"}
        again = [each for each in checks if each.name in failed]
        if not failed:
            slowest = max(found, key=lambda each: each.took_s, default=None)
            took = f"; the slowest, {slowest.check}, took {slowest.took_s:.1f} s" if slowest else ""
            return f"{len(checks)} checks of the doctor, none fails{took}{_unasked(checks)}"
        if any(map(_is_of_image, again)) or clock() - began_s >= patience_s:
            raise _refused([each for each in left if each.check in failed], again)
        sleep(_PAUSE_S)
        left = _ask(machine, spec, again)


def _unasked(asked: Sequence[Check]) -> str:
    names = {each.name for each in asked}
    left = [each.name for each in boot_checks() if each.name not in names]
    return f"; not asked: {', '.join(left)}" if left else ""


def _ask(machine: Machine, spec: NodeSpec, checks: Sequence[Check]) -> tuple[DoctorFinding, ...]:
    facts = replace(files_of(machine, "boot"), spec=File(spec))
    return run_doctor(facts, checks).findings


def _is_of_image(check: Check) -> bool:
    return "image" in check.stages


def _line(found: DoctorFinding, checks: Sequence[Check]) -> str:
    title = next(each.title for each in checks if each.name == found.check)
    verb = "fails" if found.status == "fail" else "warns"
    return f"{found.check} {verb}; got: {found.evidence}; allowed: {title}; fix: {found.fix}"


def _refused(failed: Sequence[DoctorFinding], checks: Sequence[Check]) -> TurnbackError:
    kind = BadInput if any(map(_is_of_image, checks)) else StartFailed
    names = ", ".join(each.check for each in failed)
    return kind(
        f"the node fails what turnback doctor --stage boot asks: {names}",
        got="; ".join(f"{each.check}: {each.evidence}" for each in failed),
        allowed="; ".join(f"{each.name}: {each.title}" for each in checks),
        fix="; ".join(f"{each.check}: {each.fix}" for each in failed),
    )
