"""What prefill costs and what the return saves."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from runtime.bench.report.money import prefill_cost, savings
from runtime.bench.report.select import arm_pairs
from runtime.bench.turn import TurnResult
from runtime.contract.bench import Price
from runtime.engine_api import Receipt

Make = Callable[..., TurnResult]
PRICE = Price(usd_per_node_hour=72.0, gpus_per_node=8)


def pair(make: Make, turn: int = 2) -> list[TurnResult]:
    """One-way computes 1,000 tokens in 500 ms; bidirectional 200 in 100 ms."""
    cold = Receipt(0, 0, 0, 0, "none_offered", 0.0, None, None, 10.0, 510.0)
    warm = Receipt(800, 800, 100, 700, "pulled", 0.0, 5.0, 39.0, 40.0, 140.0)
    return [
        make(arm=arm, turn=turn, prompt_tokens=1000, receipt=receipt)
        for arm, receipt in (("one_way", cold), ("bidirectional", warm))
    ]


def test_cost_is_computed_tokens_gpu_seconds_and_their_price(make_turn: Make) -> None:
    """0.5 s of a node of 8 GPUs at 72 USD an hour: 4 GPU-seconds, 1 cent."""
    cost = prefill_cost(pair(make_turn)[:1], PRICE)
    assert cost == {
        "prefill_tokens": 1000,
        "prefill_gpu_s": 4.0,
        "prefill_usd": pytest.approx(0.01),
    }
    assert prefill_cost(pair(make_turn), Price())["prefill_usd"] is None


def test_savings_are_paired_and_scaled(make_turn: Make) -> None:
    """One-way less bidirectional; per 1,000 turns from the turns that were compared."""
    turns = [*pair(make_turn, 2), *pair(make_turn, 3), make_turn(turn=4)]
    found = savings(arm_pairs(turns), PRICE)
    assert found == {
        "n": 2,
        "prefill_tokens": 2 * 800,
        "prefill_gpu_s": pytest.approx(2 * 0.4 * 8),
        "prefill_usd": pytest.approx(2 * 0.4 / 50),
        "per_1000_turns": {
            "prefill_tokens": 800_000,
            "prefill_gpu_s": pytest.approx(3200),
            "prefill_usd": pytest.approx(8.0),
        },
    }


def test_no_price_no_money(make_turn: Make) -> None:
    """Tokens and GPU-seconds are saved, USD are not known."""
    found = savings(arm_pairs(pair(make_turn)), Price())
    assert found is not None
    assert found["prefill_usd"] is found["per_1000_turns"]["prefill_usd"] is None


def test_a_turn_without_a_receipt_saves_nothing(make_turn: Make) -> None:
    """Where P said nothing of one arm, nobody knows what was saved."""
    cold, warm = pair(make_turn)
    untold = [replace(cold, turn=3), replace(warm, turn=3, receipt=None)]
    assert savings(arm_pairs(untold), PRICE) is None
    beside = savings(arm_pairs([cold, warm, *untold]), PRICE)
    assert beside == savings(arm_pairs([cold, warm]), PRICE)
    assert savings([], PRICE) is None
