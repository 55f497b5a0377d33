"""Times of pulls and prefills as straight lines in tokens, robust, with their covariance. Pure.

    pull_ms    = a + b * pulled
    prefill_ms = c + d * computed + e * computed * (history + computed / 2)

The last term is attention: each computed token reads all before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.bench.stats import t_quantile_975
from runtime.bench.tune.observations import Row

Floats = NDArray[np.float64]

LEAST_TURNS = 20
"""Timed pulls, and timed prefills: below this a line through them says nothing."""
LEAST_CONVERSATIONS = 5
"""Independent clusters: below this an interval is no more than a guess."""
LEAST_SPREAD = 1.25
"""Longest pull over shortest: below this fixed cost and cost per token cannot be told apart."""
_MOST_GROUPS = 50
_HUBER, _BISQUARE = 1.345, 4.685
"""95 % efficient where errors are normal. Source: Huber and Ronchetti, Robust Statistics, 2009."""
_LEAST_SHARE = 0.05
"""Of the median time: no fitted time counts as less, so that no error is divided by zero."""


@dataclass(frozen=True)
class Fit:
    """Both lines.

    Attributes:
        theta: a, b, c, d, e in ms and tokens; e is 0 where the data show no such term.
        covariance: of theta, shape (5, 5), by leaving out one group of conversations at a time.
        degrees: of freedom of its t intervals.
        pulls: timed pulls it rests on.
        prefills: timed prefills it rests on.
        conversations: independent clusters: those that pulled.
        outliers: turns so far off both lines that they do not count.
        pulled_range: fewest and most tokens of a pull.
    """

    theta: Floats
    covariance: Floats
    degrees: int
    pulls: int
    prefills: int
    conversations: int
    outliers: int
    pulled_range: tuple[int, int]

    def saved_ms(self, pulled: Floats, local: Floats) -> Floats:
        """What a pull saves over computing its tokens; negative: it costs.

        Args:
            pulled: tokens, shape (n,).
            local: tokens before them in P's own cache, shape (n,).
        """
        return np.asarray(_gains(pulled, local) @ self.theta)

    def half_width_ms(self, pulled: Floats, local: Floats) -> Floats:
        """Half of the 95 % interval of each saved_ms."""
        gains = _gains(pulled, local)
        variance = np.einsum("ij,jk,ik->i", gains, self.covariance, gains)
        return np.asarray(t_quantile_975(self.degrees) * np.sqrt(variance))

    def mean_saved_ms(self, pulled: Floats, local: Floats, counted: Floats) -> tuple[float, float]:
        """Mean of counted * saved_ms over turns, and its standard error."""
        mean = (_gains(pulled, local) * counted[:, None]).mean(axis=0)
        return float(mean @ self.theta), float(np.sqrt(mean @ self.covariance @ mean))


def _gains(pulled: Floats, local: Floats) -> Floats:
    """Rows g with g @ theta = time to compute `pulled` tokens after `local` ones, less the pull's.

    Prefill of the rest costs the same either way: P's fixed cost c falls out, and so
    does the attention of the rest, which reads the pulled tokens as it would computed ones.
    """
    zero = np.zeros_like(pulled)
    return np.stack([zero - 1, -pulled, zero, pulled, pulled * (local + pulled / 2)], axis=1)


def fit(pulls: Sequence[Row], prefills: Sequence[Row]) -> Fit:
    """Fit both lines.

    Args:
        pulls: turns with a timed pull; what LEAST_* ask must hold.
        prefills: turns with a timed prefill.
    """
    pull = _Line.of_pulls(pulls)
    prefill = _Line.of_prefills(prefills, with_attention=True)
    names = sorted(set(pull.conversation) | set(prefill.conversation))
    groups = {name: at % _MOST_GROUPS for at, name in enumerate(names)}
    theta, covariance = _jackknifed(pull, prefill, groups)
    clusters = min(len(set(pull.conversation)), len(set(prefill.conversation)))
    degrees = min(clusters, _MOST_GROUPS) - 1
    # One standard error: dropping a term that is there costs more than keeping one that is not.
    if theta[4] <= float(np.sqrt(covariance[4, 4])):
        prefill = _Line.of_prefills(prefills, with_attention=False)
        theta, covariance = _jackknifed(pull, prefill, groups)
    tokens = [row.pulled_tokens or 0 for row in pulls]
    return Fit(
        theta,
        covariance,
        degrees,
        len(pulls),
        len(prefills),
        clusters,
        pull.outliers() + prefill.outliers(),
        (min(tokens), max(tokens)),
    )


@dataclass(frozen=True)
class _Line:
    """Columns x, shape (n, k), times y, shape (n,), and whose turn each row is."""

    x: Floats
    y: Floats
    conversation: list[int]

    @classmethod
    def of_pulls(cls, rows: Sequence[Row]) -> "_Line":
        x = [[1.0, row.pulled_tokens or 0] for row in rows]
        y = [(row.stages_ms and row.stages_ms.pull) or 0.0 for row in rows]
        return cls(np.array(x), np.array(y), [row.conversation for row in rows])

    @classmethod
    def of_prefills(cls, rows: Sequence[Row], *, with_attention: bool) -> "_Line":
        computed = np.array([row.computed_tokens or 0 for row in rows], float)
        known = [(row.local_tokens or 0) + (row.pulled_tokens or 0) for row in rows]
        history = np.array(known, float)
        y = [(row.stages_ms and row.stages_ms.prefill) or 0.0 for row in rows]
        attention = computed * (history + computed / 2)
        columns = [np.ones_like(computed), computed, attention][: 3 if with_attention else 2]
        return cls(np.stack(columns, axis=1), np.array(y), [row.conversation for row in rows])

    def without(self, groups: dict[int, int], left_out: int) -> "_Line":
        kept = np.array([groups[name] != left_out for name in self.conversation])
        names = [name for name, is_kept in zip(self.conversation, kept, strict=True) if is_kept]
        return _Line(self.x[kept], self.y[kept], names)

    def solve(self) -> Floats:
        return robust_line(self.x, self.y)[0]

    def outliers(self) -> int:
        return int((robust_line(self.x, self.y)[1] == 0).sum())


def _jackknifed(pull: _Line, prefill: _Line, groups: dict[int, int]) -> tuple[Floats, Floats]:
    def solve(pull: _Line, prefill: _Line) -> Floats:
        found = np.concatenate([pull.solve(), prefill.solve()])
        return np.pad(found, (0, 5 - len(found)))

    n = max(groups.values()) + 1
    left = np.array(
        [solve(pull.without(groups, at), prefill.without(groups, at)) for at in range(n)]
    )
    off = left - left.mean(axis=0)
    return solve(pull, prefill), (n - 1) / n * off.T @ off


def robust_line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Least squares of relative errors, in which outliers lose their weight.

    Latencies scatter in proportion to themselves, so errors are taken relative to the
    fitted time; Huber's weights find the bulk, Tukey's bisquare then drops the rest.

    Args:
        x: shape (n, k), n > k.
        y: times above 0, shape (n,).

    Returns:
        Coefficients, shape (k,), and weights, shape (n,), of which 0 is an outlier.
    """
    scale = np.abs(x).max(axis=0)
    x = x / np.where(scale > 0, scale, 1)
    theta = np.linalg.lstsq(x, y, rcond=None)[0]
    least, weights = _LEAST_SHARE * float(np.median(y)), np.ones_like(y)
    for at in range(60):
        fitted = np.maximum(x @ theta, least)
        error = np.abs(y - x @ theta) / fitted
        spread = 1.4826 * float(np.median(error))
        if spread < 1e-12:
            break
        off = error / spread
        weights = (
            np.minimum(1, _HUBER / np.maximum(off, 1e-12))
            if at < 30
            else np.clip(1 - (off / _BISQUARE) ** 2, 0, None) ** 2
        )
        root = np.sqrt(weights) / fitted
        before, theta = theta, np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
        if at > 30 and np.allclose(before, theta, rtol=1e-8, atol=1e-10):
            break
    return theta / np.where(scale > 0, scale, 1), weights
