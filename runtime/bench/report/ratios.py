"""Speed-ups: overall, by turn and by sweep point, and how steady they are. Pure."""

from collections.abc import Sequence
from typing import Any

from runtime.bench.report.latency import spread_ms
from runtime.bench.report.select import (
    again_pairs,
    arm_pairs,
    clustered,
    is_later,
    measured,
)
from runtime.bench.report.stages import medians_ms
from runtime.bench.stats import cv_percent
from runtime.bench.turn import Arm, TurnResult

STEADY_CV_PERCENT = 10.0
"""Repeats that wobble more are no basis for a claim."""


def speedup(results: Sequence[TurnResult], turns: int) -> dict[str, Any]:
    """One-way TTFT over bidirectional TTFT; turn 1, which has no handle, apart."""
    pairs = arm_pairs(results)
    by_turn: dict[int, list[Any]] = {turn: [] for turn in range(1, turns + 1)}
    for pair in pairs:
        by_turn.setdefault(pair.first.turn, []).append(pair)
    return {
        "turn_1": clustered(by_turn[1]).to_dict(),
        "turns": [
            {"turn": turn} | clustered(by_turn[turn]).to_dict() for turn in range(2, turns + 1)
        ],
        "overall": clustered(pairs, is_later).to_dict(),
    }


def points(results: Sequence[TurnResult], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Figures of each prefix length of a sweep, turns from the second on."""
    found = []
    for point in sorted({result.point for result in results}):
        mine = [result for result in results if result.point == point]
        found.append(
            {
                "own_prefix_tokens": point,
                "arms": {arm: _point_arm(measured(mine, arm)) for arm in arms},
                "speedup": clustered(arm_pairs(mine), is_later).to_dict(),
            }
        )
    return found


def _point_arm(results: Sequence[TurnResult]) -> dict[str, Any]:
    later = [result for result in results if result.turn >= 2]
    prompts = [result.prompt_tokens for result in later if result.prompt_tokens is not None]
    medians = medians_ms(later)
    return {
        "n": len(later),
        "ttft_ms": spread_ms(result.ttft_ms for result in later),
        "prompt_tokens": sum(prompts) / len(prompts) if prompts else None,
        "prefill_ms_p50": medians["prefill"],
        "pull_ms_p50": medians["pull"],
    }


def stability(results: Sequence[TurnResult], repeats: int) -> dict[str, Any]:
    """The overall ratio of each repeat, and the A/A ratio, which should be 1."""
    pairs = arm_pairs(results)
    ratios = [
        clustered([pair for pair in pairs if pair.first.repeat == repeat], is_later).ratio
        for repeat in range(repeats)
    ]
    known = [ratio for ratio in ratios if ratio is not None]
    wobble = cv_percent(known)
    return {
        "repeats": repeats,
        "ratios": known,
        "cv_percent": wobble,
        "is_stable": None if wobble is None else wobble <= STEADY_CV_PERCENT,
        "again": clustered(again_pairs(results)).to_dict(),
    }
