"""What is read out of a report."""

from typing import Any

import pytest

from runtime.bench.report import build_report
from runtime.bench.tune.observations import Observations, observe
from runtime.bench.tune.tuning import Wishes, tune
from runtime.errors import BadInput
from tests.bench.simulated import simulated_pass
from tests.bench.tune.made import made, made_report


def changed(at: int, report: dict[str, Any] | None = None, **fields: Any) -> Observations:
    """A made pass, one row of it changed."""
    report = report or made_report()
    report["requests"][at] |= fields
    return observe(report, "report.json")


def test_turns_that_failed_left_or_were_repeated_are_not_timed() -> None:
    """Nor are those whose stages nobody told."""
    whole = made()
    for fields in (
        {"outcome": "errored"},
        {"outcome": "aborted"},
        {"is_again": True},
        {"stages_ms": None},
    ):
        assert len(changed(6, **fields).pulls) == len(whole.pulls) - 1
        assert len(changed(6, **fields).prefills) == len(whole.prefills) - 1


def test_gaps_are_from_the_end_of_a_turn_to_the_next() -> None:
    """Of the bidirectional arm, one fewer than a conversation's turns."""
    report = made_report(conversations=2, turns=3, think_s=30)
    rows = [row for row in report["requests"] if row["arm"] == "bidirectional"]
    thought_s = [row["think_s"] for row in rows if row["turn"] > 1]
    assert observe(report, "r").gaps_s() == pytest.approx(thought_s)


def test_scaled_think_times_are_scaled_back() -> None:
    """A pass that waited a tenth of them still says how long users take."""
    report = made_report(think_s=30)
    plain_s = observe(report, "r").gaps_s()
    report["pass"]["bench"]["think_scale"] = 0.1
    assert observe(report, "r").gaps_s() == pytest.approx([10 * gap for gap in plain_s])


def test_a_pass_without_think_times_has_no_gaps() -> None:
    """How fast the benchmark sends is nobody's think time."""
    assert made().gaps_s() == []
    report = made_report(think_s=30)
    report["pass"]["bench"]["think_scale"] = 0
    assert observe(report, "r").gaps_s() == []


def test_a_turn_after_a_failed_one_has_no_gap() -> None:
    """There was no handle to come back to."""
    report = made_report(conversations=1, turns=5, think_s=30)
    assert len(observe(report, "r").gaps_s()) == 4
    assert len(changed(7, report, outcome="errored").gaps_s()) == 2


def test_rate_and_returns_are_the_bidirectional_arms() -> None:
    """10 blocks of 5 turns of 1 s; 4 of 5 turns are followed."""
    seen = made()
    assert seen.finished_per_s() == pytest.approx(1.0)
    assert seen.returning_share() == pytest.approx(0.8)
    assert made(arms=("one_way",)).finished_per_s() is None
    assert made(arms=("one_way",)).returning_share() is None


def test_a_handle_holds_whole_blocks_of_prompt_and_answer() -> None:
    """Rounded up."""
    seen = made(conversations=1, turns=1, lengths=(100, 100))
    assert seen.pinned_tokens() == [320]  # 100 + 150 and an answer of 50, in blocks of 32


def test_another_pass_is_found_by_its_name() -> None:
    """The first one is the default; a name that is none is refused with those there are."""
    other = made_report(turns=2) | {"pass": {"name": "cached"}}
    report = made_report(other_passes=[other])
    assert observe(report, "r").name == "main"
    assert len(observe(report, "r", "cached").rows) == 40
    with pytest.raises(BadInput, match="no such pass") as caught:
        observe(report, "r", "nothing")
    assert caught.value.allowed == "main, cached"


@pytest.mark.parametrize(
    "fields",
    [
        {"started_s": float("nan")},
        {"arm": "sideways"},
        {"outcome": "fine"},
        {"pulled_tokens": "many"},
        {"stages_ms": {"pull": float("inf")}},
    ],
)
def test_a_row_that_is_none_is_refused(fields: dict[str, Any]) -> None:
    """With the field and the value."""
    with pytest.raises(BadInput) as caught:
        changed(3, **fields)
    assert next(iter(fields)) in str(caught.value)


def test_a_pass_without_turns_is_refused() -> None:
    """An empty report cannot be tuned from."""
    with pytest.raises(BadInput, match="no turns"):
        observe(made_report(requests=[]), "report.json")


def test_a_report_of_the_benchmark_is_read() -> None:
    """As build_report makes it of a sweep with think times: capacity, pulls, gaps."""
    passed = simulated_pass(2.0, 8, 5, points=(200, 1000, 4000), think_s=3.0)
    seen = observe(build_report([passed]), "report.json")
    assert seen.kv_capacity_tokens == 200_000
    assert len(seen.pulls) == 8 * 3 * 4
    assert seen.gaps_s() == pytest.approx([3.0] * 96)
    tuned = tune(seen, Wishes(turns_per_s=0.1))
    assert tuned.ttl.seconds == 15
    assert tuned.threshold.fit is not None
    assert tuned.then.saved_ms is not None
    assert tuned.then.saved_ms > 0
