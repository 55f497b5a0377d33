"""Stages share no moment of a TTFT, and what is left over is told."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime.bench.report.stages import STAGES, attribution, is_within, medians_ms, stages_ms
from runtime.bench.turn import TurnResult
from runtime.engine_api import Receipt
from tests.bench.simulated import simulated_pass

Make = Callable[..., TurnResult]

ROUTER_MS = {"queue": 1.0, "take": 2.0, "prefill": 60.0, "first_byte": 30.0}
P = Receipt(96, 96, 0, 96, "pulled", 0.0, 4.0, 13.0, 14.0, 54.0)
D = Receipt(120, 120, 0, 120, "pulled", 0.0, 3.0, 9.0, 10.0, 400.0)


@pytest.fixture
def told(make_turn: Make) -> TurnResult:
    """A turn of 95 ms: 93 in the router, 2 on the way to the client."""
    return make_turn(ttft_ms=95.0, router_ms=ROUTER_MS, receipt=P, decode_receipt=D)


def test_each_stage_is_what_it_says(told: TurnResult) -> None:
    """Queue: the router's and P's; hand-over: P's end to D's first step."""
    assert stages_ms(told) == {
        "queue": 1.0 + 2.0 + 4.0,
        "pull": 10.0,
        "prefill": 40.0,
        "hand_over": 60.0 - 54.0 + 10.0,
        "first_decode": 30.0 - 10.0,
        "unattributed": 2.0,
    }


def test_a_cold_turn_pulls_nothing_and_takes_nothing(told: TurnResult) -> None:
    """Without a handle there is no `take` and no pull."""
    router_ms = {name: ms for name, ms in ROUTER_MS.items() if name != "take"}
    cold = Receipt(0, 0, 0, 0, "none_offered", 0.0, None, None, 4.0, 54.0)
    found = stages_ms(replace(told, router_ms=router_ms, receipt=cold))
    assert found is not None
    assert (found["queue"], found["pull"], found["prefill"]) == (5.0, 0.0, 50.0)
    assert found["unattributed"] == 4.0


@pytest.mark.parametrize(
    "changes",
    [
        {"receipt": None},
        {"decode_receipt": None},
        {"router_ms": {}},
        {"router_ms": {"queue": 1.0, "prefill": 60.0}},
        {"ttft_ms": None},
        {"receipt": replace(P, scheduled_ms=None)},
        {"receipt": replace(P, finished_ms=None)},
        {"decode_receipt": replace(D, scheduled_ms=None)},
    ],
)
def test_nothing_is_made_up(told: TurnResult, changes: dict[str, Any]) -> None:
    """A time that nobody told leaves no stages."""
    assert stages_ms(replace(told, **changes)) is None


@pytest.mark.parametrize(
    ("ttft_ms", "sum_ms", "want"),
    [
        (50.0, 45.0, True),
        (50.0, 44.9, False),
        (50.0, 55.1, False),
        (1000.0, 950.0, True),
        (1000.0, 949.0, False),
    ],
)
def test_within_is_5_percent_or_5_ms(ttft_ms: float, sum_ms: float, want: bool) -> None:
    """The greater of the two, on either side."""
    assert is_within(ttft_ms, sum_ms) is want


def test_turns_that_do_not_add_up_are_listed(told: TurnResult) -> None:
    """Those with too much left over, and those whose times were not told."""
    far = replace(told, turn=2, ttft_ms=99.0)
    silent = replace(told, turn=3, receipt=None)
    assert attribution([told, far, silent]) == {
        "n": 3,
        "within": 1,
        "share_within": 1 / 3,
        "unattributed": [
            {"conversation": 0, "turn": 2, "arm": "one_way", "ttft_ms": 99.0, "sum_ms": 93.0},
            {"conversation": 0, "turn": 3, "arm": "one_way", "ttft_ms": 95.0, "sum_ms": None},
        ],
    }
    assert attribution([])["share_within"] is None


def test_simulated_turns_add_up() -> None:
    """What other tests build on is consistent: all stages at or above 0, nothing left over."""
    _, results, _ = simulated_pass(prefill_prefix_caching=True)
    assert attribution(results)["share_within"] == 1.0
    for result in results:
        found = stages_ms(result)
        assert found is not None
        assert min(found.values()) >= 0
    assert set(medians_ms(results)) == {*STAGES, "unattributed"}
