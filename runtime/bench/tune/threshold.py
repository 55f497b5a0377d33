"""The number of tokens from which a pull is faster than computing them. Pure."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runtime.bench.tune.fit import (
    LEAST_CONVERSATIONS,
    LEAST_SPREAD,
    LEAST_TURNS,
    Fit,
    Floats,
    fit,
)
from runtime.bench.tune.observations import Observations

Verdict = Literal["crosses", "always_wins", "never_wins", "unclear", "too_few"]

_BELOW = 2.0
"""A crossing this many times below the shortest measured pull still counts as measured."""


@dataclass(frozen=True)
class Threshold:
    """What the times say about `kv_recompute_threshold_tokens`.

    Attributes:
        verdict: `crosses`: within what was measured; `always_wins`, `never_wins`: every
            measured pull is faster, or slower; `unclear`: the intervals do not settle
            it; `too_few`: not enough turns to fit.
        tokens: the setting, in whole blocks; None: keep what is set.
        crossing: fitted tokens at which both take as long; None outside of what was measured.
        ci95: its 95 % interval.
        local_tokens: tokens in P's own cache at the crossing: the median of the pulls.
        why: the verdict in a sentence.
        fit: None where there were too few turns.
    """

    verdict: Verdict
    tokens: int | None
    crossing: float | None
    ci95: tuple[float, float] | None
    local_tokens: int
    why: str
    fit: Fit | None


def find_threshold(seen: Observations) -> Threshold:
    """Fit the times of a pass and find where pulling starts to win."""
    lacking = _lacking(seen)
    if lacking:
        return Threshold("too_few", None, None, None, 0, lacking, None)
    fitted = fit(seen.pulls, seen.prefills)
    local = int(np.median([row.local_tokens or 0 for row in seen.pulls]))
    crossing = _crossing(fitted, local)
    least, most = fitted.pulled_range
    if crossing is not None and least / _BELOW <= crossing <= most:
        low, high = _interval(fitted, local, crossing)
        if high is not None:  # else the longest pulls do not surely win: no line to draw
            size = seen.kv.block_size_tokens
            tokens = max(1, math.ceil(crossing / size)) * size
            why = f"pulling wins from {crossing:.0f} tokens on ({low:.0f}..{high:.0f})"
            return Threshold("crosses", tokens, crossing, (low, high), local, why, fitted)
    return _outside(seen, fitted, local)


def _lacking(seen: Observations) -> str:
    pulls, prefills = seen.pulls, seen.prefills
    if not pulls:
        return "no turn of this pass pulled: there is no pull time to fit"
    clusters = len({row.conversation for row in pulls})
    if min(len(pulls), len(prefills)) < LEAST_TURNS or clusters < LEAST_CONVERSATIONS:
        return (
            f"{len(pulls)} timed pulls of {clusters} conversations and {len(prefills)} timed "
            f"prefills; a fit needs {LEAST_TURNS} of each, of {LEAST_CONVERSATIONS} conversations"
        )
    tokens = [row.pulled_tokens or 0 for row in pulls]
    if max(tokens) < LEAST_SPREAD * min(tokens):
        return (
            f"all pulls are of {min(tokens)} to {max(tokens)} tokens; a fit needs lengths that "
            f"differ by {LEAST_SPREAD} times: measure histories of several lengths (a sweep)"
        )
    return ""


def _outside(seen: Observations, fitted: Fit, local: int) -> Threshold:
    """No crossing where pulls were measured: say which side wins there, extrapolate nothing."""
    least, most = fitted.pulled_range
    saved, half = _with_half(fitted, np.array([least, most], float), local)
    if (saved - half > 0).all():
        why = (
            f"pulling always wins in the measured range of {least} to {most} tokens; "
            "where it starts to win lies below, and is not guessed: measure shorter histories"
        )
        return Threshold("always_wins", None, None, None, local, why, fitted)
    if (saved + half < 0).all():
        size = seen.kv.block_size_tokens
        why = (
            f"pulling never wins in the measured range of {least} to {most} tokens; "
            "longer pulls are left as they are, since none was measured"
        )
        tokens = (most // size + 1) * size
        return Threshold("never_wins", tokens, None, None, local, why, fitted)
    why = (
        f"between {least} and {most} tokens a pull saves {saved[0]:.1f} +- {half[0]:.1f} to "
        f"{saved[1]:.1f} +- {half[1]:.1f} ms: too near to none to choose; measure more turns"
    )
    return Threshold("unclear", None, None, None, local, why, fitted)


def _crossing(fitted: Fit, local: int) -> float | None:
    """The root of saved_ms from which on it grows; None where there is none."""
    a, b, _, d, e = fitted.theta
    slope, bend = d - b + e * local, e / 2
    inside = slope**2 + 4 * bend * a
    if inside < 0 or (slope <= 0 and bend <= 0):
        return None
    # Two forms of one root, each without a difference of near numbers.
    root = math.sqrt(inside)
    return float(2 * a / (slope + root) if slope > 0 else (root - slope) / (2 * bend))


def _interval(fitted: Fit, local: int, crossing: float) -> tuple[float, float | None]:
    """All tokens at which saved_ms cannot be told from 0 (Fieller).

    The upper end is None where that holds out to the longest pull.
    """
    _, most = fitted.pulled_range
    tokens = np.linspace(0, most, 20_001)
    saved, half = _with_half(fitted, tokens, local)
    undecided = np.append(tokens[np.abs(saved) <= half], crossing)
    high = float(undecided.max())
    return float(undecided.min()), high if high < most else None


def _with_half(fitted: Fit, tokens: Floats, local: int) -> tuple[Floats, Floats]:
    held = np.full_like(tokens, local)
    return fitted.saved_ms(tokens, held), fitted.half_width_ms(tokens, held)
