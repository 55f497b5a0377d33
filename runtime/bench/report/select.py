"""Which turns a figure is made from. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from runtime.bench.stats import Interval, ratio_interval
from runtime.bench.turn import Arm, TurnResult

Key = tuple[int, int, int]
"""Conversation, turn, repeat: what both arms have one of."""


@dataclass(frozen=True)
class Pair:
    """One turn that was measured twice, both times successfully."""

    first: TurnResult
    second: TurnResult

    @property
    def log_ratio(self) -> float:
        """Of the first's TTFT over the second's."""
        return math.log((self.first.ttft_ms or math.nan) / (self.second.ttft_ms or math.nan))


def measured(results: Iterable[TurnResult], arm: Arm) -> list[TurnResult]:
    """Turns that the figures of an arm are made from: successful, and no A/A repeats."""
    return [r for r in results if r.arm == arm and r.is_successful and not r.is_again]


def arm_pairs(results: Sequence[TurnResult]) -> list[Pair]:
    """One-way beside bidirectional, where both arms finished a turn."""
    return _pairs(measured(results, "one_way"), measured(results, "bidirectional"))


def again_pairs(results: Sequence[TurnResult]) -> list[Pair]:
    """One-way turns beside their repeats: what noise alone does."""
    again = [r for r in results if r.is_again and r.is_successful]
    return _pairs(measured(results, "one_way"), again)


def clustered(pairs: Iterable[Pair], is_in: Callable[[Pair], bool] = lambda _: True) -> Interval:
    """Ratio over pairs, one value per conversation.

    Turns of one conversation are not independent, nor are repeats of it: they have its
    text and its length in common. The mean of their logs is one value.
    """
    clusters: dict[int, list[float]] = {}
    for pair in pairs:
        if is_in(pair):
            clusters.setdefault(pair.first.conversation, []).append(pair.log_ratio)
    return ratio_interval([fmean(logs) for logs in clusters.values()])


def is_later(pair: Pair) -> bool:
    """Whether it has a turn before it, and so a handle to use."""
    return pair.first.turn >= 2


def _pairs(firsts: Iterable[TurnResult], seconds: Iterable[TurnResult]) -> list[Pair]:
    found = {_key(second): second for second in seconds if _is_timed(second)}
    return [
        Pair(first, found[_key(first)])
        for first in firsts
        if _is_timed(first) and _key(first) in found
    ]


def _key(result: TurnResult) -> Key:
    return result.conversation, result.turn, result.repeat


def _is_timed(result: TurnResult) -> bool:
    return result.ttft_ms is not None and result.ttft_ms > 0
