"""Speed-ups rest on conversations; repeats and A/A say how steady they are."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from runtime.bench.report.ratios import points, speedup, stability
from runtime.bench.stats import ratio_interval
from runtime.bench.turn import ARMS, TurnResult
from tests.bench.simulated import simulated_pass

Make = Callable[..., TurnResult]


@pytest.mark.parametrize(("conversations", "method"), [(10, "t"), (100, "bootstrap")])
def test_the_overall_interval_is_that_of_conversations(conversations: int, method: str) -> None:
    """The interval whose coverage is tested, on the means of each conversation's logs."""
    _, results, _ = simulated_pass(conversations=conversations, repeats=2, again_share=0.3)
    logs: dict[int, list[float]] = {}
    for first in results:
        for second in results:
            is_pair = (first.arm, second.arm) == ARMS and not (first.is_again or second.is_again)
            same = (first.conversation, first.turn, first.repeat) == (
                *(second.conversation, second.turn),
                second.repeat,
            )
            if is_pair and same and first.turn > 1 and first.ttft_ms and second.ttft_ms:
                logs.setdefault(first.conversation, []).append(
                    math.log(first.ttft_ms / second.ttft_ms)
                )
    want = ratio_interval([float(np.mean(each)) for each in logs.values()])
    found = speedup(results, 5)["overall"]
    assert found["method"] == method == want.method
    assert found["n"] == conversations
    assert found["ratio"] == pytest.approx(want.ratio)
    assert found["ci95"] == pytest.approx(want.ci95)


def test_a_known_ratio_is_found() -> None:
    """Without noise the ratio is exact, and 1 at turn 1."""
    _, results, _ = simulated_pass(ratio=3.0, noise=0.0)
    found = speedup(results, 5)
    assert found["turn_1"]["ratio"] == pytest.approx(1.0)
    assert [turn["ratio"] for turn in found["turns"]] == [pytest.approx(3.0)] * 4
    assert found["overall"]["ratio"] == pytest.approx(3.0)


def test_failures_make_no_ratio() -> None:
    """With a third of the turns failed the ratio is still that of the others."""
    _, results, _ = simulated_pass(ratio=3.0, noise=0.0, failures=0.3, aborts=0.1)
    assert speedup(results, 5)["overall"]["ratio"] == pytest.approx(3.0)


def test_points_have_their_own_figures() -> None:
    """One entry per prefix length, turns from the second on; prompts grow with it."""
    _, results, _ = simulated_pass(points=(2000, 8000), conversations=4, again_share=0.5)
    short, long = points(results, ARMS)
    assert (short["own_prefix_tokens"], long["own_prefix_tokens"]) == (2000, 8000)
    for point in (short, long):
        assert point["arms"]["one_way"]["n"] == 4 * 4
        assert point["speedup"]["n"] == 4
        assert point["arms"]["bidirectional"]["pull_ms_p50"] > 0
        assert point["arms"]["one_way"]["pull_ms_p50"] == 0
    grown = long["arms"]["one_way"]["prompt_tokens"] - short["arms"]["one_way"]["prompt_tokens"]
    assert grown == 6000


def test_no_sweep_is_one_point() -> None:
    """And no turns are no point."""
    assert len(points(simulated_pass()[1], ARMS)) == 1
    assert points([], ARMS) == []


def ratio_turns(make: Make, ratios: tuple[float, ...]) -> list[TurnResult]:
    """One conversation a repeat, each with its own ratio at turn 2."""
    return [
        make(turn=2, repeat=repeat, arm=arm, ttft_ms=100.0 / (ratio if arm != "one_way" else 1))
        for repeat, ratio in enumerate(ratios)
        for arm in ARMS
    ]


@pytest.mark.parametrize(
    ("ratios", "cv_percent", "is_stable"),
    [
        ((2.0, 2.0), 0.0, True),
        ((2.0, 2.2), 100 * math.sqrt(0.02) / 2.1, True),
        ((2.0, 3.0), 100 * math.sqrt(0.5) / 2.5, False),
        ((2.0,), None, None),
    ],
)
def test_stability_is_of_the_repeats_ratios(
    make_turn: Make, ratios: tuple[float, ...], cv_percent: float | None, is_stable: bool | None
) -> None:
    """Steady up to a coefficient of variation of 10 %; one repeat says nothing."""
    found = stability(ratio_turns(make_turn, ratios), len(ratios))
    assert found["ratios"] == [pytest.approx(ratio) for ratio in ratios]
    if cv_percent is None:
        assert found["cv_percent"] is None
    else:
        assert found["cv_percent"] == pytest.approx(cv_percent)
    assert found["is_stable"] is is_stable


def test_the_control_compares_turns_with_their_repeats(make_turn: Make) -> None:
    """A/A: the first run's TTFT over the second's, one value per conversation."""
    turns = [
        make_turn(conversation=at, ttft_ms=ttft_ms, is_again=is_again)
        for at, pair in enumerate(((80.0, 40.0), (10.0, 20.0)))
        for is_again, ttft_ms in zip((False, True), pair, strict=True)
    ]
    again = stability(turns, 1)["again"]
    assert again["ratio"] == pytest.approx(1.0)
    assert again["n"] == 2
