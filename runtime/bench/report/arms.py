"""What one arm did, in all and turn by turn. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from runtime.bench.folder import PassInfo
from runtime.bench.report.latency import goodput, history_slope, rates, spread_ms
from runtime.bench.report.money import prefill_cost
from runtime.bench.report.select import Key, measured
from runtime.bench.report.stages import medians_ms
from runtime.bench.report.tokens import computed_tokens, split_pull
from runtime.bench.stats import percentile
from runtime.bench.turn import Arm, Outcome, TurnResult
from runtime.engine_api import Receipt

_OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Said = Mapping[Key, tuple[int, int]]
"""Prompt tokens and answer tokens of a turn."""


def arm_figures(
    info: PassInfo, results: Sequence[TurnResult], arm: Arm, turns: int
) -> dict[str, Any]:
    """All figures of an arm.

    Args:
        info: of the pass.
        results: of all arms of the pass.
        arm: whose figures.
        turns: of the longest conversation.
    """
    mine = [result for result in results if result.arm == arm and not result.is_again]
    good = measured(results, arm)
    said = _said(results, arm)
    outcomes = Counter(result.outcome for result in mine)
    return {
        "requests": len(mine),
        "outcomes": {outcome: outcomes[outcome] for outcome in _OUTCOMES},
        "goodput": goodput(mine, info.bench.objectives),
        "slope_ms_per_1000_tokens": history_slope(good),
        **rates(results, arm),
        **prefill_cost(good, info.bench.price),
        "turns": [
            _turn(turn, [r for r in mine if r.turn == turn], said) for turn in range(1, turns + 1)
        ],
    }


def _said(results: Sequence[TurnResult], arm: Arm) -> Said:
    """Both arms send the same messages, so the other's counts serve where this one failed."""
    return {
        (r.conversation, r.turn, r.repeat): (r.prompt_tokens, len(r.token_ids))
        for r in sorted(results, key=lambda r: r.arm == arm and not r.is_again)
        if r.prompt_tokens is not None
    }


def _turn(turn: int, results: Sequence[TurnResult], said: Said) -> dict[str, Any]:
    good = [result for result in results if result.is_successful]
    outcomes = Counter(result.outcome for result in results)
    counted = [r.prompt_tokens for r in good if r.prompt_tokens is not None]
    receipts = [r.receipt for r in good if r.receipt is not None]
    return {
        "turn": turn,
        "n": len(good),
        "errored": outcomes["errored"],
        "incomplete": outcomes["incomplete"],
        "aborted": outcomes["aborted"],
        "ttft_ms": spread_ms(r.ttft_ms for r in good),
        "e2e_ms": spread_ms(r.e2e_ms for r in good),
        "tpot_ms": spread_ms(r.tpot_ms for r in good),
        "prompt_tokens": sum(counted) / len(counted) if counted else None,
        **_pulled(turn, good, said),
        "cached_tokens": sum(receipt.local_tokens for receipt in receipts),
        "computed_tokens": sum(computed_tokens(r) or 0 for r in good),
        "stage_ms_p50": medians_ms(good),
        "prefill": _legs(receipts),
        "decode": _legs([r.decode_receipt for r in good if r.decode_receipt is not None]),
    }


def _pulled(turn: int, good: Sequence[TurnResult], said: Said) -> dict[str, int]:
    pulled_prompt = pulled_answer = returnable = 0
    for result in good:
        prompt, answer = said.get((result.conversation, turn - 1, result.repeat), (None, 0))
        if result.receipt is not None:
            of_prompt, of_answer = split_pull(
                local_tokens=result.receipt.local_tokens,
                pulled_tokens=result.receipt.pulled_tokens,
                previous_prompt_tokens=prompt,
            )
            pulled_prompt += of_prompt
            pulled_answer += of_answer
        # Not the last sampled token: its KV is never computed.
        returnable += max(0, answer - 1)
    return {
        "pulled_prompt_tokens": pulled_prompt,
        "pulled_answer_tokens": pulled_answer,
        "returnable_answer_tokens": returnable,
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
