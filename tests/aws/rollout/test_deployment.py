"""A deployment in a pretended account is rolled out."""

from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

from runtime.aws.clients import rollout_clients
from runtime.aws.reports import REPORT_COMMAND
from runtime.errors import BadInput
from tests.aws.rollout.account import Account, break_after_restart, denied, told, with_targets

pytestmark = pytest.mark.usefixtures("account")

NODE, ROUTER = (
    "systemctl restart --no-block turnback-node.service",
    "systemctl restart --no-block turnback-router.service",
)


def test_ttl_is_rolled_out_by_tags_and_commands(ours: Account) -> None:
    """Each engine: the tag that routers read, its unit, the tag away."""
    ours.deploy(300, "bb")
    report, _ = ours.roll()
    assert report.failure is None
    assert ours.done == [
        f"{ROUTER} router-0",
        *("turnback:draining=true decode-0", f"{NODE} decode-0", "no turnback:draining decode-0"),
        *("turnback:draining=true decode-1", f"{NODE} decode-1", "no turnback:draining decode-1"),
        *("turnback:draining=true prefill-0", f"{NODE} prefill-0"),
        *("no turnback:draining prefill-0", "turnback:draining=true prefill-1"),
        *(f"{NODE} prefill-1", "no turnback:draining prefill-1"),
    ]
    reports = [host.report for host in ours.hosts.values()]
    assert {each.ttl_s for each in reports} == {300, None}
    assert ours.draining() == []


def test_second_run_does_nothing(ours: Account) -> None:
    """Nor does one without a change."""
    report, lines = ours.roll()
    assert ours.done == []
    assert len(report.kept) == 5
    assert "nothing to do" in lines[0]


def test_running_requests_are_waited_for(ours: Account) -> None:
    """What the node itself says runs or waits."""
    ours.deploy(600, "bb")
    ours.hosts[ours.id_of("decode-0")].busy_until_s = 400
    report, _ = ours.roll()
    assert report.failure is None
    assert ours.clock() > 400


def test_node_that_does_not_come_back_is_named_with_its_log(ours: Account) -> None:
    """Its id, what its unit logged, and what to do."""
    ours.deploy(300, "bb")
    ours.hosts[ours.id_of("decode-0")].is_broken = True
    ours.hosts[ours.id_of("decode-0")].report = ours.hosts[
        ours.id_of("decode-0")
    ].report.model_copy(update={"generation": "aa"})
    report, lines = ours.roll(drain_s=30)
    assert "does not answer" in told(report)  # it might run something
    assert "systemctl stop turnback-node.service" in told(report)
    assert "--drain-s" not in told(report)
    assert lines[-1] == f"decode {ours.id_of('decode-0')}: taken back as it was"
    assert ours.draining() == []
    ours.hosts[ours.id_of("decode-0")].is_broken = False
    ours.overrides["SendCommand"] = break_after_restart(ours, "decode-0")
    report, _ = ours.roll(ready_s=600)
    assert f"decode {ours.id_of('decode-0')} does not come back" in told(report)
    assert "out of memory" in told(report)
    assert ours.draining() == ["decode-0"]
    assert len(report.left) == 4


def test_command_that_fails_is_named(ours: Account) -> None:
    """The unit is the image's."""
    ours.deploy(300, "bb")

    def answer(asked: dict[str, Any]) -> Any:
        reply = ours._SendCommand(asked)
        if "turnback-node" in asked["Parameters"]["commands"][0]:
            outputs = ours.outputs[reply["Command"]["CommandId"]]
            for each in outputs:
                outputs[each] = {
                    "Status": "Failed",
                    "ResponseCode": 5,
                    "StandardErrorContent": "Unit turnback-node.service not found.",
                }
        return reply

    ours.overrides["SendCommand"] = answer
    report, _ = ours.roll()
    assert "not found" in told(report)
    assert NODE in told(report)
    assert ours.draining() == ["decode-0"]


def test_machine_without_an_agent_stops_it_before_anything(ours: Account) -> None:
    """All of them are told; what they run decides the order."""
    ours.deploy(300, "bb")
    for name in ("decode-0", "prefill-1"):
        ours.hosts[ours.id_of(name)].is_online = False
    with pytest.raises(BadInput) as failure:
        ours.roll()
    assert all(ours.id_of(name) in failure.value.got for name in ("decode-0", "prefill-1"))
    assert "agent is offline" in failure.value.got
    assert ours.done == []


def test_answer_of_another_form_stops_it_before_anything(ours: Account) -> None:
    """An image with an older kit, or something else that prints."""
    ours.deploy(300, "bb")
    real = ours._run

    def other(instance: str, command: str) -> dict[str, Any]:
        return real(instance, command) | {"StandardOutputContent": "Traceback"}

    ours._run = other  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="5 node") as failure:
        ours.roll()
    assert "another form: 'Traceback'" in failure.value.got


