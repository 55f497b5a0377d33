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
from runtime.engine_api import REASONS, Receipt

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")
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
    assert len(names) == 5
    for name in [*names, *Receipt.__slots__]:
        assert name in REFERENCE
    for reason, meaning in REASONS.items():
        assert f"| `{reason}` | {meaning} |" in REFERENCE


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
