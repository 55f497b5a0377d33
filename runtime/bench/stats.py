"""Percentiles, intervals, slopes and the test of rare differences. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BOOTSTRAP_FROM = 30
"""Clusters from which on the interval is a bootstrap's: below, resamples repeat themselves."""

_RESAMPLES = 2000
_LEAST_SPREAD = 0.95
"""Share of resamples whose values differ; fewer do where nearly all values are one."""

_SEED = 20_260_102
"""Fixed: one set of results has one report."""

_Z_975 = 1.959963984540054
"""0.975 quantile of the normal distribution."""

# fmt: off
_T_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)
# fmt: on
"""0.975 quantile of Student's t for 1..30 degrees of freedom.

Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2 (three decimals
there; the fourth by numerical integration of the density).
"""


@dataclass(frozen=True)
class Interval:
    """A ratio with its 95 % interval.

    Attributes:
        ratio: geometric mean; None when n is 0.
        ci95: lower and upper end; None when n < 2.
        n: independent values it rests on.
        method: of the interval; None where there is none.
    """

    ratio: float | None
    ci95: tuple[float, float] | None
    n: int
    method: Literal["t", "bootstrap"] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self) | {"ci95": None if self.ci95 is None else list(self.ci95)}


def percentile(values: Sequence[float], p: int) -> float | None:
    """Nearest-rank percentile: one of the values, never a mix of two.

    Args:
        values: in any order.
        p: percent, 1 to 99.

    Returns:
        None where n cannot support it: p90 needs n >= 10, p99 n >= 100, the median
        and below n >= 1.
    """
    least = 1 if p <= 50 else math.ceil(100 / (100 - p))
    if len(values) < least:
        return None
    return sorted(values)[math.ceil(p * len(values) / 100) - 1]


def t_quantile_975(degrees: int) -> float:
    """0.975 quantile of Student's t.

    Args:
        degrees: degrees of freedom, at least 1.

    Source:
        A table up to 30; above it the Cornish-Fisher expansion, Abramowitz and
        Stegun 26.7.5, whose error is below 1e-5 there.
    """
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = _Z_975
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def t_interval(log_ratios: Sequence[float]) -> Interval:
    """Geometric-mean ratio with a 95 % interval by Student's t on the logs.

    Args:
        log_ratios: natural logs, one per independent cluster.
    """
    n = len(log_ratios)
    if n == 0:
        return Interval(None, None, 0)
    mean = fmean(log_ratios)
    if n == 1:
        return Interval(math.exp(mean), None, 1)
    half = t_quantile_975(n - 1) * stdev(log_ratios) / math.sqrt(n)
    return Interval(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)), n, "t")


def bootstrap_interval(log_ratios: Sequence[float]) -> Interval:
    """The same by a studentised bootstrap: the quantiles come from the data, skew included.

    Args:
        log_ratios: natural logs, one per independent cluster, at least 2.

    Returns:
        Student's t interval where nearly all values are one: resamples say nothing then.

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap, 12.5 (bootstrap-t).
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    n = len(values)
    rng = np.random.default_rng(_SEED)
    drawn = values[rng.integers(0, n, size=(_RESAMPLES, n), dtype=np.int32)]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    is_spread = errors > 1e-12
    if is_spread.mean() < _LEAST_SPREAD:
        return t_interval(log_ratios)
    drawn, errors = drawn[is_spread], errors[is_spread]
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n)
    low, high = np.quantile((drawn.mean(axis=1) - mean) / errors, (0.025, 0.975))
    ends = math.exp(mean - float(high) * error), math.exp(mean - float(low) * error)
    return Interval(math.exp(mean), ends, n, "bootstrap")


def ratio_interval(log_ratios: Sequence[float]) -> Interval:
    """Geometric-mean ratio with its 95 % interval: t below 30 clusters, bootstrap from there.

    Args:
        log_ratios: natural logs, one per independent cluster.
    """
    is_many = len(log_ratios) >= BOOTSTRAP_FROM
    return bootstrap_interval(log_ratios) if is_many else t_interval(log_ratios)


@dataclass(frozen=True)
class Slope:
    """Rise of a straight line with its 95 % interval; n clusters."""

    value: float | None
    ci95: tuple[float, float] | None
    n: int

    def to_dict(self, scale: float = 1.0) -> dict[str, Any]:
        """As plain JSON, for a rise over `scale` steps of x."""
        return {
            "value": None if self.value is None else self.value * scale,
            "ci95": None if self.ci95 is None else [end * scale for end in self.ci95],
            "n": self.n,
        }


Points = Sequence[tuple[float, float]]
"""(x, y) of one cluster."""


def slope(clusters: Sequence[Points]) -> Slope:
    """Least-squares slope of y over x; its interval lets whole clusters vary together.

    The interval is the delete-one-cluster jackknife's with Student's t. Where every
    cluster has the same x, that is the t interval of the clusters' own slopes.

    Args:
        clusters: points of each conversation; x in whole tokens.

    Returns:
        value None where x does not vary, ci95 None for fewer than 2 clusters.

    Source:
        Bell and McCaffrey (2002), and MacKinnon, Nielsen and Webb (2023): CV3.
    """
    filled = [np.asarray(points, dtype=np.float64) for points in clusters if points]
    n = len(filled)
    if not n:
        return Slope(None, None, 0)
    # Centred, so that sums of squares of long histories keep their digits.
    centre = np.concatenate(filled).mean(axis=0)
    sums = np.array([_sums(points - centre) for points in filled])
    whole = _slope_of(sums.sum(axis=0))
    without = [_slope_of(left) for left in sums.sum(axis=0) - sums]
    if whole is None or n < 2 or None in without:
        return Slope(whole, None, n)
    left_out = np.array(without, dtype=np.float64)
    half = t_quantile_975(n - 1) * math.sqrt((n - 1) / n * float(((left_out - whole) ** 2).sum()))
    return Slope(whole, (whole - half, whole + half), n)


def _sums(points: NDArray[np.float64]) -> tuple[float, ...]:
    x, y = points.T
    return len(x), float(x.sum()), float(y.sum()), float((x * x).sum()), float((x * y).sum())


def _slope_of(sums: NDArray[np.float64]) -> float | None:
    count, x, y, xx, xy = sums.tolist()
    spread = count * xx - x * x
    return None if spread <= 1e-6 else (count * xy - x * y) / spread


def cv_percent(values: Sequence[float]) -> float | None:
    """Coefficient of variation, standard deviation over mean; None for fewer than two."""
    return None if len(values) < 2 else 100 * stdev(values) / fmean(values)


def more_often_p(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Fisher's exact test, one-sided: how likely chance alone makes `first` stand out so.

    Args:
        first: (events, trials).
        second: the same of the control.

    Returns:
        Probability of at least so many of all events in `first`, were the rates equal.
    """
    (events, trials), (others, controls) = first, second
    most = min(events + others, trials)
    ways = sum(
        math.comb(trials, at) * math.comb(controls, events + others - at)
        for at in range(events, most + 1)
    )
    return ways / math.comb(trials + controls, events + others)
