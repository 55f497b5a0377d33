"""`turnback validate` on the deployed state machine."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner, Result

from runtime.aws import validate
from runtime.aws.validate import Follower, Outcome, Wish, find_machine, lines_of, start
from runtime.cli import app
from runtime.contract.operations import ERRORS, INPUT_ERRORS, START_ERRORS, STEPS
from runtime.errors import BadInput
from stacks.constructs.validation.states import failing
from tests.infra.synth import Synth, raw_settings, synth
from tests.infra.validating import (
    GOOD,
    Machines,
    definition,
    deployed,
    every_state,
    played,
    set_capacity,
    stage_model,
)

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse:UserWarning")
RESULT: dict[str, Any] = {
    **GOOD,
    "mode": "validate",
    "missed": [],
    "complete": True,
    "speedup": {"ratio": 1.52, "ci95": [1.4, 1.6], "n": 10},
    "ttft_ms": {
        "one_way": {"n": 40, "p50": 300.0, "p90": 400.0},
        "bidirectional": {"n": 40, "p50": 200.0, "p90": None},
    },
    "pulled_share_percent": 91.5,
    "failed_turns": 0,
    "answers": {"compared": 50, "different": 0},
    "exactness": "equal",
}


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synth]:
    """The deployment, without a node; its model is staged."""
    made = synth(raw_settings(), tmp_path_factory.mktemp("validate"))
    with deployed(made):
        stage_model(made)
        yield made


@pytest.fixture(autouse=True)
def no_node_runs(account: Synth, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test finds it so; names of executions never meet, and polls are short."""
    set_capacity({"turnback-demo-prefill": 0, "turnback-demo-decode": 0})
    monkeypatch.setattr(validate, "_POLL_S", 0.05)
    monkeypatch.setattr(validate, "datetime", _Clock)


