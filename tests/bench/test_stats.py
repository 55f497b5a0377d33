"""Percentiles are order statistics; intervals have the right width."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.stats import (
    BOOTSTRAP_FROM,
    Interval,
    bootstrap_interval,
    cv_percent,
    more_often_p,
    percentile,
    ratio_interval,
    slope,
    t_interval,
    t_quantile_975,
)
from tests.bench.simulated import log_ratios


@pytest.mark.parametrize(
    ("count", "p", "want"),
    [
        (1, 50, 1),
        (2, 50, 1),
        (9, 90, None),
        (10, 90, 9),
        (11, 90, 10),
        (99, 99, None),
        (100, 99, 99),
        (0, 50, None),
    ],
)
def test_percentiles_are_nearest_rank_or_missing(count: int, p: int, want: float | None) -> None:
    """Of the values 1..n the percentile is a rank, or None where n is too small."""
    assert percentile([float(value) for value in range(count, 0, -1)], p) == want


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=10))
def test_a_percentile_is_one_of_the_values(values: list[float]) -> None:
    """At least 90 % of the values are at or below the p90, which is one of them."""
    p90 = percentile(values, 90)
    assert p90 in values
    assert sum(value <= p90 for value in values) >= 0.9 * len(values)


@pytest.mark.parametrize(
    ("degrees", "want"),
    [(1, 12.7062), (7, 2.3646), (30, 2.0423), (31, 2.0395), (40, 2.0211), (60, 2.0003)],
)
def test_t_quantiles_match_published_ones(degrees: int, want: float) -> None:
    """The 0.975 quantile agrees with published tables to four decimals."""
    assert t_quantile_975(degrees) == pytest.approx(want, abs=5e-5)


def test_t_quantile_at_120_degrees() -> None:
    """The expansion holds where the distribution is nearly normal."""
    assert t_quantile_975(120) == pytest.approx(1.9799, abs=5e-5)


def test_t_quantiles_fall_with_the_degrees() -> None:
    """Table and expansion meet without a step up."""
    quantiles = [t_quantile_975(degrees) for degrees in range(1, 200)]
    assert quantiles == sorted(quantiles, reverse=True)


def test_interval_of_two_ratios() -> None:
    """Ratios 1 and 4: geometric mean 2, half width t(1) * stdev / sqrt(2) on the logs."""
    interval = t_interval([math.log(1), math.log(4)])
    assert interval.ratio == pytest.approx(2)
    assert interval.ci95 is not None
    half = 12.7062 * math.log(4) / 2
    assert interval.ci95[0] == pytest.approx(2 / math.exp(half))
    assert interval.ci95[1] == pytest.approx(2 * math.exp(half))
    assert interval.n == 2


def test_too_few_ratios_have_no_interval() -> None:
    """One ratio has no spread, none has no mean."""
    one, none = t_interval([math.log(3)]), t_interval([])
    assert one.ratio == pytest.approx(3)
    assert (one.ci95, one.n) == (None, 1)
    assert (none.ratio, none.ci95, none.n) == (None, None, 0)


def covered(
    conversations: int, interval: Callable[[list[float]], Interval], *, as_turns: bool = False
) -> int:
    """Of 1,000 simulated benchmarks, how many intervals hold the ratio they were made from.

    Args:
        as_turns: give it every turn instead of each conversation's mean.
    """
    draws = log_ratios(np.random.default_rng(11), 1000, conversations, 5, ratio=2.0, noise=0.2)
    hits = 0
    for draw in draws:
        ends = interval((draw.ravel() if as_turns else draw.mean(axis=1)).tolist()).ci95
        hits += ends is not None and ends[0] <= 2.0 <= ends[1]
    return hits


@pytest.mark.parametrize("conversations", [10, 100])
def test_intervals_cover_a_known_ratio(conversations: int) -> None:
    """In 93 to 97 % of draws with skewed noise, correlated turns and conversations' effects."""
    assert 930 <= covered(conversations, ratio_interval) <= 970


@pytest.mark.parametrize("conversations", [10, 100])
def test_turns_taken_for_independent_would_cover_too_little(conversations: int) -> None:
    """Why a conversation is one value: the simulation tells a wrong unit from the right one."""
    assert covered(conversations, t_interval, as_turns=True) < 900


