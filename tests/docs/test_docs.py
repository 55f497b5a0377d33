"""The documentation names everything a user can set or read."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from runtime.cli import app
from runtime.contract import http
from runtime.contract.node import CpuSpec, KvTransferSpec, NodeSpec, RouterSpec, ServingSpec
from runtime.contract.profile import Profile, ProfileServing, WorkloadSpec
from runtime.engine_api import REASONS, RELEASE_PATH, Receipt
from runtime.router.metrics import RouterMetrics

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")
EXACTNESS = (ROOT / "docs" / "exactness.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app)


def test_every_command_and_option_is_documented() -> None:
    """A flag that is not in the reference fails here."""
    commands: dict[str, Any] = vars(COMMANDS)["commands"]
    assert set(commands) == {"demo", "up", "router"}
    for name, command in commands.items():
        section = REFERENCE.split(f"### `turnback {name}`", 1)[1].split("\n### ", 1)[0]
        for option in command.params:
            for flag in option.opts:
                assert flag == "--help" or f"`{flag}`" in section, f"{name} {flag}"


@pytest.mark.parametrize(
    "model",
    [
        *(NodeSpec, ServingSpec, KvTransferSpec, CpuSpec, RouterSpec),
        *(Profile, ProfileServing, WorkloadSpec),
    ],
)
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    """A field that is not in the reference fails here."""
    for field in model.model_fields:
        assert re.search(rf"[`.]{field}[`.]", REFERENCE), f"{model.__name__}.{field}"


def test_every_header_and_reason_is_documented() -> None:
    """What a client can send and read is listed."""
    names = [value for name, value in vars(http).items() if name.endswith("_HEADER")]
    assert len(names) == 7
    for name in [*names, *Receipt.__slots__]:
        assert name in REFERENCE
    for reason, meaning in REASONS.items():
        assert f"| `{reason}` | {meaning} |" in REFERENCE


def test_every_metric_and_engine_route_is_documented() -> None:
    """What /metrics of the router shows, and what the plugin adds to an engine."""
    page = RouterMetrics().page().decode()
    names = re.findall(r"^# TYPE (\S+) (?:counter|histogram)$", page, re.MULTILINE)
    assert len(names) == 4
    for name in [*names, RELEASE_PATH, http.END_PATH]:
        assert name in REFERENCE


def test_every_hazard_is_mapped_to_tests_that_exist() -> None:
    """docs/exactness.md has each hazard once, and names tests that are there."""
    rows = re.findall(r"^\| (\d+) \|.*\|.*\| (.*) \|$", EXACTNESS, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 29))
    assert all("`tests/" in shown for _, shown in rows)
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", EXACTNESS)
    assert len(named) > 40
    for path, test in named:
        source = (ROOT / path).read_text("utf-8")
        assert f"def {test}(" in source if test else source, f"{path}::{test}"


def test_no_page_has_a_blank_to_fill() -> None:
    """A figure that was never put in stands as a word in capitals."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        prose = re.sub(r"`[^`]*`", "", page.read_text("utf-8"))
        assert not re.search(r"\b[A-Z]{3,}_[A-Z]{3,}\b", prose), page.name


def test_readme_shows_both_commands_and_stays_short() -> None:
    """One command shows it, one tests it; the README fits a sitting."""
    assert "\nmake demo\n" in README
    assert "\nmake test\n" in README
    assert README.count("\n") < 200


def test_links_lead_somewhere() -> None:
    """Relative links of README and docs exist."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
