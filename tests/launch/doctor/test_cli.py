"""`turnback doctor` on a node."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from runtime.cli import app
from runtime.contract.doctor import STATUSES, DoctorReport
from runtime.errors import BadInput
from runtime.launch.doctor.checks import checks_of
from runtime.launch.machine import Machine
from tests.launch.engine_double import EngineDouble, closed_port, engine_double
from tests.launch.fake_node import EFA, NIXL, VLLM, FakeNode
from tests.launch.nodes import good_node, serve


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(app, ["doctor", *words])


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    """Of a node that serves."""
    with engine_double() as double:
        yield double


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """This machine is a node that has not started its engine; SSM gives its parameter."""
    made = good_node(tmp_path)
    monkeypatch.setattr("runtime.cli_doctor.this_machine", lambda: made.machine)

    def parameter(name: str, region: str) -> str:
        assert (name, region) == ("/turnback/ours/decode", "us-west-2")
        return made.spec_text

    monkeypatch.setattr("runtime.aws.parameter.brief_parameter_text", parameter)
    return made


def test_good_node_exits_0_with_a_table(node: FakeNode) -> None:
    """Each check with its evidence; the stage is found."""
    result = run()
    assert result.exit_code == 0, result.output
    assert "doctor, stage boot" in result.stdout
    for check in checks_of("boot"):
        assert check.name in result.stdout
    assert "huge pages" in result.stdout  # what is asked, below the id


def test_started_node_is_asked_live(node: FakeNode, engine: EngineDouble) -> None:
    """Unless another stage is asked for."""
    serve(node, engine.url)
    node.count(9 * 2**30, 9 * 2**30)
    told = DoctorReport.model_validate_json(run("--json").stdout)
    assert (told.stage, told.role, told.worst) == ("live", "decode", "pass")
    assert told.traffic is not None
    assert told.traffic.nixl_bytes == 8 * 2**30
    assert told.facts.model_dump() == {
        "instance_type": "p5en.48xlarge",
        "efa_devices": 16,
        "efa_installer": EFA["installer"],
        "libfabric": EFA["libfabric"],
        "rdma_core": f"{EFA['rdma_core']}-1",
        "driver": "595.91.07",
        "engine": VLLM,
        "nixl": NIXL,
        "generation": "ab12",
    }
    other = json.loads(run("--json", "--stage", "image").stdout)
    assert (other["stage"], other["traffic"]) == ("image", None)


def test_failing_node_exits_1_with_the_fix(node: FakeNode) -> None:
    """JSON has it too, alone on stdout."""
    node.units(memlock="65536")
    result = run()
    assert result.exit_code == 1
    assert "LimitMEMLOCK=infinity" in " ".join(result.stdout.split())
    told = json.loads(run("--json").stdout)
    assert set(told) == set(DoctorReport.model_fields)
    (failed,) = [each for each in told["findings"] if each["status"] != "pass"]
    assert set(failed) == {"check", "status", "evidence", "fix", "took_s"}
    assert (failed["check"], failed["status"]) == ("memlock", "fail")
    assert STATUSES.index(failed["status"]) == 2


def test_warning_exits_0(node: FakeNode) -> None:
    """It serves."""
    node.remove("dev/gdrdrv")
    result = run()
    assert result.exit_code == 0
    assert "warn" in result.stdout


def test_parameter_that_cannot_be_read_is_a_finding(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other checks are asked all the same."""

    def refused(name: str, region: str) -> str:
        raise BadInput(f"parameter {name} cannot be read", got="denied", allowed="", fix="")

    monkeypatch.setattr("runtime.aws.parameter.brief_parameter_text", refused)
    told = json.loads(run("--json").stdout)
    statuses = {each["check"]: each["status"] for each in told["findings"]}
    assert statuses["spec"] == "fail"
    assert statuses["fi-info"] == "pass"
    node.write("etc/turnback/node.env", "TURNBACK_ROLE=decode\n")
    assert "no TURNBACK_PARAMETER" in run("--json").stdout


def test_spec_of_a_file_stands_for_the_parameter(node: FakeNode, tmp_path: Path) -> None:
    """For machines without AWS."""
    node.remove("etc/turnback/node.env")
    file = tmp_path / "spec.json"
    file.write_text(node.spec_text, "utf-8")
    assert run("--spec", str(file)).exit_code == 0


def test_other_machine_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to ask a deployment."""
    monkeypatch.setattr("runtime.cli_doctor.this_machine", lambda: Machine(tmp_path))
    result = run()
    assert result.exit_code == 2
    assert "turnback doctor NAME" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peer", "10.0.0.1"], "HOST:PORT"),
        (["--peer", "10.0.0.1:70000"], "HOST:PORT"),
        (["--peer", ":5600"], "HOST:PORT"),
        (["--window-at", "5"], "--window-s"),
        (["--window-s", "1"], "--window-s"),
        (["--window-s", "5", "--stage", "boot"], "--window-s is of stage live"),
        (["--stage", "later"], "--stage"),
        (["--spec", "/nowhere/spec.json"], "the spec cannot be read"),
    ],
)
def test_bad_words_exit_2(words: list[str], said: str, node: FakeNode) -> None:
    """With what is allowed."""
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_peers_are_asked(node: FakeNode, engine: EngineDouble) -> None:
    """One that answers, one that does not."""
    serve(node, engine.url)
    there = engine.url.removeprefix("http://")
    told = json.loads(run("--json", "--peer", there).stdout)
    assert _evidence(told, "peers") == "1 peers answer"
    gone = f"localhost:{closed_port()}"
    told = json.loads(run("--json", "--peer", there, "--peer", gone).stdout)
    assert _evidence(told, "peers").startswith(f"1 of 2 peers: {gone} ")


def _evidence(told: dict[str, Any], check: str) -> str:
    (one,) = [each["evidence"] for each in told["findings"] if each["check"] == check]
    return str(one)


def test_this_machine_itself_has_a_doctor(tmp_path: Path) -> None:
    """As a process of its own: whatever is missing here is a finding, never a traceback."""
    spec = tmp_path / "spec.json"
    spec.write_text(good_node(tmp_path / "node").spec_text, "utf-8")
    words = ["doctor", "--json", "--stage", "boot", "--spec", str(spec)]
    ran = subprocess.run(
        [sys.executable, "-m", "runtime.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
    )
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr == ""
    told = DoctorReport.model_validate_json(ran.stdout)
    assert not [each for each in told.findings if "the check broke" in each.evidence]
