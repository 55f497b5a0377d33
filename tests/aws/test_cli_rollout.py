"""`turnback rollout` as a user meets it."""

import json
import os
import signal
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from runtime.aws.rollout.report import Pace
from runtime.cli import app
from tests.aws.rollout.account import Account, break_after_restart, denied


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def rolled(account: None, monkeypatch: pytest.MonkeyPatch) -> Account:
    """A pair of generation aa and its router; time passes in no time."""
    ours = Account()
    ours.deploy(480, "aa")
    for role in ("prefill", "decode", "router"):
        ours.group(role, 1)

    def quick(**given: Any) -> Pace:
        return Pace(sleep=ours.clock.sleep, clock=ours.clock, **given)

    monkeypatch.setattr("runtime.aws.rollout.report.Pace", quick)
    return ours


def test_rollout_tells_each_step(rolled: Account) -> None:
    """What it will do, then each node, on stdout."""
    rolled.deploy(300, "bb")
    with rolled.answering():
        result = run("rollout", "ours")
    assert result.exit_code == 0, result.output
    decode = rolled.id_of("decode-0")
    assert f"restart {rolled.id_of('router-0')}, restart {decode}" in result.stdout
    assert f"decode {decode}: serves as generation bb" in result.stdout


def test_rollout_json_keeps_stdout_for_the_report(rolled: Account) -> None:
    """Progress goes to stderr."""
    rolled.deploy(300, "bb")
    with rolled.answering():
        result = run("rollout", "ours", "--json")
    told = json.loads(result.stdout)
    order = [rolled.names[each] for each in told.pop("restarted")]
    assert order == ["router-0", "decode-0", "prefill-0"]
    empty: dict[str, Any] = {"kept": [], "started": [], "ended": [], "left": [], "failure": None}
    assert told == {"deployment": "ours", "done": True} | empty
    assert "serves as generation bb" in result.stderr


def test_rollout_that_stops_exits_3_with_the_rest(rolled: Account) -> None:
    """JSON has the failure in its parts; stderr has it for people."""
    rolled.deploy(600, "bb")
    rolled.hosts[rolled.id_of("prefill-0")].busy_until_s = 10_000
    with rolled.answering():
        result = run("rollout", "ours", "--json", "--drain-s", "60")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert told["done"] is False
    assert [rolled.names[each] for each in told["left"]] == ["prefill-0", "decode-0", "router-0"]
    assert set(told["failure"]) == {"what", "got", "allowed", "fix"}
    assert "does not become idle" in result.stderr


def test_refusal_in_the_middle_exits_3(rolled: Account) -> None:
    """2 means that nothing was begun; the text stays."""
    rolled.deploy(300, "bb")
    rolled.overrides["CreateTags"] = denied
    with rolled.answering():
        result = run("rollout", "ours", "--json")
    told = json.loads(result.stdout)
    assert [rolled.names[each] for each in told["restarted"]] == ["router-0"]
    assert "ec2:CreateTags" in told["failure"]["allowed"]
    assert "AccessDenied" in result.stderr
    assert result.exit_code == 3


def test_refusal_before_anything_exits_2(rolled: Account) -> None:
    """Nothing was begun."""
    rolled.overrides["DescribeInstances"] = denied
    with rolled.answering():
        result = run("rollout", "ours")
    assert result.exit_code == 2
    assert rolled.done == []


def test_rollout_timeout_bounds_the_wait(rolled: Account) -> None:
    """For one node to become ready."""
    rolled.deploy(600, "bb")
    rolled.overrides["SendCommand"] = break_after_restart(rolled, "prefill-0")
    with rolled.answering():
        result = run("rollout", "ours", "--timeout-s", "120")
    assert result.exit_code == 3
    assert "not ready after 120 s" in result.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_rollout_interrupted_says_how_it_goes_on(rolled: Account, signum: int) -> None:
    """Ctrl-C or SIGTERM: 130, and the node that was drained is taken back."""
    rolled.deploy(600, "bb")

    def interrupt(_asked: dict[str, Any]) -> Any:
        os.kill(os.getpid(), signum)

    rolled.overrides["CreateTags"] = interrupt
    with rolled.answering():
        result = run("rollout", "ours")
    assert result.exit_code == 130
    assert "turnback rollout ours continues" in result.stderr
    assert "taken back" in result.stdout
    assert rolled.draining() == []


def test_rollout_of_an_unknown_deployment_is_bad_input(account: None) -> None:
    """Exit 2, with the parameters that were looked for."""
    result = run("rollout", "ours")
    assert result.exit_code == 2
    assert "/turnback/ours/prefill" in result.stderr
