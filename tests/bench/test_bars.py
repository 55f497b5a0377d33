"""What a result must reach."""

from typing import Any

import pytest

from runtime.bench.bars import Bars, missed


def report(ratio: float | None, *p90_ms: float | None) -> dict[str, Any]:
    """As much of a report as bars look at; the first turn is far above any bar."""
    turns = [
        {"turn": at, "n": 12, "ttft_ms": {"p90": each}} for at, each in enumerate((9e9, *p90_ms), 1)
    ]
    return {
        "speedup": {"overall": {"ratio": ratio}},
        "arms": {"bidirectional": {"turns": turns}},
    }


@pytest.mark.parametrize(
    ("told", "bars", "count"),
    [
        (report(1.0, 500.0), Bars(), 0),
        (report(2.0, 100.0), Bars(2.0, 100.0), 0),
        (report(1.99, 100.0, 100.1), Bars(2.0, 100.0), 2),
        (report(None, None), Bars(1.0, 100.0), 2),
    ],
)
def test_missed(told: dict[str, Any], bars: Bars, count: int) -> None:
    """At the bar holds; below it, above it, or without a figure does not. Turn 1 is apart."""
    assert len(missed(told, bars)) == count


def test_a_pass_without_the_arm_misses_its_bars() -> None:
    """As one with the feature off on both servers."""
    told = {"speedup": {"overall": {"ratio": None}}, "arms": {"one_way": {"turns": []}}}
    assert len(missed(told, Bars(1.0, 100.0))) == 2
