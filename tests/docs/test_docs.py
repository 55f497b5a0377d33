"""The documentation names everything a user can set or read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from runtime.cli import app
from runtime.contract import http
from runtime.contract.deployment import setting_paths
from runtime.contract.image import ImageFile
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.keys import ApiKey, ApiKeys
from runtime.contract.model import ModelFile, ModelManifest
from runtime.contract.node import (
    CpuSpec,
    ImageSpec,
    KvTransferSpec,
    NodeAddress,
    NodeSpec,
    RouterSpec,
    ServingSpec,
    TransportSpec,
)
from runtime.contract.node_metrics import ENGINE_METRICS, ROUTER_METRICS
from runtime.contract.profile import AgenticSpec, Profile, ProfileServing, WorkloadSpec
from runtime.contract.status import BootReport, NodeReport, NodeStatus
from runtime.engine_api import REASONS, RELEASE_PATH, Receipt
from runtime.local.rehearsal import checks, deletions, mends, swaps
from runtime.router.apis import APIS
from tests.router.fleet import running_fleet, write_tokenizer

ROOT = Path(__file__).parents[2]
ROUTER = (ROOT / "docs" / "router.md").read_text("utf-8")
REFERENCE = "\n".join(
    (ROOT / "docs" / page).read_text("utf-8")
    for page in (
        *("reference.md", "router.md", "security.md", "deploy.md", "aws-commands.md"),
        *("image.md", "boot.md", "doctor.md", "operations.md", "validate.md"),
        "tune.md",
    )
)
SETTINGS = (ROOT / "docs" / "settings.md").read_text("utf-8")
COMPLAINTS = (ROOT / "docs" / "router-complaints.md").read_text("utf-8")
EXACTNESS = (ROOT / "docs" / "exactness.md").read_text("utf-8")
REHEARSAL = (ROOT / "docs" / "rehearsal.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = typer.main.get_command(app)


def leaves(commands: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Commands with their words; a group's are those below it."""
    for name, command in commands.items():
        below = vars(command).get("commands")
        if below is None:
            yield prefix + name, command
        else:
            yield from leaves(below, f"{prefix}{name} ")


def test_every_command_and_option_is_documented() -> None:
    """A flag that is not in the reference fails here."""
    commands: dict[str, Any] = vars(COMMANDS)["commands"]
    names = {"demo", "up", "rehearse", "router", "reuse", "scale", "rollout", "preflight", "image"}
    names |= {"serve", "model", "doctor"}
    names |= {"validate", "job"}
    names |= {"logs", "node-metrics"}
    names |= {"tune", "bench", "report"}
    assert set(commands) == names
    for name, command in leaves(commands):
        section = REFERENCE.split(f"### `turnback {name}`", 1)[1].split("\n### ", 1)[0]
        for option in command.params:
            for flag in option.opts:
                shown = flag if flag.startswith("-") else flag.upper()
                assert flag == "--help" or f"`{shown}`" in section, f"{name} {flag}"


def test_reference_names_every_command() -> None:
    """Those of other pages too, so that it leads there."""
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    missing = {name for name in vars(COMMANDS)["commands"] if f"`turnback {name}" not in page}
    assert not missing


@pytest.mark.parametrize(
    "model",
    [
        *(NodeSpec, ServingSpec, KvTransferSpec, CpuSpec, RouterSpec),
        *(NodeAddress, ApiKeys, ApiKey, TransportSpec, ImageSpec),
        *(NodeStatus, NodeReport, ImageFile, BootReport, ModelManifest, ModelFile),
        *(Profile, ProfileServing, WorkloadSpec, AgenticSpec),
    ],
)
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    """A field that is not in the reference fails here."""
    for field in model.model_fields:
        assert re.search(rf"[`.]{field}[`.]", REFERENCE), f"{model.__name__}.{field}"


