"""`turnback doctor NAME`: nodes that answer, and those that do not."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from typer.testing import CliRunner, Result

from runtime.aws.clients import client
from runtime.aws.fleet_doctor import NodeAnswer, Question, ask_fleet, doctor_command
from runtime.aws.run_command import RunCommand
from runtime.cli import app
from runtime.contract.doctor import DoctorFinding, DoctorReport, NodeFacts, TrafficReading
from runtime.contract.status import BOOT_FILE, BootReport
from tests.aws.rollout.account import Account, denied

_GIB = 2**30
_NO_KIT = BootReport(
    state="failed",
    step="kit",
    since_unix_s=1.0,
    what="the wheel cannot be fetched",
    got="s3://kit",
    fix="look at the route",
)


def report(status: str = "pass", *, read: int = 0, sent: int = 0, **facts: Any) -> DoctorReport:
    """A node's answer; traffic where it read or sent."""
    one = DoctorFinding.model_validate(
        {"check": "fi-info", "status": status, "evidence": "[efa] seen", "fix": "mend [it]"}
    )
    traffic = TrafficReading(
        window_s=10, nixl_bytes=read, efa_tx_bytes=sent, efa_rx_bytes=read, moved_devices=16
    )
    return DoctorReport(
        stage="live",
        role="decode",
        took_s=1.0,
        findings=(one,),
        facts=NodeFacts(**({"efa_devices": 16, "rdma_core": "65.0-1"} | facts)),
        traffic=traffic if read or sent else None,
    )


def invocation(answer: DoctorReport | str) -> dict[str, Any]:
    """As SSM tells what came of the command: the doctor ends with 1 where a check failed."""
    if isinstance(answer, str):
        return {"Status": "Success", "StandardOutputContent": answer}
    text = answer.model_dump_json()
    if answer.worst == "fail":
        return {"Status": "Failed", "ResponseCode": 1, "StandardOutputContent": text}
    return {"Status": "Success", "StandardOutputContent": text}


@dataclass
class Fleet:
    """A deployment whose nodes answer the doctor's command."""

    account: Account
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def send(self, asked: dict[str, Any]) -> Any:
        self.commands += asked["Parameters"]["commands"]
        self.account.outputs["d"] = {
            each: self.answers[self.account.names[each]] for each in asked["InstanceIds"]
        }
        return {"Command": {"CommandId": "d"}}

    def of(self, prefill: Any, decode: Any) -> None:
        """What both nodes say."""
        self.answers = {"prefill-0": invocation(prefill), "decode-0": invocation(decode)}

    def run(self, *words: str) -> Result:
        """The command."""
        with self.account.answering():
            return CliRunner().invoke(app, ["doctor", "ours", *words])

    def ask(self) -> dict[str, NodeAnswer]:
        """Without the command, on a clock that passes in sleeps alone."""
        ssm, clock = client("ssm"), self.account.clock
        with self.account.answering():
            found = ask_fleet(
                *("ours", client("ec2"), ssm),
                RunCommand(ssm, clock.sleep, clock),
                Question(),
                self.told.append,
            )
        return {self.account.names[each.instance]: each for each in found}


@pytest.fixture
def fleet(account: None) -> Fleet:
    """A pair and its router."""
    ours = Account()
    ours.deploy(480, "aa")
    for role in ("prefill", "decode", "router"):
        ours.group(role, 1)
    made = Fleet(ours)
    ours.overrides["SendCommand"] = made.send
    made.of(report(), report())
    return made


def test_good_fleet_is_one_table(fleet: Fleet) -> None:
    """A row a node, and what they say together; routers are not asked."""
    result = fleet.run()
    assert result.exit_code == 0, result.output
    for name in ("prefill-0", "decode-0"):
        assert fleet.account.id_of(name) in result.stdout
    assert fleet.account.id_of("router-0") not in result.stdout
    assert "1 checks" in result.stdout
    assert "2 nodes agree" in result.stdout


def doctors_words(command: str) -> list[str]:
    """Where there is a doctor; else the node's boot tells why there is none."""
    there, _, rest = command.partition("; then ")
    asked, _, absent = rest.partition("; else ")
    words = shlex.split(asked)
    assert there == f"if [ -x {words[0]} ]"
    assert absent == f"cat {BOOT_FILE}; fi"
    return words


