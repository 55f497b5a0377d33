"""The deployed state machine, executed: what a validation does, and what it leaves."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest

from runtime.contract.operations import BAR_MISSED, SPEED_UP, VALIDATION_FAILED
from stacks.constructs.validation.commands import POLL_S
from tests.infra.synth import Synth, raw_settings, synth
from tests.infra.validating import (
    GIVEN,
    GOOD,
    Machines,
    Run,
    definition,
    deployed,
    run,
    set_capacity,
    stage_model,
    tasks,
)

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse:UserWarning")
BOTH = {"turnback-demo-prefill": 1, "turnback-demo-decode": 1}
NONE = {"turnback-demo-prefill": 0, "turnback-demo-decode": 0}
STEPS = ("Ready", "Doctor", "Transport", "Exactness", "Benchmark")


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """The committed settings."""
    return synth(raw_settings(), tmp_path_factory.mktemp("validation"))


@pytest.fixture(scope="module")
def account(templates: Synth) -> Iterator[None]:
    """The deployment, without a node; its model is staged."""
    with deployed(templates):
        stage_model(templates)
        yield


@pytest.fixture(autouse=True)
def no_node_runs(account: None) -> None:
    """Each test finds it so."""
    set_capacity(NONE)


@cache
def _numbers() -> Iterator[int]:
    return iter(range(1000))


def played(machines: Machines, **given: Any) -> Run:
    """An execution with a name of its own."""
    return run(machines, {**GIVEN, **given}, f"run-{next(_numbers())}")


def nodes(found: Run) -> dict[str, int]:
    """Desired capacity of the groups of nodes."""
    return {name: count for name, count in found.desired.items() if name in BOTH}


def metrics(found: Run) -> dict[str, float]:
    """What the machine put into CloudWatch."""
    data = [each for asked in found.published["PutMetricData"] for each in asked["MetricData"]]
    assert all(each["Dimensions"] == [{"Name": "Deployment", "Value": "demo"}] for each in data)
    return {each["MetricName"]: each["Value"] for each in data}


def test_a_good_run_checks_measures_publishes_and_ends_what_it_started() -> None:
    """All of it, in order; nodes that were started are ended, the last result is the run's."""
    machines = Machines()
    found = played(machines)
    assert (found.status, found.cause) == ("SUCCEEDED", "")
    assert [state for state in found.states if state in STEPS] == [*STEPS]
    assert {*BOTH.items()} <= {*found.raised}
    assert nodes(found) == NONE
    assert found.output == found.last
    assert found.last["state"] == "ended"
    assert found.last["result"] == GOOD
    assert metrics(found) == {VALIDATION_FAILED.name: 0, BAR_MISSED.name: 0}
    (message,) = found.published["Publish"]
    assert message["Subject"] == "turnback demo: validated"
    assert json.loads(message["Message"]) == found.last


def test_checks_go_to_nodes_and_measurements_to_a_router() -> None:
    """By their groups; every command's output goes to the run's folder."""
    machines = Machines()
    played(machines)
    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    (router,) = (
        [each["InstanceId"] for each in group["Instances"]]
        for group in groups
        if group["AutoScalingGroupName"] == "turnback-demo-router"
    )
    by_step = {each["Comment"].rpartition(" ")[2]: each for each in machines.sent}
    assert [*by_step] == [*STEPS]
    for step, asked in by_step.items():
        ids = asked["InstanceIds"]
        assert ids == router if step in ("Transport", "Exactness", "Benchmark") else len(ids) == 2
        assert asked["OutputS3KeyPrefix"].endswith(f"/commands/{step}")
        assert asked["Parameters"]["executionTimeout"][0].isdigit()


def test_the_run_and_the_bars_stand_on_the_command_line() -> None:
    """As the input gives them."""
    machines = Machines()
    found = played(machines, min_speedup=1.3, slo_ttft_p90_ms=500)
    (asked,) = [each for each in machines.sent if each["Comment"].endswith("Benchmark")]
    (command,) = asked["Parameters"]["commands"]
    assert f" --run-id {found.output['run_id']} " in command
    assert command.endswith(" --min-speedup 1.3 --slo-ttft-p90-ms 500")