def test_every_setting_of_a_deployment_is_documented() -> None:
    """docs/settings.md has a row for each setting, with its default where it has one."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", SETTINGS, re.MULTILINE)
    told = {
        name.replace("ROLE", role): default
        for name, default in rows
        if name not in INSTANCE_TYPES
        for role in (("prefill", "decode") if name.startswith("ROLE.") else ("",))
    }
    paths = setting_paths()
    assert set(told) == set(paths)
    for path, field in paths.items():
        if isinstance(field.default, str | int) and not path.endswith(".kind"):
            assert str(field.default).lower() in told[path].lower(), path


def test_every_instance_type_is_documented() -> None:
    """With its EFA interfaces and GPUs."""
    for name, row in INSTANCE_TYPES.items():
        assert f"| `{name}` | {row.gpus} | {row.efa_interfaces} |" in SETTINGS


def test_every_header_and_reason_is_documented() -> None:
    """What a client can send and read is listed."""
    names = [value for name, value in vars(http).items() if name.endswith("_HEADER")]
    assert len(names) == 10
    for name in [*names, *Receipt.__slots__]:
        assert name in REFERENCE
    for reason, meaning in REASONS.items():
        assert f"| `{reason}` | {meaning} |" in REFERENCE


async def test_every_metric_and_route_is_documented(tmp_path: Path) -> None:
    """What /metrics of a running router shows, its routes, and what the plugin adds to engines."""
    write_tokenizer(tmp_path)
    async with running_fleet(tmp_path) as fleet:
        async with fleet.session.get(f"{fleet.url}/metrics") as reply:
            page = await reply.text()
        routes = [path for _, path in fleet.router._routes]
    names = re.findall(r"^# TYPE (\S+) (?:counter|histogram|gauge)$", page, re.MULTILINE)
    shown = [name for name in names if not name.endswith("_created")]
    assert len(shown) == 21
    for name in [*shown, RELEASE_PATH, http.END_PATH, *APIS, *routes]:
        assert f"{name}`" in REFERENCE, name


@pytest.mark.parametrize(
    "word", ["owner_gone", "store_down", "refused", "noise", "cold_retry", "draining"]
)
def test_words_of_metrics_and_states_are_documented(word: str) -> None:
    """Values of labels, paths and states are listed with their names."""
    assert f"`{word}`" in ROUTER


def test_every_complaint_is_mapped_to_tests_that_exist() -> None:
    """docs/router-complaints.md has each point once, and names tests that are there."""
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", COMPLAINTS, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 44))
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", COMPLAINTS)
    assert len(named) > 45
    _exist(named)


def _exist(named: list[tuple[str, str]]) -> None:
    for path, test in named:
        source = (ROOT / path).read_text("utf-8")
        assert f"def {test}(" in source if test else source, f"{path}::{test}"


def test_every_hazard_is_mapped_to_tests_that_exist() -> None:
    """docs/exactness.md has each hazard once, and names tests that are there."""
    rows = re.findall(r"^\| (\d+) \|.*\|.*\| (.*) \|$", EXACTNESS, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 29))
    assert all("`tests/" in shown for _, shown in rows)
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", EXACTNESS)
    assert len(named) > 40
    _exist(named)


def test_what_the_rehearsal_does_otherwise_is_documented() -> None:
    """Swapped fields with their reasons, types that the emulator leaves out, its mends."""
    for field, reason in {**swaps.SWAPPED, **swaps.ROUTER_SWAPPED}.items():
        assert f"| `{field}` | {reason} |" in REHEARSAL
    mended = [mends.Secret, mends.PlacementGroup, *deletions.EC2, *deletions.ELBV2]
    for kind in [*checks.SKIPPED, *(model.cloudformation_type() for model in mended)]:
        assert f"`{kind}`" in REHEARSAL, kind


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


def test_every_metric_of_machines_is_documented() -> None:
    """docs/operations.md has a row for each."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for metric in (*ROUTER_METRICS, *ENGINE_METRICS):
        row = rf"^\| `{metric.name}` \| \w+ \| {metric.unit} \| {re.escape(metric.meaning)} \|$"
        assert re.search(row, page, re.MULTILINE), metric.name