def test_nodes_get_each_others_side_channels(fleet: Fleet) -> None:
    """By address and the parameter's port; of a node's own it takes no notice."""
    assert fleet.run("--stage", "live").exit_code == 0
    (command,) = fleet.commands
    words = doctors_words(command)
    assert words[:3] == ["/opt/turnback/venv/bin/turnback", "doctor", "--json"]
    assert words[-2:] == ["--stage", "live"]
    peers = [words[at + 1] for at, word in enumerate(words) if word == "--peer"]
    addresses = {
        str(each["PrivateIpAddress"])
        for each in fleet.account.machines()
        if fleet.account.names[each["InstanceId"]] != "router-0"
    }
    assert {each.rpartition(":")[0] for each in peers} == addresses
    assert {each.rpartition(":")[2] for each in peers} == {"5600"}


def test_window_is_the_same_on_all_nodes() -> None:
    """It begins when the command has reached them all."""
    words = doctors_words(doctor_command(Question("live", 30.0), [], 1000.0))
    assert words[3:] == ["--stage", "live", "--window-s", "30", "--window-at", "1020"]


def test_window_is_of_nodes_that_serve(fleet: Fleet) -> None:
    """A node that has not started its engine says so, in place of leaving the window out."""
    assert fleet.run("--window-s", "30").exit_code == 0
    assert "--stage live --window-s 30 --window-at" in fleet.commands[0]


@pytest.mark.parametrize(
    ("prefill", "decode", "code"),
    [
        (report("warn"), report(), 0),
        (report("fail"), report(), 1),
        (report(), "", 3),
        (report("fail"), "no JSON", 3),
        (report(rdma_core="39.0-1"), report(), 1),
        (report(rdma_core=""), report(), 0),
        (report(generation=""), report(generation="ab12"), 0),
        (report(efa_devices=15), report(), 1),
        (report(efa_devices=32, instance_type="p5.48xlarge"), report(), 0),
        (report(efa_devices=32, instance_type="p5.48xlarge", driver="1"), report(driver="2"), 1),
        (report(sent=_GIB), report(read=_GIB), 0),
        (report(sent=1), report(read=_GIB), 1),
        (report(sent=2 * _GIB), report(read=_GIB), 1),
    ],
)
def test_worst_decides_the_exit_code(
    prefill: DoctorReport | str, decode: DoctorReport | str, code: int, fleet: Fleet
) -> None:
    """A node that could not be asked is worse than one that failed: nothing is known of it.

    What a node does not know is not compared; types may have other numbers of devices.
    """
    fleet.of(prefill, decode)
    result = fleet.run("--json")
    assert result.exit_code == code, result.output
    assert json.loads(result.stdout)["exit_code"] == code


def test_failing_node_shows_evidence_and_fix(fleet: Fleet) -> None:
    """Brackets in them are text."""
    fleet.of(report("fail"), report())
    result = fleet.run()
    assert result.exit_code == 1
    assert "[efa] seen" in result.stdout
    assert "mend [it]" in result.stdout


def test_json_has_every_node_and_what_they_say_together(fleet: Fleet) -> None:
    """As docs/doctor.md has it."""
    fleet.of(report("fail", rdma_core="39.0-1"), "")
    told = json.loads(fleet.run("--json").stdout)
    assert set(told) == {"format", "deployment", "exit_code", "nodes", "findings"}
    assert (told["format"], told["deployment"], told["exit_code"]) == (1, "ours", 3)
    first, second = told["nodes"]
    assert set(first) == {"instance", "role", "problem", "report"}
    assert DoctorReport.model_validate(first["report"]).worst == "fail"
    assert (second["report"], second["problem"]) == (None, "it says nothing")
    assert [each["check"] for each in told["findings"]] == ["fleet-versions"]


def test_different_nodes_are_told_by_what_differs(fleet: Fleet) -> None:
    """A peer with another rdma-core hangs, one with fewer devices is not capped."""
    fleet.of(report(rdma_core="39.0-1", efa_devices=15), report())
    (finding,) = json.loads(fleet.run("--json").stdout)["findings"]
    odd = fleet.account.id_of("prefill-0")
    assert finding["status"] == "fail"
    assert f"rdma_core: 39.0-1 on {odd}" in finding["evidence"]
    assert "efa_devices: 15 on" in finding["evidence"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (invocation(""), "it says nothing"),
        (invocation("<html>"), "an answer of another form: '<html>'"),
        (invocation('{"format": 1}'), "an answer of another form"),
        (
            invocation(report().model_dump_json().replace('"format":1', '"format":2')),
            "its doctor's answer is of another kit's form",
        ),
        (invocation(report().model_dump_json()[:-9]), "an answer of another form"),
        (
            {"Status": "Failed", "ResponseCode": 2, "StandardErrorContent": "No such command"},
            "Failed, exit code 2: No such command",
        ),
        (
            invocation(_NO_KIT.model_dump_json()),
            "it has no kit: the wheel cannot be fetched; got: s3://kit; fix: look at the route",
        ),
        ({"Status": "TimedOut", "ResponseCode": -1}, "TimedOut, exit code -1"),
        ({"Status": "InProgress"}, "InProgress when time was up"),
    ],
)
def test_node_without_a_usable_answer(answer: dict[str, Any], problem: str, fleet: Fleet) -> None:
    """The others' answers stand."""
    fleet.answers["prefill-0"] = answer
    found = fleet.ask()
    assert found["prefill-0"].report is None
    assert found["prefill-0"].problem.startswith(problem)
    assert found["decode-0"].report == report()