def test_a_missed_bar_is_told_and_is_no_failure() -> None:
    """The run went well: its nodes are ended as asked, and the fleet is not rolled back."""
    missed = {**GOOD, "verdict": "below_bar"}
    found = played(Machines(outputs={**Machines().outputs, "Benchmark": missed}))
    assert found.status == "SUCCEEDED"
    assert metrics(found)[BAR_MISSED.name] == 1
    assert found.published["Publish"][0]["Subject"] == "turnback demo: a result is below a bar"


@pytest.mark.parametrize(
    ("scale_down", "good", "bad"),
    [("always", NONE, NONE), ("on_failure", BOTH, NONE), ("never", BOTH, BOTH)],
)
def test_nodes_are_ended_as_asked(
    scale_down: str, good: dict[str, int], bad: dict[str, int]
) -> None:
    """After a good run and after a failed one."""
    assert nodes(played(Machines(), scale_down=scale_down)) == good
    set_capacity(NONE)
    assert nodes(played(Machines(broken={"Doctor"}), scale_down=scale_down)) == bad


@pytest.mark.parametrize("broken", [set[str](), {"Doctor"}])
def test_nodes_that_ran_before_stay(broken: set[str]) -> None:
    """Only what a run has started is its own to end."""
    set_capacity(BOTH)
    found = played(Machines(broken=broken))
    assert "NodesStart" not in found.states
    assert nodes(found) == BOTH


def test_only_the_group_that_was_raised_is_lowered() -> None:
    """To what it was."""
    set_capacity({"turnback-demo-prefill": 1})
    assert nodes(played(Machines())) == NONE | {"turnback-demo-prefill": 1}


def test_capacity_that_somebody_changed_meanwhile_stays() -> None:
    """It is no longer the run's."""

    def grow(step: str) -> None:
        if step == "Benchmark":
            set_capacity({"turnback-demo-decode": 2})

    found = played(Machines(at_step=grow))
    assert nodes(found) == {"turnback-demo-prefill": 0, "turnback-demo-decode": 2}


def test_scaling_alone_checks_nodes_and_measures_nothing() -> None:
    """`after_deploy = "scale"`."""
    found = played(Machines(), mode="scale", scale_down="on_failure")
    assert found.status == "SUCCEEDED"
    assert [state for state in found.states if state in STEPS] == ["Ready", "Doctor"]
    assert nodes(found) == BOTH
    assert found.last["result"] == {"verdict": "good", "mode": "scale"}


def test_missing_nodes_are_not_started_unasked() -> None:
    """The reason says how to."""
    found = played(Machines(), scale_up=False)
    assert (found.status, found.error) == ("FAILED", "turnback.NodesMissing")
    assert "turnback scale up demo" in found.cause
    assert not found.raised


def test_no_node_is_started_for_a_model_that_is_not_staged(templates: Synth) -> None:
    """It would cost an hour of each node until its boot is given up."""
    stage_model(templates, remove=True)
    found = played(Machines())
    stage_model(templates)
    assert found.error == "turnback.ModelNotStaged"
    assert "turnback model stage demo" in found.cause
    assert not found.raised


@pytest.mark.parametrize("step", STEPS)
def test_a_command_that_fails_fails_the_run_with_what_it_said(step: str) -> None:
    """Nodes that were started are ended, the reason is published, the execution has failed."""
    found = played(Machines(broken={step}))
    check_failed(found)
    assert found.error == f"turnback.{step}"
    assert "it's said {why}" in found.cause
    assert "Failed on i-" in found.cause


def test_a_command_that_was_never_taken_over_fails_the_run() -> None:
    """As on a node that died: what was started is ended all the same."""
    found = played(Machines(broken={"Doctor"}, untold=True))
    check_failed(found)
    assert found.error == "turnback.Doctor"
    assert "what it said cannot be had" in found.cause


