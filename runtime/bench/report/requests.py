"""Every turn of a pass as one row, whatever came of it. Pure."""

from collections.abc import Iterable
from typing import Any

from runtime.bench.report.stages import stages_ms
from runtime.bench.report.tokens import computed_tokens
from runtime.bench.turn import TurnResult

_AS_THEY_ARE = (
    *("conversation", "turn", "arm", "is_again", "is_edited", "point", "repeat", "block"),
    *("outcome", "error", "path", "ttft_ms", "e2e_ms", "tpot_ms", "prompt_tokens"),
    *("started_s", "ended_s", "think_s"),
)


def request_rows(results: Iterable[TurnResult]) -> list[dict[str, Any]]:
    """In the order in which they were sent."""
    return [_row(result) for result in sorted(results, key=lambda result: result.started_s)]


def _row(result: TurnResult) -> dict[str, Any]:
    told = result.receipt
    return {name: getattr(result, name) for name in _AS_THEY_ARE} | {
        "reason": None if told is None else told.reason,
        "answer_tokens": len(result.token_ids),
        "pulled_tokens": None if told is None else told.pulled_tokens,
        "local_tokens": None if told is None else told.local_tokens,
        "computed_tokens": computed_tokens(result),
        "stages_ms": stages_ms(result),
    }
