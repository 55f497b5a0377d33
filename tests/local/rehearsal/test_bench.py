"""What the short benchmark must show before the rehearsal goes on."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.bench.turn import ARMS, TurnResult
from runtime.engine_api import Receipt
from runtime.errors import EngineDied, StartFailed
from runtime.local.rehearsal.bench import WORKLOAD, first_key, judge


def receipt(pulled_tokens: int) -> Receipt:
    return Receipt(pulled_tokens, pulled_tokens, 0, pulled_tokens, "pulled")


def good_run() -> list[TurnResult]:
    return [
        TurnResult(
            conversation=conversation,
            turn=turn,
            arm=arm,
            outcome="successful",
            error=None,
            ttft_ms=1.0,
            e2e_ms=2.0,
            prompt_tokens=700,
            text="words",
            token_ids=(1, 2),
            logprobs=(-0.1, -0.2),
            top2=((-0.1, -3.0), (-0.2, -3.0)),
            receipt=receipt(640) if arm == "bidirectional" and turn > 1 else None,
            path="warm" if arm == "bidirectional" and turn > 1 else "cold",
            decode_receipt=None,
        )
        for conversation in range(WORKLOAD.conversations)
        for arm in ARMS
        for turn in range(1, WORKLOAD.turns + 1)
    ]


def test_a_good_run_is_told() -> None:
    """Warm turns, pulled tokens, equal answers."""
    assert judge(good_run()) == (
        "4 of 4 later turns warm, 2560 tokens pulled; 6 of 6 answers equal, 0 up to a tie"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "cold_retry"},
        {"receipt": receipt(0)},
        {"receipt": None},
        {"token_ids": (1, 3)},
        {"logprobs": (-0.1, -0.3)},
        {"outcome": "errored", "error": "503"},
    ],
)
def test_a_run_that_shows_less_ends_the_rehearsal(changes: dict[str, Any]) -> None:
    """One turn is enough."""
    run = good_run()
    at = next(i for i, each in enumerate(run) if each.arm == "bidirectional" and each.turn == 2)
    run[at] = replace(run[at], **changes)
    with pytest.raises(EngineDied, match="do not hand KV back"):
        judge(run)


def test_a_short_run_ends_the_rehearsal() -> None:
    """Nothing was compared where nothing was run."""
    with pytest.raises(EngineDied):
        judge([])
    with pytest.raises(EngineDied):
        judge(good_run()[:-1])


def test_key_comes_from_the_deployed_secret() -> None:
    """And not from a reference to nothing."""
    assert first_key('{"keys": [{"key": "abc", "tenant": "admin"}]}') == "abc"
    with pytest.raises(StartFailed, match="refer to nothing"):
        first_key('{"keys": [{"key": "None", "tenant": "admin"}]}')
