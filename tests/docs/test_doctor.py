"""docs/doctor.md, the checks and the broken nodes are one."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from runtime.contract.doctor import DoctorFinding, DoctorReport, NodeFacts, TrafficReading
from runtime.launch.doctor.checks import CHECKS
from runtime.launch.doctor.fleet import FLEET_CHECKS
from tests.launch.faults import FAULTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text("utf-8")
USERS_FAILURES = 13
"""That the field's issue trackers show, by how often."""


def test_every_check_is_documented_with_stages_and_time_out() -> None:
    """In the order in which it is shown."""
    rows = re.findall(r"^\| `([\w-]+)` \| ([a-z, ]+) \| ([\d.]+) \| .+ \|$", PAGE, re.MULTILINE)
    told = [(name, stages, float(timeout_s)) for name, stages, timeout_s in rows]
    assert told == [(each.name, ", ".join(each.stages), each.timeout_s) for each in CHECKS]
    assert set(re.findall(r"^\| `(fleet-\w+)` \|", PAGE, re.MULTILINE)) == set(FLEET_CHECKS)


def test_every_broken_node_is_documented_with_its_check() -> None:
    """And the table names no other."""
    table = PAGE.split("| broken node | check | status |", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (.+) \| `([\w-]+)` \| (\w+) \|$", table, re.MULTILINE)
    assert rows == [(each.name, each.check, each.status) for each in FAULTS]


def test_every_failure_of_users_is_seen_by_a_broken_node() -> None:
    """By one that exists, or by a check over all nodes; or it says why none can."""
    rows = re.findall(r"^\| (\d+) \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, USERS_FAILURES + 1))
    for number, seen in rows:
        names = [each.name for each in FAULTS if each.name in seen]
        assert names or seen.startswith("not seen: "), number
        rest = seen
        for name in sorted(names, key=len, reverse=True):
            rest = rest.replace(name, "")
        if names:
            for word in re.findall(r"[^,;]+", rest):
                assert not word.strip() or re.fullmatch(
                    r"between nodes `(fleet-\w+)`", word.strip()
                )
        assert set(re.findall(r"`(fleet-\w+)`", seen)) <= set(FLEET_CHECKS)


@pytest.mark.parametrize("model", [DoctorReport, DoctorFinding, NodeFacts, TrafficReading])
def test_every_field_of_an_answer_is_documented(model: type[BaseModel]) -> None:
    """What a program may read is listed."""
    section = PAGE.split("\n## JSON\n", 1)[1]
    for field in model.model_fields:
        assert f"`{field}`" in section, f"{model.__name__}.{field}"


def test_checks_that_have_met_no_hardware_are_named() -> None:
    """docs/limits.md has all that touch EFA or NVIDIA."""
    limits = (ROOT / "docs" / "limits.md").read_text("utf-8")
    (told,) = re.findall(r"^- \*\*`turnback doctor`\*\* .*$", limits, re.MULTILINE)
    unproven = {each.name for each in CHECKS if each.of in ("efa", "gpu")}
    assert unproven <= set(re.findall(r"`([\w-]+)`", told))
