"""Order statistics, objectives, slopes and rates of one arm. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from runtime.bench.stats import percentile, slope
from runtime.bench.turn import Arm, TurnResult
from runtime.contract.bench import Objectives


def spread_ms(values: Iterable[float | None]) -> dict[str, float | None]:
    """Exact order statistics and the mean; null where n is too small."""
    known = [value for value in values if value is not None]
    return {f"p{p}": percentile(known, p) for p in (50, 90, 99)} | {
        "mean": fmean(known) if known else None
    }


def goodput(results: Sequence[TurnResult], objectives: Objectives) -> dict[str, Any] | None:
    """Share of turns that keep every objective; None where none is set.

    Args:
        results: of one arm, failed ones too: they keep nothing. Turns whose client left
            on purpose are in no count.
        objectives: a turn with one token has no TPOT and keeps that objective.
    """
    if objectives.ttft_ms is None and objectives.tpot_ms is None:
        return None
    asked = [result for result in results if result.outcome != "aborted" and not result.is_again]
    kept = sum(_keeps(result, objectives) for result in asked)
    share = kept / len(asked) if asked else None
    return {"share": share, "n": len(asked)} | objectives.model_dump(mode="json")


def _keeps(result: TurnResult, objectives: Objectives) -> bool:
    if not result.is_successful or result.ttft_ms is None:
        return False
    limits = ((result.ttft_ms, objectives.ttft_ms), (result.tpot_ms, objectives.tpot_ms))
    return all(limit is None or took is None or took <= limit for took, limit in limits)


def history_slope(results: Iterable[TurnResult]) -> dict[str, Any]:
    """Milliseconds of TTFT per 1,000 prompt tokens, from the second turn on.

    Args:
        results: measured turns of one arm.
    """
    clusters: dict[int, list[tuple[float, float]]] = {}
    for result in results:
        if result.turn >= 2 and result.ttft_ms is not None and result.prompt_tokens is not None:
            point = (result.prompt_tokens, result.ttft_ms)
            clusters.setdefault(result.conversation, []).append(point)
    return slope(list(clusters.values())).to_dict(scale=1000)


def busy_s(results: Sequence[TurnResult], arm: Arm) -> float:
    """Time in which an arm was played: from each of its blocks' first start to its last end.

    Args:
        results: of all arms of a pass; blocks of two arms never overlap.
        arm: whose.
    """
    in_order = sorted(results, key=lambda result: result.started_s)
    taken_s = 0.0
    for whose, block in groupby(in_order, key=lambda result: result.arm):
        if whose == arm:
            played = list(block)
            taken_s += max(one.ended_s for one in played) - played[0].started_s
    return taken_s


def rates(results: Sequence[TurnResult], arm: Arm) -> dict[str, float | None]:
    """Successful turns, A/A repeats too, and their answer tokens a second."""
    taken_s = busy_s(results, arm)
    good = [result for result in results if result.arm == arm and result.is_successful]
    tokens = sum(len(result.token_ids) for result in good)
    return {
        "requests_per_s": len(good) / taken_s if taken_s > 0 else None,
        "answer_tokens_per_s": tokens / taken_s if taken_s > 0 else None,
    }
