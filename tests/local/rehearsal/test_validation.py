"""The validation's commands: read out of the definition, and what is put in their places."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runtime.contract.operations import NAMESPACE
from runtime.errors import EngineDied, StartFailed
from runtime.local.rehearsal import validation
from runtime.local.rehearsal.validation import (
    FILES,
    METRICS,
    PASSED,
    STEPS,
    SWAPPED,
    Ran,
    Spot,
    answer,
    commands,
    judge,
    judge_doctor,
    local_command,
    run,
    write_environment,
)
from tests.infra.validating import definition

GIVEN = {"$.run_id": "one", "$.input.min_speedup": "0", "$.input.slo_ttft_p90_ms": "0"}


def spot(folder: Path) -> Spot:
    """A node's folder."""
    return Spot(
        root=folder / "prefill",
        variables={"TURNBACK_ROLE": "prefill", "TURNBACK_INDEX_URL": "x"},
        url="http://127.0.0.1:8000",
        nodes_file=folder / "nodes.toml",
        work=folder / "work",
    )


def test_every_step_of_the_definition_has_its_command() -> None:
    """In their order, with the run's name and the bars in their places."""
    found = commands(definition(), GIVEN)
    assert [*found] == [*STEPS]
    assert not any("{}" in command or "States." in command for command in found.values())
    assert " --run-id one " in found["Benchmark"]
    assert found["Benchmark"].endswith(" --min-speedup 0 --slo-ttft-p90-ms 0")
    assert "doctor --json" in found["Doctor"]


def words(command: str) -> set[str]:
    """Words, and options with their values."""
    pairs = {f"{name} {value}" for name, value in re.findall(r"(--[\w-]+) (\S+)", command)}
    return {*re.sub(r"--[\w-]+ \S+", "", command).split(), *pairs}


@pytest.mark.parametrize("step", STEPS)
def test_only_what_is_listed_is_swapped(step: str, tmp_path: Path) -> None:
    """Every other word of a command runs as it was deployed."""
    deployed = commands(definition(), GIVEN)[step]
    local = local_command(deployed, spot(tmp_path))
    names = {word.lstrip(".") for word in SWAPPED}
    gone = {
        word
        for word in words(deployed) - words(local)
        if not any(word.startswith(name) or word == f"{name};" for name in names)
    }
    assert not gone
    for path in ("/opt/turnback", "/var/lib/turnback/boot", "/etc/turnback"):
        assert f" {path}" not in local


def test_a_definition_without_a_step_is_refused() -> None:
    """What is not known is not passed over."""
    found = json.loads(json.dumps(definition()))
    states = found["States"]["Work"]["Branches"][0]["States"]
    del states["Doctor"]
    with pytest.raises(StartFailed, match="commands that are known"):
        commands(found, GIVEN)


def test_a_command_that_cannot_be_read_is_refused() -> None:
    """An argument that nobody knows."""
    with pytest.raises(StartFailed, match="cannot be read"):
        commands(definition(), {"$.run_id": "one"})


def test_the_environment_is_what_user_data_leaves(tmp_path: Path) -> None:
    """Its names, and none besides."""
    place = spot(tmp_path)
    write_environment(place)
    text = (place.root / "etc/turnback/node.env").read_text("utf-8")
    assert text == "TURNBACK_ROLE=prefill\n"


async def test_commands_run_in_a_shell_and_are_kept(tmp_path: Path) -> None:
    """Output, errors and exit code."""
    ran = await run("echo out; echo err >&2; exit 3", tmp_path / "log")
    assert ran == Ran(3, "out\n", "err\n")
    assert "exit code 3" in (tmp_path / "log.txt").read_text("utf-8")


async def test_a_command_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And told."""
    monkeypatch.setattr(validation, "_TIMEOUT_S", 0.2)
    with pytest.raises(StartFailed, match="did not end"):
        await run("exec sleep 60", tmp_path / "log")


@pytest.mark.parametrize("ran", [Ran(4, '{"a": 1}', "why"), Ran(0, "text", ""), Ran(0, "[]", "")])
def test_an_answer_that_is_none_ends_the_rehearsal(ran: Ran) -> None:
    """A failed command, and one that prints something else."""
    with pytest.raises(EngineDied, match="has not ended well"):
        answer("Transport", ran)


def findings(*failed: str) -> Ran:
    """A doctor's answer; checks of hardware fail besides."""
    told = [
        {"check": name, "status": "fail" if name in failed else "pass"} for name in sorted(PASSED)
    ]
    return Ran(1, json.dumps({"findings": [*told, {"check": "gpus", "status": "fail"}]}), "")


def test_hardware_may_be_missing() -> None:
    """What a folder has is found."""
    assert judge_doctor(findings(), "prefill") == f"{len(PASSED)} of {len(PASSED) + 1}"


@pytest.mark.parametrize("ran", [findings("spec"), findings("transfers"), Ran(2, "", "error")])
def test_a_doctor_that_finds_no_spec_ends_the_rehearsal(ran: Ran) -> None:
    """Also where it says nothing."""
    with pytest.raises(EngineDied, match="does not find what its folder has"):
        judge_doctor(ran, "prefill")


class Account:
    """What S3 and CloudWatch list."""

    def __init__(self, files: set[str], metrics: set[str]) -> None:
        self.files, self.metrics = files, metrics

    def list_objects_v2(self, **asked: str) -> dict[str, Any]:
        """Below the run's folder."""
        return {"Contents": [{"Key": asked["Prefix"] + name} for name in self.files]}

    def list_metrics(self, **asked: str) -> dict[str, Any]:
        """Of the kit's namespace."""
        assert asked == {"Namespace": NAMESPACE}
        return {"Metrics": [{"MetricName": name} for name in self.metrics]}


TOLD: dict[str, dict[str, Any]] = {
    "Transport": {"transfers": 3.0, "bytes": 5.0, "expected_bytes": [4, 6]},
    "Exactness": {"verdict": "equal"},
    "Benchmark": {"verdict": "good", "failed_turns": 0, "report": "s3://b/runs/one/report.json"},
}


def test_results_lie_where_they_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the bucket, metrics in CloudWatch."""
    monkeypatch.setattr(validation, "client", lambda _: Account({*FILES}, {*METRICS}))
    assert "3 transfers" in judge(TOLD)


@pytest.mark.parametrize(
    ("files", "metrics", "result"),
    [
        ({*FILES} - {"report.html"}, {*METRICS}, {}),
        ({*FILES}, {*METRICS} - {"SpeedUp"}, {}),
        ({*FILES}, {*METRICS}, {"verdict": "below_bar"}),
        ({*FILES}, {*METRICS}, {"failed_turns": 1}),
    ],
)
def test_what_is_not_left_ends_the_rehearsal(
    files: set[str],
    metrics: set[str],
    result: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file, a metric, a good result."""
    monkeypatch.setattr(validation, "client", lambda _: Account(files, metrics))
    with pytest.raises(EngineDied, match="does not leave"):
        judge({**TOLD, "Benchmark": TOLD["Benchmark"] | result})
