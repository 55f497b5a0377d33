"""Seconds between a turn and the next: where they come from, and their order statistics."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from runtime.errors import BadInput

_GRID = 10_000
"""Quantiles that stand for an exponential distribution."""


@dataclass(frozen=True)
class Gaps:
    """A distribution of gaps.

    Attributes:
        sorted_s: ascending, at least one, each >= 0.
        source: where they come from, for the reader.
        n: observations; None where they are assumed, not observed.
    """

    sorted_s: tuple[float, ...]
    source: str
    n: int | None

    def mean_pinned_s(self, ttl_s: float) -> float:
        """Mean of min(gap, ttl)."""
        return fmean(min(gap, ttl_s) for gap in self.sorted_s)

    def share_within(self, limit_s: float) -> float:
        """Share of gaps of at most this length."""
        return sum(gap <= limit_s for gap in self.sorted_s) / len(self.sorted_s)

    def least_n(self, share: float) -> int:
        """Observations below which an order statistic for this share is none of them."""
        return math.ceil(round(1 / (1 - share), 9))

    def quantile_s(self, share: float) -> float:
        """The gap that this share does not exceed: one of them (nearest rank)."""
        return self.sorted_s[math.ceil(round(share * len(self.sorted_s), 9)) - 1]

    def quantile_ci95_s(self, share: float) -> tuple[float, float | None] | None:
        """Its 95 % interval between two of the gaps, whatever their distribution.

        An upper end of None: so few gaps do not bound it. None: they were not observed.

        Source: David and Nagaraja, Order Statistics, 2003, 7.1: the number of gaps
        below the true quantile is binomial.
        """
        if self.n is None:
            return None
        below = [0.0]
        for k in range(self.n + 1):
            below.append(below[-1] + _binomial(self.n, k, share))
        # below[k]: P(fewer than k gaps lie below the quantile).
        low = max((k for k in range(1, self.n + 1) if below[k] <= 0.025), default=0)
        high = next((k for k in range(1, self.n + 1) if below[k] >= 0.975), None)
        return (
            self.sorted_s[low - 1] if low else 0.0,
            None if high is None else self.sorted_s[high - 1],
        )

    def share_error(self, share: float) -> float:
        """Standard error of an observed share; 0 where gaps are assumed."""
        return 0.0 if self.n is None else math.sqrt(share * (1 - share) / self.n)


def _binomial(n: int, k: int, share: float) -> float:
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(share) + (n - k) * math.log1p(-share))


def observed(gaps_s: Sequence[float], source: str) -> Gaps:
    """Gaps that were measured; at least one."""
    return Gaps(tuple(sorted(gaps_s)), source, len(gaps_s))


def exponential(mean_s: float) -> Gaps:
    """Gaps that are assumed to be exponential."""
    grid = ((at + 0.5) / _GRID for at in range(_GRID))
    gaps_s = tuple(-mean_s * math.log1p(-share) for share in grid)
    return Gaps(gaps_s, f"assumed: exponential with a mean of {mean_s:g} s", None)


def read_gaps(path: Path) -> Gaps:
    """Read a file of seconds: a JSON list, or one number a line, `#` for comments.

    Raises:
        BadInput: it cannot be read, is empty, or holds what is no time.
    """
    try:
        text = path.read_text("utf-8")
        told = _json_list(text) if text.lstrip().startswith("[") else _lines(text)
    except (OSError, ValueError) as error:
        raise _bad(path, str(error)) from None
    if not told:
        raise _bad(path, "no number at all")
    gaps_s = []
    for where, value in told:
        seconds = _seconds(value)
        if seconds is None:
            raise _bad(path, f"{where}: {value!r}")
        gaps_s.append(seconds)
    return observed(gaps_s, f"{path.name}, {len(gaps_s)} gaps")


def _json_list(text: str) -> list[tuple[str, object]]:
    return [(f"item {at}", value) for at, value in enumerate(json.loads(text), 1)]


def _lines(text: str) -> list[tuple[str, object]]:
    bare = ((at, line.split("#", 1)[0].strip()) for at, line in enumerate(text.splitlines(), 1))
    return [(f"line {at}", line) for at, line in bare if line]


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _bad(path: Path, got: str) -> BadInput:
    return BadInput(
        "the think times cannot be read",
        got=f"{path}: {got}",
        allowed="seconds, 0 or more, at least one: a JSON list of numbers, or one number a line",
        fix="mend the file, or give --think-mean-s",
    )
