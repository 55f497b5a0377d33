"""Results -> the report. Pure, but for `write_report`."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from runtime.bench.exactness import compare
from runtime.bench.stats import Interval, percentile, t_interval
from runtime.bench.turn import ARMS, Arm, TurnResult
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt

SCHEMA_VERSION = 1


def build_report(
    profile: Profile,
    results: Sequence[TurnResult],
    *,
    environment: Mapping[str, Any],
    created_utc: str,
    stopped_by: str | None = None,
    engine: Mapping[str, Mapping[str, float] | None] | None = None,
) -> dict[str, Any]:
    """Build the report of a run, whole or partial.

    Args:
        profile: the sizes that ran.
        results: every measured turn of both arms, in any order.
        environment: where and with what it ran.
        created_utc: ISO time.
        stopped_by: what ended the run early; None when it ran to its end.
        engine: transfer counters over the run, by role.

    Returns:
        Plain JSON.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "created_utc": created_utc,
        "complete": stopped_by is None,
        "stopped_by": stopped_by,
        "environment": dict(environment),
        "workload": profile.model_dump(mode="json"),
        "arms": {arm: _arm(profile, results, arm) for arm in ARMS},
        "speedup": _speedup(results, profile.workload.turns),
        "exactness": compare(results).to_dict(),
        "engine": None if engine is None else dict(engine),
    }


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write the report so that a reader sees the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", "utf-8")
    draft.replace(path)


def split_pull(
    *, local_tokens: int, pulled_tokens: int, previous_prompt_tokens: int | None
) -> tuple[int, int]:
    """Split pulled tokens into (of the previous prompt, of the previous answer).

    Args:
        local_tokens: position of the first pulled token.
        pulled_tokens: how many were pulled from there.
        previous_prompt_tokens: prompt of the turn before; its answer follows it.
            None (no turn before): all count as prompt.
    """
    if previous_prompt_tokens is None:
        return pulled_tokens, 0
    prompt = min(pulled_tokens, max(0, previous_prompt_tokens - local_tokens))
    return prompt, pulled_tokens - prompt


def _arm(profile: Profile, results: Sequence[TurnResult], arm: Arm) -> dict[str, Any]:
    mine = [result for result in results if result.arm == arm]
    # Both arms send the same messages, so the other's count serves where this one failed.
    prompts = {
        (r.conversation, r.turn): r.prompt_tokens
        for r in sorted(results, key=lambda r: r.arm == arm)
        if r.prompt_tokens is not None
    }
    turns = range(1, profile.workload.turns + 1)
    return {
        "requests": len(mine),
        "turns": [
            _turn(profile, turn, [r for r in mine if r.turn == turn], prompts) for turn in turns
        ],
    }


def _turn(
    profile: Profile,
    turn: int,
    results: Sequence[TurnResult],
    prompts: Mapping[tuple[int, int], int],
) -> dict[str, Any]:
    good = [result for result in results if result.is_successful]
    outcomes = [result.outcome for result in results]
    ttft_ms = [r.ttft_ms for r in good if r.ttft_ms is not None]
    counted = [r.prompt_tokens for r in good if r.prompt_tokens is not None]
    pulled_prompt = pulled_answer = returnable = 0
    for result in good:
        previous = prompts.get((result.conversation, turn - 1))
        if result.receipt is not None:
            prompt, answer = split_pull(
                local_tokens=result.receipt.local_tokens,
                pulled_tokens=result.receipt.pulled_tokens,
                previous_prompt_tokens=previous,
            )
            pulled_prompt += prompt
            pulled_answer += answer
        if previous is not None:
            # Not the last sampled token: its KV is never computed.
            returnable += profile.workload.answer_tokens - 1
    return {
        "turn": turn,
        "n": len(good),
        "errored": outcomes.count("errored"),
        "incomplete": outcomes.count("incomplete"),
        "ttft_ms": {f"p{p}": percentile(ttft_ms, p) for p in (50, 90, 99)}
        | {"mean": fmean(ttft_ms) if ttft_ms else None},
        "prompt_tokens": fmean(counted) if counted else None,
        "pulled_prompt_tokens": pulled_prompt,
        "pulled_answer_tokens": pulled_answer,
        "returnable_answer_tokens": returnable,
        "prefill": _legs([r.receipt for r in good if r.receipt is not None]),
        "decode": _legs([r.decode_receipt for r in good if r.decode_receipt is not None]),
    }


def _legs(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """What a node did with the dicts of a turn, and where its time went."""
    stages = [receipt.stages_ms() for receipt in receipts]

    def median(stage: str) -> float | None:
        known = [taken[stage] for taken in stages]
        return percentile([ms for ms in known if ms is not None], 50)

    return {
        "reasons": dict(sorted(Counter(receipt.reason for receipt in receipts).items())),
        "offered_tokens": sum(receipt.offered_tokens for receipt in receipts),
        "verified_tokens": sum(receipt.verified_tokens for receipt in receipts),
        "local_tokens": sum(receipt.local_tokens for receipt in receipts),
        "stage_ms_p50": {stage: median(stage) for stage in ("queue", "pull", "compute")},
    }


def _speedup(results: Sequence[TurnResult], turns: int) -> dict[str, Any]:
    logs = _log_ratios(results)

    def of_turn(turn: int) -> dict[str, Any]:
        return _interval([log for (_, at), log in logs.items() if at == turn])

    # Turns of one conversation are not independent: each conversation is one value.
    clusters: dict[int, list[float]] = {}
    for (conversation, turn), log in logs.items():
        if turn >= 2:
            clusters.setdefault(conversation, []).append(log)
    return {
        "turn_1": of_turn(1),
        "turns": [{"turn": turn} | of_turn(turn) for turn in range(2, turns + 1)],
        "overall": _interval([fmean(cluster) for cluster in clusters.values()]),
    }


def _log_ratios(results: Sequence[TurnResult]) -> dict[tuple[int, int], float]:
    """(conversation, turn) -> log of one-way TTFT over bidirectional TTFT."""
    ttft_ms = {
        (r.arm, r.conversation, r.turn): r.ttft_ms
        for r in results
        if r.is_successful and r.ttft_ms is not None
    }
    return {
        (conversation, turn): math.log(one_way_ms / ttft_ms["bidirectional", conversation, turn])
        for (arm, conversation, turn), one_way_ms in ttft_ms.items()
        if arm == "one_way" and ("bidirectional", conversation, turn) in ttft_ms
    }


def _interval(log_ratios: Sequence[float]) -> dict[str, Any]:
    interval: Interval = t_interval(log_ratios)
    return asdict(interval) | {"ci95": None if interval.ci95 is None else list(interval.ci95)}
