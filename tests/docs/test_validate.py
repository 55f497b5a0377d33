"""docs/validate.md and the validation are one."""

import re
from pathlib import Path

from runtime.contract.operations import STEPS, VALIDATION_METRICS
from runtime.local.rehearsal import validation

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "validate.md").read_text("utf-8")
REHEARSAL = (ROOT / "docs" / "rehearsal.md").read_text("utf-8")


def test_every_metric_is_documented() -> None:
    """With its dimensions and its meaning, and no other."""
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| (.+) \|$", PAGE, re.MULTILINE)
    told = [row for row in rows if row[1].startswith("Deployment")]
    assert told == [
        (each.name, ", ".join(each.dimensions), each.meaning) for each in VALIDATION_METRICS
    ]


def test_every_step_is_documented() -> None:
    """Those that a user is shown; the end after a failure is told in words."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    assert {*STEPS} - {"EndNodes"} <= {*rows}


def test_what_the_rehearsal_puts_in_a_commands_place_is_documented() -> None:
    """Each word with its reason."""
    for word, reason in validation.SWAPPED.items():
        assert f"| `{word}` | {reason} |" in REHEARSAL