@pytest.mark.parametrize("step", STEPS)
def test_a_command_that_does_not_end_is_given_up(step: str) -> None:
    """After its time-out and the time of delivery; nothing waits for ever."""
    machines = Machines(endless={step})
    found = played(machines)
    check_failed(found)
    assert found.error == f"turnback.{step}"
    (asked,) = [each for each in machines.sent if each["Comment"].endswith(step)]
    limit_s = int(asked["Parameters"]["executionTimeout"][0])
    assert limit_s <= found.states.count(f"{step}Pause") * POLL_S <= limit_s + 660


@pytest.mark.parametrize("output", ["", "no JSON", '{"cut": ', "{}", '{"verdict": "fine"}'])
def test_an_answer_that_is_none_fails_the_run(output: str) -> None:
    """And what was started is ended."""
    check_failed(played(Machines(outputs={**Machines().outputs, "Benchmark": output})))


def test_nodes_that_do_not_come_are_told_with_the_groups_last_activity() -> None:
    """As when capacity is short."""
    found = played(Machines(no_capacity=True))
    check_failed(found)
    assert found.error == "turnback.NodesNotThere"
    assert "InsufficientInstanceCapacity" in found.cause


def test_a_deployment_without_a_router_is_told() -> None:
    """Nodes that were started are ended."""
    set_capacity({"turnback-demo-router": 0}, least=0)
    found = played(Machines())
    set_capacity({"turnback-demo-router": 1}, least=1)
    check_failed(found)
    assert found.error == "turnback.NoRouter"
    assert "turnback-demo-router" in found.cause


def test_a_node_whose_agent_is_late_is_asked_again() -> None:
    """SSM does not know an instance in its first minutes."""
    machines = Machines(not_online=5)
    assert played(machines).status == "SUCCEEDED"
    assert len(machines.sent) == len(STEPS)


def check_failed(found: Run) -> None:
    """Nodes that were started are ended; the reason is in every place; the execution failed."""
    assert found.status == "FAILED"
    assert nodes(found) == NONE
    assert found.last["state"] == "failed"
    # moto puts words of its own before the cause of a state's own error.
    assert found.last["failed"]["Cause"][-60:] == found.cause[-60:]
    assert metrics(found) == {VALIDATION_FAILED.name: 1}
    (message,) = found.published["Publish"]
    assert message["Subject"] == "turnback demo: the validation failed"
    assert json.loads(message["Message"]) == found.last
    (file,) = found.published["PutObject"]
    assert file["Key"] == f"runs/{found.last['run_id']}/failure.json"


ALL = [name for name, _ in tasks(definition())]
FAILURE_ENDS = {"SaveFailureFile", "SaveFailureResult", "FailureMetrics", "NotifyFailure"}
AFTER_FAILURE = {*FAILURE_ENDS, "EndDescribe", "EndRestore"}
ELSEWHERE = {
    *(f"{step}{part}" for step in STEPS for part in ("Why",)),
    "WaitActivities",
    "NotifyMissed",
    "BarMissed",
}
"""Tasks of ways that a good run does not take; each has a test above, or one below."""


@pytest.mark.parametrize("state", [each for each in ALL if each not in AFTER_FAILURE | ELSEWHERE])
def test_a_call_that_aws_refuses_fails_the_run(state: str) -> None:
    """In each task state of a good run."""
    found = played(Machines(refused=state))
    assert state in found.refused
    assert found.status == "FAILED"
    assert "told by a test" in found.cause
    assert nodes(found) == NONE
    assert found.last["state"] == "failed"
    assert found.published["PutObject"]
    assert found.published["Publish"][-1]["Subject"] == "turnback demo: the validation failed"