def test_node_that_does_not_answer_may_have_sent_the_rest(fleet: Fleet) -> None:
    """So that nothing is said of TCP."""
    fleet.of("", report(read=_GIB))
    told = {each["check"]: each for each in json.loads(fleet.run("--json").stdout)["findings"]}
    assert told["fleet-traffic"]["status"] == "warn"
    assert "1 of 2 nodes" in told["fleet-traffic"]["evidence"]
    fleet.of("", "")
    assert json.loads(fleet.run("--json").stdout)["findings"] == []


def test_offline_agent_is_told(fleet: Fleet) -> None:
    """It is not sent the command."""
    fleet.account.meet()
    fleet.account.hosts[fleet.account.id_of("decode-0")].is_online = False
    result = fleet.run("--json")
    assert result.exit_code == 3
    problems = [each["problem"] for each in json.loads(result.stdout)["nodes"]]
    assert problems == ["", "its SSM agent is offline"]
    assert list(fleet.account.outputs["d"]) == [fleet.account.id_of("prefill-0")]
    assert fleet.run().exit_code == 3


def test_node_that_stops_meanwhile_is_told(fleet: Fleet) -> None:
    """Between listing and command: it is reported, and the others answer."""
    gone = fleet.account.id_of("decode-0")

    def send(asked: dict[str, Any]) -> Any:
        if gone in asked["InstanceIds"]:
            error = {"Code": "InvalidInstanceId", "Message": "not in a valid state"}
            raise ClientError({"Error": error}, "SendCommand")
        return fleet.send(asked)

    fleet.account.overrides["SendCommand"] = send
    found = fleet.ask()
    assert found["prefill-0"].report == report()
    assert found["decode-0"].report is None
    assert "it has stopped" in found["decode-0"].problem


def test_fleet_without_nodes_is_bad_input(account: None) -> None:
    """A name that is not there."""
    result = CliRunner().invoke(app, ["doctor", "theirs"])
    assert result.exit_code == 2
    assert "deployment theirs has no running node" in result.stderr


def test_parameter_that_cannot_be_read_leaves_peers_out(fleet: Fleet) -> None:
    """Each node's own doctor says what is wrong with it."""
    fleet.account.overrides["GetParameter"] = denied
    found = fleet.ask()
    assert found["decode-0"].report == report()
    assert "--peer" not in fleet.commands[0]
    assert fleet.told[0].startswith("no node is asked for its peers")


def _late(_asked: dict[str, Any]) -> Any:
    raise ConnectTimeoutError(endpoint_url="https://ssm.invalid")


@pytest.mark.parametrize(("refusal", "said"), [(denied, "AccessDenied"), (_late, "ssm.invalid")])
def test_refusal_of_aws_exits_3(refusal: Callable[..., Any], said: str, fleet: Fleet) -> None:
    """No node could be asked."""
    fleet.account.overrides["SendCommand"] = refusal
    result = fleet.run("--json")
    assert result.exit_code == 3
    assert said in result.stderr
    assert "ssm:SendCommand" in result.stderr


def test_region_that_is_none_is_bad_input(account: None) -> None:
    """And no refusal of AWS, which is never asked."""
    result = CliRunner().invoke(app, ["doctor", "demo", "--region", "us west"])
    assert result.exit_code == 2
    assert "give --region" in result.stderr


def test_no_region_is_bad_input(account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was asked."""
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    boto3.setup_default_session()
    result = CliRunner().invoke(app, ["doctor", "ours"])
    assert result.exit_code == 2
    assert "region" in result.stderr


@pytest.mark.parametrize(
    "words", [("--peer", "10.0.0.1:5600"), ("--window-at", "5"), ("--spec", "x.json")]
)
def test_flags_of_a_node_are_refused_of_a_fleet(words: tuple[str, str]) -> None:
    """They would be lost."""
    result = CliRunner().invoke(app, ["doctor", "ours", *words])
    assert result.exit_code == 2
    assert words[0] in result.output