class _Clock:
    """A second later at each look."""

    count = 0

    @classmethod
    def now(cls, _zone: Any) -> Any:
        cls.count += 1
        return validate_datetime(2027, 1, 1, 0, cls.count // 60, cls.count % 60)


validate_datetime = datetime


def machines(**changes: Any) -> Machines:
    """A benchmark that is told as `turnback job measure bench` tells it."""
    made = Machines(**changes)
    made.outputs["Benchmark"] = RESULT | made.outputs.get("bench", {})
    return made


def asked(made: Machines, *words: str) -> Result:
    """The command, on machines."""
    with played(made, set()):
        return CliRunner().invoke(app, ["validate", *words])


def test_a_good_validation_shows_its_steps_and_its_result() -> None:
    """In their order, with the table and the report's place; exit code 0."""
    done = asked(machines(), "demo", "--wait", "--scale-up")
    assert done.exit_code == 0, done.output
    shown = [line for line in done.output.splitlines() if " s  " in line]
    told = [line.split(" s  ", 1)[1] for line in shown]
    titles = [title for name, title in STEPS.items() if name != "EndNodes"]
    assert [line for line in told if line in titles] == titles
    for part in ("1.52 (1.40 to 1.60, n 10)", "p50 200.00, p90 - (n 40)", "0 of 50 (equal)"):
        assert part in done.output
    assert f"report: {GOOD['report']}" in done.output


def test_a_missed_bar_ends_with_1() -> None:
    """And says which."""
    missed = {"verdict": "below_bar", "missed": ["speed-up 1.52, at least 2 is wanted"]}
    made = machines(outputs={**Machines().outputs, "bench": missed})
    done = asked(made, "demo", "--wait", "--scale-up", "--min-speedup", "2")
    assert done.exit_code == 1
    assert "below a bar: speed-up 1.52, at least 2 is wanted" in done.output
    (command,) = made.sent[-1]["Parameters"]["commands"]
    assert "--min-speedup 2" in command


@pytest.mark.parametrize(
    ("made", "words", "code", "said"),
    [
        (machines(), (), 2, "turnback scale up demo"),
        (machines(broken={"Ready"}), ("--scale-up",), 3, "at Ready"),
        (machines(broken={"Doctor"}), ("--scale-up",), 4, "at Doctor"),
        (machines(no_capacity=True), ("--scale-up",), 3, "InsufficientInstanceCapacity"),
        (machines(refused="SaveResult"), ("--scale-up",), 3, "told by a test: SaveResult"),
    ],
)
def test_failures_have_codes_and_reasons(
    made: Machines, words: tuple[str, ...], code: int, said: str
) -> None:
    """2: asked wrongly; 3: nodes or AWS; 4: what runs is not right."""
    done = asked(made, "demo", "--wait", *words)
    assert done.exit_code == code, done.output
    for part in (said, "got:", "allowed:", "fix:"):
        assert part in done.output
    assert "Traceback" not in done.output


def test_json_is_one_line_of_all_of_it() -> None:
    """Progress goes to stderr."""
    done = asked(machines(), "demo", "--wait", "--scale-up", "--json")
    told = json.loads(done.stdout)
    assert told["exit_code"] == done.exit_code == 0
    assert (told["status"], told["deployment"]) == ("SUCCEEDED", "demo")
    assert told["result"] == RESULT
    failed = asked(machines(broken={"Doctor"}), "demo", "--wait", "--scale-up", "--json")
    told = json.loads(failed.stdout)
    assert told["exit_code"] == failed.exit_code == 4
    assert told["error"] == "turnback.Doctor"


def test_without_wait_it_says_how_to_follow_and_to_stop() -> None:
    """And returns at once."""
    with played(machines(), set()):
        done = CliRunner().invoke(app, ["validate", "demo"])
        Follower(boto3.client("stepfunctions"), lambda _: None).follow(done.output.split()[1])
    assert done.exit_code == 0
    assert "turnback validate demo --follow" in done.output
    assert "stop-execution" in done.output


def test_a_running_one_is_followed_and_no_second_is_started() -> None:
    """The command says how."""
    seen: list[Result] = []

    def look(step: str) -> None:
        if step == "Transport":
            seen.append(CliRunner().invoke(app, ["validate", "demo", "--wait"]))

    done = asked(machines(at_step=look), "demo", "--wait", "--scale-up")
    assert done.exit_code == 0
    assert seen[0].exit_code == 2
    assert "runs already" in seen[0].output
    assert "turnback validate demo --follow" in seen[0].output


def test_following_none_shows_the_last_result() -> None:
    """Exit code 0: nothing was asked of the deployment."""
    asked(machines(), "demo", "--wait", "--scale-up")
    done = asked(machines(), "demo", "--follow")
    assert done.exit_code == 0
    assert "no validation of demo runs; the last: ended" in done.output
    assert f"report: {GOOD['report']}" in done.output


@pytest.mark.parametrize("option", ["--scale-up", "--scale-down=never", "--min-speedup=1.5"])
def test_following_takes_no_wishes(option: str) -> None:
    """They would change nothing."""
    done = asked(machines(), "demo", "--follow", option)
    assert done.exit_code == 2
    assert "as it was asked for" in done.output


def test_interrupting_leaves_it_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, with how to follow and to stop it."""

    def interrupt(_self: Any, _execution: str) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "follow", interrupt)
    done = asked(machines(), "demo", "--wait")
    assert done.exit_code == 130
    assert "the validation goes on" in done.output
    assert "--follow" in done.output


def test_another_deployments_name_is_told() -> None:
    """With what was looked for."""
    done = asked(machines(), "nobody", "--wait")
    assert done.exit_code == 2
    assert "no state machine turnback-nobody-validate" in done.output


def test_follow_takes_no_wishes() -> None:
    """It shows one that was asked for already."""
    assert asked(machines(), "demo", "--follow", "--min-speedup", "2").exit_code == 2


@pytest.mark.parametrize("status", ["ABORTED", "TIMED_OUT"])
def test_one_that_was_cut_off_may_have_left_nodes(status: str) -> None:
    """The state machine's end did not run."""
    failure = Outcome("arn", status).failure("demo")
    assert failure is not None
    assert failure.exit_code == 3
    assert "turnback scale down demo" in failure.fix


def test_every_step_that_a_user_is_told_of_is_a_state() -> None:
    """Of the definition."""
    names = [name for name, _ in every_state(definition())]
    assert {*STEPS} <= {*names}
    assert len(names) == len({*names}), "names are unique in a whole state machine"


def test_every_error_of_the_definition_has_its_exit_code() -> None:
    """Those that end with 2 and 3 are errors of the definition; any other is a step's."""
    ends = {state["Error"] for _, state in every_state(definition()) if "Error" in state}
    words = {error.removeprefix(ERRORS) for error in ends}
    assert {*INPUT_ERRORS, *START_ERRORS} <= words
    with pytest.raises(ValueError, match="error Other is none of"):
        failing("Other", "why")


def _targets(state: dict[str, Any]) -> Iterator[str]:
    for part in (state, *state.get("Choices", ()), *state.get("Catch", ())):
        yield from (part[key] for key in ("Next", "Default") if key in part)


def test_every_way_of_the_definition_leads_somewhere() -> None:
    """Within its own scope; moto finds that out only when it goes there."""

    def check(scope: dict[str, Any]) -> None:
        states = scope["States"]
        reached = {scope["StartAt"], *(to for each in states.values() for to in _targets(each))}
        assert reached == {*states}
        for state in states.values():
            ends = state.get("End") or state["Type"] in ("Succeed", "Fail", "Choice")
            assert bool(ends) != ("Next" in state)
            for inner in (*state.get("Branches", ()), state.get("ItemProcessor")):
                if inner:
                    check(inner)

    check(definition())


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        ({"type": "TaskStateEntered", "stateEnteredEventDetails": {"name": "DoctorSend"}}, []),
        ({"type": "MapStateEntered", "stateEnteredEventDetails": {"name": "Benchmark"}}, 1),
        (
            {
                "type": "TaskSucceeded",
                "taskSucceededEventDetails": {
                    "resource": "getCommandInvocation",
                    "output": json.dumps({"StandardErrorContent": "a\nb\nc\nd\n"}),
                },
            },
            ["  b", "  c", "  d"],
        ),
        (
            {"type": "TaskFailed", "taskFailedEventDetails": {"error": "E", "cause": "why\nmore"}},
            ["  E: why"],
        ),
        ({"type": "ExecutionFailed", "executionFailedEventDetails": {}}, ["  failed: no reason"]),
    ],
)
def test_lines_of_events(event: dict[str, Any], lines: Any) -> None:
    """Steps, the end of what a command printed, failures; polls are silent."""
    found = lines_of(event)
    assert found == ([STEPS["Benchmark"]] if lines == 1 else lines)


