"""Why a figure is missing, or must not be trusted, stands in the report."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime.bench.folder import Sample
from runtime.bench.report import build_report
from runtime.bench.scrape import COUNTERS
from runtime.bench.turn import TurnResult
from tests.bench.simulated import pass_of, profile_of, simulated_pass

Make = Callable[..., TurnResult]


def problems(**settings: Any) -> list[str]:
    found: list[str] = build_report([simulated_pass(**settings)])["problems"]
    return found


def test_a_good_pass_has_none() -> None:
    """Nothing is said where nothing is wrong; a failure in a hundred is only counted."""
    assert problems(failures=0.01) == []


def test_more_than_5_percent_of_failures_are_told() -> None:
    """What is left is no fair sample."""
    assert any("turns failed" in line for line in problems(failures=0.15, conversations=40))


def test_a_partial_pass_says_why() -> None:
    """What ended it stands there."""
    assert problems(stopped_by="interrupted")[0] == "the pass is partial: stopped by interrupted"


def test_a_fleet_that_errs_on_half_the_requests(make_turn: Make) -> None:
    """The share and the first error are told for each arm."""
    lines = problems(failures=0.5)
    assert len([line for line in lines if "turns failed; figures are of the" in line]) == 2
    assert any("HTTP 500: the engine failed" in line for line in lines)


def test_an_arm_without_a_good_turn_has_no_ratio(make_turn: Make) -> None:
    """Ratios are null, never made from failures, and the line says why."""
    turns = [
        make_turn(turn=2, arm="one_way"),
        make_turn(turn=2, arm="bidirectional", outcome="errored", error="boom", ttft_ms=None),
    ]
    report = build_report([pass_of(profile_of(), turns)])
    assert report["speedup"]["overall"]["ratio"] is None
    assert report["savings"] is None
    want = "bidirectional: no turn succeeded, so there is no ratio (first: boom)"
    assert want in report["problems"]
    assert report["exactness"]["verdict"] == "not_compared"


def test_answers_that_differ_more_than_noise() -> None:
    """How many, and what repeats did."""
    lines = problems(differences=0.2, again_share=0.5)
    assert any(line.startswith("answers: ") and "of their repeats 0 of" in line for line in lines)
    assert any("no turn was run twice" in line for line in problems(differences=0.2, again_share=0))


def test_unsteady_repeats_and_a_skewed_control() -> None:
    """Repeats that wobble and A/A ratios that are not 1 are told."""
    info, results, samples = simulated_pass(repeats=2, again_share=0.5, noise=0.02)
    skewed = [
        replace(one, ttft_ms=one.ttft_ms * (2 if one.is_again else 1 + one.repeat))
        if one.ttft_ms and one.arm == "one_way"
        else one
        for one in results
    ]
    lines = build_report([(info, skewed, samples)])["problems"]
    assert any(line.startswith("repeats: their speed-ups vary by 47") for line in lines)
    assert any(line.startswith("A/A: the same turns run twice differ") for line in lines)


@pytest.mark.parametrize("name", ["failed_transfers", "reads_after_free", "expired"])
def test_transfers_that_went_wrong(name: str) -> None:
    """Failed, expired and after-free reads, by role."""
    passed = pass_of(profile_of(), [], engine={"decode": {name: 3.0}})
    lines = build_report([passed])["problems"]
    assert any(line.startswith("decode: 3 ") for line in lines)


def test_servers_that_were_not_read() -> None:
    """Also of a router."""
    silent = [Sample(float(at), "router", "r", {}) for at in range(2)]
    info, results, samples = simulated_pass()
    lines = build_report([(info, results, [*samples, *silent])])["problems"]
    assert lines == ["router r: 2 of 2 readings were not answered"]


def test_stages_that_do_not_add_up() -> None:
    """Below 95 % of the turns."""
    info, results, samples = simulated_pass(conversations=10)
    untold = [replace(one, router_ms={}) if one.turn == 1 else one for one in results]
    lines = build_report([(info, untold, samples)])["problems"]
    assert lines == ["stages: they add up to the TTFT in 80 of 100 turns only"]


def test_one_conversation_has_no_interval(make_turn: Make) -> None:
    """A ratio of one is told as such."""
    turns = [make_turn(turn=2, arm="one_way"), make_turn(turn=2, arm="bidirectional")]
    lines = build_report([pass_of(profile_of(), turns)])["problems"]
    assert "speed-up: 1 conversation is too few for an interval" in lines


def test_counters_have_names() -> None:
    """Those that a problem is made from are counted at all."""
    assert {"failed_transfers", "reads_after_free", "expired"} <= set(COUNTERS)