def test_the_method_changes_at_30_conversations() -> None:
    """Student's t below, the bootstrap from there; where nothing varies there is no bootstrap."""
    values = [0.1 * at for at in range(BOOTSTRAP_FROM)]
    assert ratio_interval(values[:-1]).method == "t"
    assert ratio_interval(values).method == "bootstrap"
    assert ratio_interval([0.5] * 50) == t_interval([0.5] * 50)
    assert t_interval([0.5]).method is None


def test_a_bootstrap_is_repeatable_and_near_t() -> None:
    """The same values give the same interval; without skew it is about Student's."""
    values = np.random.default_rng(3).normal(0.7, 0.3, 200).tolist()
    found, want = bootstrap_interval(values), t_interval(values)
    assert found == bootstrap_interval(values)
    assert found.ci95 == pytest.approx(want.ci95, rel=0.01)
    assert found.ratio == pytest.approx(want.ratio)


def test_a_bootstrap_follows_the_skew() -> None:
    """A long upper tail moves both ends up: the mean may be far above the values seen."""
    values = np.random.default_rng(3).gamma(0.5, 1.0, 60).tolist()
    found, want = bootstrap_interval(values), t_interval(values)
    assert found.ci95 is not None
    assert want.ci95 is not None
    assert found.ci95[1] > want.ci95[1]
    assert found.ci95[0] > want.ci95[0]


@given(st.lists(st.floats(-1, 1), min_size=BOOTSTRAP_FROM, max_size=40))
def test_an_interval_holds_its_ratio(values: list[float]) -> None:
    """Whatever the values are: finite ends on either side."""
    found = ratio_interval(values)
    assert found.ci95 is not None
    assert found.ratio is not None
    assert 0 < found.ci95[0] <= found.ratio * (1 + 1e-9)
    assert found.ratio <= found.ci95[1] * (1 + 1e-9)
    assert math.isfinite(found.ci95[1])


def test_slope_of_a_line() -> None:
    """Points on one line have its slope and no doubt."""
    lines = [[(float(x), 3.0 + 2.0 * x) for x in range(cluster, cluster + 4)] for cluster in (0, 9)]
    found = slope(lines)
    assert found.value == pytest.approx(2.0)
    assert found.ci95 == pytest.approx((2.0, 2.0))


def test_slope_of_long_histories_keeps_its_digits() -> None:
    """Prompts of a million tokens that differ by hundreds."""
    lines = [[(1e6 + 100.0 * x, 5e4 + 0.05 * x) for x in range(4)] for _ in range(3)]
    assert slope(lines).value == pytest.approx(0.0005)
    assert slope([[(1e6, 1.0), (1e6, 2.0)]] * 2).value is None


def test_slope_of_one_cluster_has_no_interval() -> None:
    """Nor one that rests on a single cluster's spread."""
    assert slope([[(0.0, 0.0), (1.0, 2.0)], []]) == slope([[(0.0, 0.0), (1.0, 2.0)]])
    assert slope([[(0.0, 0.0), (1.0, 2.0)]]).ci95 is None
    assert slope([[(0.0, 0.0), (1.0, 2.0)], [(0.0, 1.0)]]).ci95 is None
    assert slope([]).n == 0


def test_variation_of_repeats() -> None:
    """Standard deviation over mean; one value has none."""
    assert cv_percent([1.0, 3.0]) == pytest.approx(100 * math.sqrt(2) / 2)
    assert cv_percent([1.0]) is None


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        ((3, 3), (0, 3), 1 / 20),
        ((0, 5), (0, 5), 1.0),
        ((0, 5), (5, 5), 1.0),
        ((1, 2), (0, 1), 2 / 3),
        # Fisher's tea: 3 of 4 against 1 of 4.
        ((3, 4), (1, 4), 17 / 70),
    ],
)
def test_fishers_exact_test(first: tuple[int, int], second: tuple[int, int], want: float) -> None:
    """One-sided, from counted arrangements."""
    assert more_often_p(first, second) == pytest.approx(want)