def test_history_is_read_once_however_long_it_is() -> None:
    """Pages are followed back to what was seen, and no further."""
    events = [
        {"id": number, "type": "X", "timestamp": validate_datetime(2027, 1, 1)}
        for number in range(1, 501)
    ]
    calls: list[dict[str, Any]] = []

    class States:
        def get_execution_history(self, **given: Any) -> dict[str, Any]:
            calls.append(given)
            newest = int(given.get("nextToken", 500))
            some = [each for each in reversed(events) if newest - 200 < each["id"] <= newest]  # type: ignore[operator]
            return {"events": some, "nextToken": str(newest - 200) if newest > 200 else None}

    follower = Follower(States(), lambda _: None)
    assert [each["id"] for each in follower._news("arn")] == [*range(1, 501)]
    assert len(calls) == 3
    follower._seen = 450
    assert [each["id"] for each in follower._news("arn")] == [*range(451, 501)]
    assert len(calls) == 4


def test_a_wish_is_the_machines_input() -> None:
    """Zero is no bar."""
    assert Wish().to_dict() == {
        "mode": "validate",
        "scale_up": False,
        "scale_down": "always",
        "min_speedup": 0,
        "slo_ttft_p90_ms": 0,
    }


def test_no_permission_is_told(account: Synth, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the actions that are needed."""

    class Refusing:
        meta = boto3.client("stepfunctions").meta

        def get_paginator(self, _name: str) -> Callable[[], Any]:
            from tests.infra.validating import error

            raise error("AccessDeniedException", "ListStateMachines")

    with pytest.raises(BadInput, match="cannot be looked for") as failure:
        find_machine(Refusing(), "demo")
    assert "states:ListStateMachines" in failure.value.allowed
    with pytest.raises(BadInput):
        start(Refusing(), "demo", Wish())
