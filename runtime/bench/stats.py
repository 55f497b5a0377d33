"""Percentiles and intervals. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

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
    """

    ratio: float | None
    ci95: tuple[float, float] | None
    n: int


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
    return Interval(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)), n)
