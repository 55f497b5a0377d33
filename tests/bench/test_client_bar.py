"""What the benchmark of the client makes of its turns."""

from collections.abc import Callable

import pytest

from benchmarks.client import lag_ms, report
from runtime.bench.turn import TurnResult

Make = Callable[..., TurnResult]


def turns(make_turn: Make, lag_ms: float) -> list[TurnResult]:
    """Sent at 50 s; the mock's first token left at 50.1 s."""
    text = "50.1 word word"
    return [make_turn(started_s=50.0, ttft_ms=100 + lag_ms, text=text) for _ in range(3)]


def test_the_lag_is_the_clients_moment_minus_the_mocks(make_turn: Make) -> None:
    """Both are of one clock; the first token's text tells when it left."""
    assert lag_ms(turns(make_turn, 0.4)[0]) == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize(
    ("lag", "cores", "holds"), [(0.9, 0.9, True), (1.1, 0.9, False), (0.9, 1.1, False)]
)
def test_both_bars_must_hold(make_turn: Make, lag: float, cores: float, holds: bool) -> None:
    """A slow client misses, and a busy one."""
    assert report(turns(make_turn, lag), cores) is holds


def test_a_failed_turn_or_none_at_all_is_a_miss(make_turn: Make) -> None:
    """Figures of the others would hide it."""
    failed = make_turn(outcome="errored", error="503", ttft_ms=None)
    assert not report([*turns(make_turn, 0.1), failed], 0.1)
    assert not report([], 0.1)