@pytest.mark.parametrize("look", range(1, 6))
def test_busy_machine_that_does_not_tell_once_is_never_restarted(ours: Account, look: int) -> None:
    """Whichever look it is that fails: what is not told is not "does not run"."""
    ours.deploy(300, "bb")
    busy = ours.id_of("decode-0")
    ours.hosts[busy].busy_until_s = 100_000
    real, looks = ours._run, Counter[str]()

    def shaky(instance: str, command: str) -> dict[str, Any]:
        looks[instance] += command == REPORT_COMMAND
        fails = instance == busy and command == REPORT_COMMAND and looks[instance] == look
        return {"Status": "TimedOut"} if fails else real(instance, command)

    ours._run = shaky  # type: ignore[method-assign]
    if look == 1:
        with pytest.raises(BadInput, match="1 node"):
            ours.roll()
        assert ours.done == []
        return
    report, _ = ours.roll(drain_s=60)
    assert report.failure is not None
    assert looks[busy] >= look
    assert not any(NODE in each for each in ours.done)
    assert ours.draining() == []


def test_routers_leave_their_load_balancer_while_another_can_stand_in(account: None) -> None:
    """The second is moved when the first gets connections again."""
    ours = Account()
    ours.deploy(480, "aa")
    ours.group("router", 2)
    ours.overrides["DescribeAutoScalingGroups"] = with_targets(ours)
    ours.deploy(300, "bb")
    report, _ = ours.roll()
    assert report.failure is None
    assert ours.done == [
        *("deregister router-0", f"{ROUTER} router-0", "register router-0"),
        *("deregister router-1", f"{ROUTER} router-1", "register router-1"),
    ]
    assert set(ours.health.values()) == {"healthy"}


def test_only_router_stays_in_its_load_balancer(account: None) -> None:
    """Out of it nobody would be served for the whole drain."""
    ours = Account()
    ours.deploy(480, "aa")
    ours.group("router", 1)
    ours.overrides["DescribeAutoScalingGroups"] = with_targets(ours)
    ours.deploy(300, "bb")
    ours.roll()
    assert ours.done == [f"{ROUTER} router-0"]


def test_unknown_deployment_is_bad_input(account: None) -> None:
    """No parameters, so no nodes to roll out."""
    with pytest.raises(BadInput, match="has no parameters") as failure:
        Account().roll()
    assert "/turnback/ours/prefill, /turnback/ours/decode" in failure.value.got


def test_missing_leave_is_told_with_the_action(ours: Account) -> None:
    """And the node is taken back, where it was the drain that was not allowed."""
    ours.deploy(600, "bb")
    ours.overrides["CreateTags"] = denied
    report, lines = ours.roll()
    assert "ec2:CreateTags" in told(report)
    assert lines[-1] == f"prefill {ours.id_of('prefill-0')}: taken back as it was"
    assert "no turnback:draining prefill-0" in ours.done
    assert ours.draining() == []
    assert "AccessDenied" in told(report)


def test_answer_that_is_late_is_asked_for_again(ours: Account) -> None:
    """A moment without network must not end an hour's work."""
    fails = iter([True, True])

    def shaky(_asked: dict[str, Any]) -> Any:
        if next(fails, False):
            raise ConnectTimeoutError(endpoint_url="https://ec2.invalid")

    ours.deploy(300, "bb")
    ours.overrides["DescribeInstances"] = shaky
    report, _ = ours.roll()
    assert report.failure is None


@pytest.mark.parametrize("lost", ["SendCommand", "GetCommandInvocation"])
def test_restart_is_sent_once(ours: Account, lost: str) -> None:
    """A lost answer may be that of a restart under way; only its end is asked for again."""
    ours.deploy(600, "bb")
    own, fails = getattr(ours, f"_{lost}"), iter([True, True])

    def shaky(asked: dict[str, Any]) -> Any:
        reply = own(asked)
        if any(NODE in each for each in ours.done) and next(fails, False):
            raise ReadTimeoutError(endpoint_url="https://ssm.invalid")
        return reply

    ours.overrides[lost] = shaky
    report, _ = ours.roll()
    assert sum(each == f"{NODE} prefill-0" for each in ours.done) == 1
    if lost == "SendCommand":
        assert "cannot be restarted" in told(report)
        assert ours.draining() == ["prefill-0"]
    else:
        assert report.failure is None


def test_calls_that_are_not_harmless_are_not_repeated_by_boto3() -> None:
    """It would send a restart, or an end that takes one off the capacity, a second time."""
    clients = rollout_clients("eu-central-1")
    for each in (clients.ssm, clients.autoscaling):
        assert each.meta.config.retries["total_max_attempts"] == 1


def test_spec_of_another_kit_is_told(ours: Account) -> None:
    """This command is older than what is deployed, or the other way round."""
    ours._put("decode", '{"role": "decode", "news": 1}')
    with pytest.raises(BadInput, match="/turnback/ours/decode") as failure:
        ours.roll()
    assert "news" in failure.value.allowed
