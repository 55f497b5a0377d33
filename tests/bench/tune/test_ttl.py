"""The TTL that keeps a share of returns within what D may pin."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.tune.gaps import Gaps, exponential, observed
from runtime.bench.tune.ttl import Budget, find_ttl

ROOM = Budget(10**9, 0.5, 1.0, (1000,), 0.8)


@given(
    st.lists(st.floats(0, 5000), min_size=20, max_size=100),
    st.sampled_from([0.5, 0.9, 0.95]),
    st.integers(6, 60),
)
def test_the_share_is_kept_by_the_shortest_ttl(
    gaps_s: list[float], share: float, margin_s: int
) -> None:
    """A second less would lose it, or break the contract."""
    gaps = observed(gaps_s, "test")
    ttl = find_ttl(gaps, share, margin_s, ROOM)
    assert ttl.seconds is not None
    assert ttl.seconds >= margin_s + 5
    assert gaps.share_within(ttl.seconds - margin_s) >= share
    assert ttl.kept_share == gaps.share_within(ttl.seconds - margin_s)
    is_least = ttl.seconds == margin_s + 5
    assert is_least or gaps.share_within(ttl.seconds - 1 - margin_s) < share
    assert not ttl.is_bounded


@given(st.floats(1, 500), st.floats(0.05, 1.0), st.floats(1e4, 1e6))
def test_the_longest_ttl_that_the_budget_holds_is_taken(
    mean_s: float, returning: float, capacity: float
) -> None:
    """It holds, and a second more would not; or none does."""
    gaps = exponential(mean_s)
    budget = Budget(int(capacity), 0.5, 0.5, (2000, 6000), returning)
    ttl = find_ttl(gaps, 0.95, 10, budget)
    if ttl.seconds is None:
        assert budget.pinned_tokens(gaps, 15) > budget.tokens
        assert "add decode nodes" in ttl.why
        return
    assert ttl.pinned_tokens == budget.pinned_tokens(gaps, ttl.seconds) <= budget.tokens
    assert ttl.wanted_s is not None
    assert ttl.is_bounded == (ttl.seconds < ttl.wanted_s)
    if ttl.is_bounded:
        assert budget.pinned_tokens(gaps, ttl.seconds + 1) > budget.tokens
        assert f"{ttl.wanted_s} s for 95%" in ttl.why


def test_littles_law_is_what_a_played_d_pins() -> None:
    """Mean and 95th percentile of a played queue, within a few percent."""
    rng, ttl_s, per_s, tokens = np.random.default_rng(1), 90.0, 4.0, (1000, 3000)
    gaps = exponential(60)
    budget = Budget(10**9, 0.5, per_s, tokens, 0.75)
    began = np.cumsum(rng.exponential(1 / per_s, 40_000))
    stays = np.where(rng.random(40_000) < 0.75, rng.exponential(60, 40_000), np.inf)
    ended, held = began + np.minimum(stays, ttl_s), rng.choice(tokens, 40_000)
    moments = np.linspace(500, began[-1] - 500, 3000)
    pinned = [held[(began <= at) & (ended > at)].sum() for at in moments]
    assert np.mean(pinned) == pytest.approx(budget.pinned_tokens(gaps, ttl_s), rel=0.03)
    assert np.quantile(pinned, 0.95) == pytest.approx(budget.peak_tokens(gaps, ttl_s), rel=0.03)


def test_turns_that_nobody_follows_pin_to_the_end() -> None:
    """They stay the whole TTL, however short the gaps of the others are."""
    gaps = observed([1.0] * 20, "test")
    none, half = (Budget(10**6, 0.5, 1.0, (1000,), share) for share in (1.0, 0.5))
    assert none.pinned_tokens(gaps, 100) == pytest.approx(1000)
    assert half.pinned_tokens(gaps, 100) == pytest.approx(500 + 50_000)


def test_without_a_budget_the_share_alone_decides() -> None:
    """And no pins are told."""
    ttl = find_ttl(exponential(100), 0.95, 10, None)
    assert ttl.seconds == math.ceil(gap_95() + 10)
    assert (ttl.pinned_tokens, ttl.peak_tokens) == (None, None)
    at_once = find_ttl(observed([0.0] * 20, "test"), 0.95, 10, None)
    assert at_once.seconds == 15


def gap_95() -> float:
    """Of exponential gaps with a mean of 100 s."""
    return exponential(100).quantile_s(0.95)


def test_the_interval_is_in_settings_too() -> None:
    """The ends of the gap's interval with the margin on top; the upper one may be open."""
    gaps = observed([float(at) for at in range(200)], "test")
    assert find_ttl(gaps, 0.95, 10, None).ci95_s == (193, 206)
    few = Gaps(tuple(float(at) for at in range(20)), "test", 20)
    found = find_ttl(few, 0.95, 10, None).ci95_s
    assert found is not None
    assert found[1] is None


def test_too_few_gaps_give_no_ttl() -> None:
    """19 cannot show 95 %."""
    ttl = find_ttl(observed([1.0] * 19, "test"), 0.95, 10, None)
    assert (ttl.seconds, ttl.kept_share) == (None, None)
    assert "at least 20" in ttl.why
