"""Where pulling starts to win."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.tune.threshold import Threshold, find_threshold
from tests.bench.tune.made import BLOCK, Truth, made


def found(truth: Truth | None = None, **sizes: object) -> Threshold:
    """Of a made pass."""
    return find_threshold(made(truth, **sizes))


@given(
    a=st.floats(20, 60),
    b=st.floats(0, 0.02),
    gain=st.floats(0.02, 0.1),
    e=st.sampled_from([0, 2e-6]),
)
def test_the_crossing_is_found_and_rounded_up_to_whole_blocks(
    a: float, b: float, gain: float, e: float
) -> None:
    """The least number of blocks whose pull is no slower."""
    truth = Truth(a, b, 10.0, b + gain, e)
    threshold = found(truth)
    assert threshold.verdict == "crosses"
    assert threshold.crossing == pytest.approx(truth.crossing, rel=1e-3)
    assert threshold.tokens is not None
    assert threshold.tokens % BLOCK == 0
    assert threshold.tokens - BLOCK < truth.crossing * 1.001
    assert threshold.tokens >= truth.crossing * 0.999


def test_the_interval_covers_the_crossing() -> None:
    """In about 95 % of draws, and its ends stand around the estimate."""
    truth, hits = Truth(), 0
    for seed in range(100):
        threshold = found(truth, noise=0.1, seed=seed)
        assert threshold.ci95 is not None
        assert threshold.crossing is not None
        low, high = threshold.ci95
        assert low <= threshold.crossing <= high
        hits += low <= truth.crossing <= high
    assert 88 <= hits <= 100


def test_what_p_holds_itself_lowers_the_threshold() -> None:
    """Tokens after a long local prefix cost more attention to compute."""
    truth = Truth(e=2e-5)
    with_local = found(truth, local=4000)
    without = found(truth)
    assert with_local.local_tokens == 4000
    assert with_local.crossing is not None
    assert without.crossing is not None
    assert with_local.crossing < without.crossing / 2


def test_a_crossing_below_what_was_measured_is_not_guessed() -> None:
    """Pulling always wins there; the setting stays."""
    threshold = found(Truth(a=2), noise=0.05, lengths=(2000, 8000))
    assert (threshold.verdict, threshold.tokens, threshold.crossing) == ("always_wins", None, None)
    assert "2176 to 8800 tokens" in threshold.why


def test_pulls_that_never_win_are_turned_off_as_far_as_they_were_measured() -> None:
    """The least whole blocks above the longest pull; what lies beyond stays."""
    threshold = found(Truth(b=0.05, d=0.02), noise=0.05)
    assert threshold.verdict == "never_wins"
    assert threshold.fit is not None
    assert threshold.tokens == threshold.fit.pulled_range[1] + BLOCK
    far = found(Truth(a=900), noise=0.05)
    assert far.verdict == "never_wins"
    assert far.crossing is None


def test_noise_that_hides_the_difference_is_told() -> None:
    """No setting is made out of it."""
    verdicts = []
    for seed in range(20):
        threshold = found(Truth(a=1, b=0.03, d=0.03), noise=0.5, seed=seed)
        verdicts.append(threshold.verdict)
        if threshold.verdict == "unclear":
            assert threshold.tokens is None
            assert "measure more turns" in threshold.why
    assert verdicts.count("unclear") >= 16


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"arms": ("one_way",)}, "no turn of this pass pulled"),
        ({"turns": 1}, "no turn of this pass pulled"),
        ({"conversations": 4, "turns": 8}, "28 timed pulls of 4 conversations"),
        ({"turns": 2}, "10 timed pulls of 10 conversations"),
        ({"lengths": (5000, 5200), "turns": 3}, "differ by 1.25 times"),
    ],
)
def test_too_few_turns_are_counted_and_not_fitted(sizes: dict[str, Any], word: str) -> None:
    """It says how many there are and how many it needs."""
    threshold = found(**sizes)
    assert (threshold.verdict, threshold.tokens, threshold.fit) == ("too_few", None, None)
    assert word in threshold.why
