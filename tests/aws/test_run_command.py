"""Commands on machines by SSM, against stubbed replies with botocore's checks of parameters."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.aws.run_command import Outcome, RunCommand
from tests.aws.fleet import Clock
from tests.aws.stubs import Answer, answering

ID = "0" * 36
NODES = ["i-0123456789abcdef0", "i-0123456789abcdef1"]


def sent(instances: list[str], command: str = "true") -> Answer:
    """SendCommand as it is expected."""
    asked = {
        "InstanceIds": instances,
        "DocumentName": "AWS-RunShellScript",
        "TimeoutSeconds": 60,
        "Comment": "turnback",
        "Parameters": {"commands": [command], "executionTimeout": ["30"]},
    }
    return Answer("send_command", {"Command": {"CommandId": ID}}, asked)


def look(instance: str, status: str, **fields: Any) -> Answer:
    """GetCommandInvocation and its answer."""
    asked = {"CommandId": ID, "InstanceId": instance}
    return Answer("get_command_invocation", {"Status": status} | fields, asked)


def run(
    *answers: Answer, instances: list[str] = NODES, clock: Clock | None = None
) -> dict[str, Outcome]:
    """Run `true` for at most 30 s."""
    clock = clock or Clock()
    with answering("ssm", *answers) as ssm:
        commands = RunCommand(ssm, clock.sleep, clock)
        return commands.run(instances, "true", timeout_s=30, comment="turnback")


def test_command_is_followed_on_every_machine() -> None:
    """Until it has ended on the last of them."""
    outcomes = run(
        sent(NODES),
        look(NODES[0], "Pending"),
        look(NODES[0], "InProgress"),
        look(NODES[0], "Success", StandardOutputContent="one\n"),
        look(NODES[1], "Success", StandardOutputContent="two\n"),
    )
    assert outcomes == {
        NODES[0]: Outcome(is_done=True, output="one"),
        NODES[1]: Outcome(is_done=True, output="two"),
    }


def test_invocation_may_appear_late() -> None:
    """Right after SendCommand there is none yet."""
    missing = Answer("get_command_invocation", {}, error="InvocationDoesNotExist")
    outcomes = run(sent(NODES[:1]), missing, look(NODES[0], "Success"), instances=NODES[:1])
    assert outcomes[NODES[0]].is_done


@pytest.mark.parametrize("status", ["Failed", "TimedOut", "Cancelled"])
def test_failed_command_says_why(status: str) -> None:
    """AWS's word, the exit code, and what the command said."""
    told = look(NODES[0], status, ResponseCode=5, StandardErrorContent="no such unit\n")
    outcome = run(sent(NODES[:1]), told, instances=NODES[:1])[NODES[0]]
    assert outcome == Outcome(is_done=False, problem=f"{status}, exit code 5: no such unit")


def test_command_that_never_ends_is_given_up() -> None:
    """After the time of delivery and of the run."""
    clock = Clock()
    looks = [look(NODES[0], "InProgress")] * 46
    outcome = run(sent(NODES[:1]), *looks, instances=NODES[:1], clock=clock)[NODES[0]]
    assert outcome == Outcome(is_done=False, problem="InProgress when time was up")
    assert clock.now_s == 90


def test_more_machines_than_one_call_takes() -> None:
    """Fifty at a time."""
    many = [f"i-{number:017x}" for number in range(51)]
    outcomes = run(
        sent(many[:50]),
        *(look(each, "Success") for each in many[:50]),
        sent(many[50:]),
        look(many[50], "Success"),
        instances=many,
    )
    assert list(outcomes) == many


def test_refusal_is_not_swallowed() -> None:
    """Without leave nothing was run."""
    with pytest.raises(ClientError, match="AccessDenied"):
        run(Answer("send_command", {}, error="AccessDenied"))


def test_command_that_cannot_be_followed_is_not_swallowed() -> None:
    """What became of it is not known."""
    with pytest.raises(ClientError, match="AccessDenied"):
        run(
            sent(NODES[:1]),
            Answer("get_command_invocation", {}, error="AccessDenied"),
            instances=NODES[:1],
        )


def test_answer_that_is_late_is_polled_for_again() -> None:
    """The command itself is not sent a second time; the wait has its end all the same."""
    late = Answer("get_command_invocation", {}, error="ThrottlingException")
    outcomes = run(sent(NODES[:1]), late, look(NODES[0], "Success"), instances=NODES[:1])
    assert outcomes[NODES[0]].is_done
    with pytest.raises(ClientError, match="Throttling"):
        run(sent(NODES[:1]), *[late] * 46, instances=NODES[:1])


def test_agents_that_are_online() -> None:
    """Of the machines asked about; the others take no command."""
    asked = {
        "Filters": [
            {"Key": "InstanceIds", "Values": NODES},
            {"Key": "PingStatus", "Values": ["Online"]},
        ]
    }
    reply = {"InstanceInformationList": [{"InstanceId": NODES[1]}]}
    with answering("ssm", Answer("describe_instance_information", reply, asked)) as ssm:
        assert RunCommand(ssm).online(NODES) == {NODES[1]}
        assert RunCommand(ssm).online([]) == set()


def test_machine_that_has_stopped_is_told_and_the_others_run() -> None:
    """AWS refuses the whole list and does not say whose fault it is."""
    refused = Answer("send_command", {}, error="InvalidInstanceId")
    outcomes = run(refused, refused, sent(NODES[1:]), look(NODES[1], "Success"))
    assert outcomes[NODES[1]].is_done
    assert not outcomes[NODES[0]].is_done
    assert "it has stopped" in outcomes[NODES[0]].problem
