"""Objectives, slopes and rates of an arm."""

from collections.abc import Callable

import numpy as np
import pytest

from runtime.bench.report.latency import busy_s, goodput, history_slope, rates
from runtime.bench.stats import slope
from runtime.bench.turn import TurnResult
from runtime.contract.bench import Objectives

Make = Callable[..., TurnResult]


def test_goodput_counts_turns_that_keep_every_objective(make_turn: Make) -> None:
    """Failed turns keep nothing; turns whose client left, and repeats, are in no count."""
    turns = [
        make_turn(ttft_ms=100.0, e2e_ms=120.0),
        make_turn(ttft_ms=101.0, e2e_ms=111.0),
        make_turn(ttft_ms=50.0, e2e_ms=80.0),
        make_turn(ttft_ms=None, e2e_ms=None, outcome="errored"),
        make_turn(ttft_ms=None, e2e_ms=None, outcome="aborted"),
        make_turn(ttft_ms=1.0, e2e_ms=2.0, is_again=True),
    ]
    both = goodput(turns, Objectives(ttft_ms=100, tpot_ms=20))
    assert both == {"share": 1 / 4, "n": 4, "ttft_ms": 100, "tpot_ms": 20}
    only_ttft = goodput(turns, Objectives(ttft_ms=100))
    assert only_ttft is not None
    assert only_ttft["share"] == 2 / 4


def test_no_objective_no_goodput(make_turn: Make) -> None:
    """Where nothing is asked there is no share; without turns it is not known."""
    assert goodput([make_turn()], Objectives()) is None
    assert goodput([], Objectives(ttft_ms=1)) == {
        "share": None,
        "n": 0,
        "ttft_ms": 1,
        "tpot_ms": None,
    }


def test_one_token_has_no_pace_to_keep(make_turn: Make) -> None:
    """An answer of one token keeps any TPOT."""
    found = goodput([make_turn(token_ids=(5,))], Objectives(tpot_ms=0.001))
    assert found is not None
    assert found["share"] == 1.0


def test_the_slope_is_per_1000_tokens_from_turn_2_on(make_turn: Make) -> None:
    """50 ms more TTFT per 1,000 tokens in one conversation and 70 in the other are 60."""
    turns = [
        make_turn(
            conversation=conversation,
            turn=turn,
            prompt_tokens=1000 + 400 * turn,
            ttft_ms=20 + rise * 0.4 * turn if turn > 1 else 9000.0,
        )
        for conversation, rise in ((0, 50), (1, 70))
        for turn in (1, 2, 3, 4)
    ]
    found = history_slope(turns)
    assert found["value"] == pytest.approx(60)
    # Of two clusters' own slopes, 50 and 70: t(1) * 10.
    assert found["ci95"] == pytest.approx([60 - 127.062, 60 + 127.062])
    assert found["n"] == 2


def test_a_history_that_does_not_grow_has_no_slope(make_turn: Make) -> None:
    """No spread in the prompts, no line; nor without turns."""
    same = [make_turn(turn=2, conversation=at, ttft_ms=50.0 + at) for at in range(5)]
    assert history_slope(same) == {"value": None, "ci95": None, "n": 5}
    assert history_slope([]) == {"value": None, "ci95": None, "n": 0}


def test_slope_intervals_cover_a_known_slope() -> None:
    """In 93 to 97 % of 1,000 draws, with skewed noise and levels of conversations' own."""
    rng = np.random.default_rng(5)
    hits = 0
    tokens = np.arange(2, 6) * 450 + 2000
    for _ in range(1000):
        noise = (rng.gamma(2.0, 1.0, (10, 4)) - 2.0) * 5 + rng.normal(0, 10, (10, 1))
        rises = 60 + (rng.gamma(2.0, 1.0, (10, 1)) - 2.0) * 10
        ttft = 20 + rises * tokens / 1000 + noise
        ends = slope([list(zip(tokens, row, strict=True)) for row in ttft]).ci95
        hits += ends is not None and ends[0] * 1000 <= 60 <= ends[1] * 1000
    assert 930 <= hits <= 970


def test_rates_are_over_the_time_in_which_an_arm_was_played(make_turn: Make) -> None:
    """Blocks of the other arm in between are no time of this one; think times are."""
    turns = [
        make_turn(arm="one_way", started_s=0.0, ended_s=4.0),
        make_turn(arm="one_way", started_s=1.0, ended_s=2.0, outcome="errored"),
        make_turn(arm="bidirectional", started_s=10.0, ended_s=11.0),
        make_turn(arm="one_way", started_s=20.0, ended_s=21.0),
    ]
    assert busy_s(turns, "one_way") == 5.0
    assert rates(turns, "one_way") == {"requests_per_s": 2 / 5, "answer_tokens_per_s": 4 / 5}
    assert rates(turns, "bidirectional")["requests_per_s"] == 1.0


def test_no_time_no_rate(make_turn: Make) -> None:
    """An arm that was not played, or turns without moments."""
    nothing = {"requests_per_s": None, "answer_tokens_per_s": None}
    assert rates([], "one_way") == nothing
    assert rates([make_turn()], "one_way") == nothing