@pytest.mark.parametrize("state", sorted(FAILURE_ENDS))
def test_what_cannot_be_published_keeps_nothing_else_from_being(state: str) -> None:
    """A failed run ends as one, its nodes ended, whatever of its end is refused."""
    found = played(Machines(broken={"Doctor"}, refused=state))
    assert state in found.refused
    assert (found.status, found.error) == ("FAILED", "turnback.Doctor")
    assert nodes(found) == NONE
    assert [name for name in found.states if name in FAILURE_ENDS] == [
        *("SaveFailureFile", "SaveFailureResult", "FailureMetrics", "NotifyFailure")
    ]


@pytest.mark.parametrize("state", ["EndDescribe", "EndRestore"])
def test_nodes_that_cannot_be_ended_are_told(state: str) -> None:
    """Somebody pays for them: the message says so, and how to end them."""
    found = played(Machines(broken={"Doctor"}, refused=state))
    assert found.status == "FAILED"
    assert "still run" in found.cause
    assert "turnback scale down demo" in found.cause
    assert "it's said {why}" in found.cause
    assert found.last["failed"]["Cause"] == found.cause


@pytest.mark.parametrize("state", [*(f"{step}Why" for step in STEPS), "WaitActivities"])
def test_a_reason_that_cannot_be_asked_for_ends_the_run_all_the_same(state: str) -> None:
    """With AWS's refusal in the reason."""
    step = state.removesuffix("Why")
    machines = Machines(broken={step}, refused=state, no_capacity=state == "WaitActivities")
    found = played(machines)
    assert state in found.refused
    check_failed(found)


@pytest.mark.parametrize("state", ["BarMissed", "NotifyMissed"])
def test_a_missed_bar_that_cannot_be_told_fails_the_run(state: str) -> None:
    """Else nobody would know."""
    missed = {**GOOD, "verdict": "below_bar"}
    machines = Machines(outputs={**Machines().outputs, "Benchmark": missed}, refused=state)
    found = played(machines)
    assert state in found.refused
    assert found.status == "FAILED"
    assert nodes(found) == NONE


def test_a_second_run_ends_at_once_and_changes_nothing() -> None:
    """The one that began first goes on; its last result is not written over."""
    second: list[Run] = []

    def start_another(step: str) -> None:
        if step == "Ready":
            second.append(run(Machines(), GIVEN, "the-second"))

    first = played(Machines(at_step=start_another))
    assert first.status == "SUCCEEDED"
    assert (second[0].status, second[0].error) == ("FAILED", "turnback.AnotherRuns")
    assert first.output["run_id"] in second[0].cause
    assert second[0].states[-1] == "AnotherRuns"
    assert first.last["run_id"] == first.output["run_id"]


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "all"},
        {"scale_down": "later"},
        {"scale_up": "yes"},
        {"min_speedup": "1; reboot"},
        {"slo_ttft_p90_ms": None},
    ],
)
def test_wrong_input_ends_at_once(given: dict[str, Any]) -> None:
    """Nothing but a number reaches a shell, and nothing is started."""
    found = played(Machines(), **given)
    assert (found.status, found.error) == ("FAILED", "turnback.WrongInput")
    assert found.states == ["CheckInput", "WrongInput"]


def test_missing_input_ends_at_once() -> None:
    """As of one who starts it by hand in the console."""
    found = run(Machines(), {}, "by-hand")
    assert (found.status, found.error) == ("FAILED", "turnback.WrongInput")


def test_metrics_have_the_names_that_dashboards_read() -> None:
    """Of the contract; a benchmark's own are put by the router."""
    assert {VALIDATION_FAILED.name, BAR_MISSED.name} == {"ValidationFailed", "BarMissed"}
    assert SPEED_UP.name == "SpeedUp"


def test_whole_machine_has_time_for_all_its_parts(tmp_path: Path) -> None:
    """Its own time-out scales nothing down: it must be the last to end a run."""
    del tmp_path
    found = definition()
    limits = [
        int(state["Parameters"]["Parameters"]["executionTimeout"][0])
        for _, state in tasks(found)
        if state["Resource"].endswith("ssm:sendCommand")
    ]
    assert len(limits) == len(STEPS)
    assert found["TimeoutSeconds"] > 1800 + sum(limits) + 900 * len(limits)
