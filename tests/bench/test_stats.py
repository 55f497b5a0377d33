"""Percentiles are order statistics; intervals have the right width."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.stats import percentile, t_interval, t_quantile_975


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
