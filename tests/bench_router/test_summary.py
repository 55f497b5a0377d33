"""Medians, bars and memory growth."""

import math
from typing import Any

import pytest

from benchmarks.router import summary
from benchmarks.router.summary import LARGE_BODY, Bar


def run(**figures: float) -> dict[str, float]:
    """One repeat, alike but for what is given."""
    names = (*summary.FIGURES, "total_p50_ms")
    return dict.fromkeys(names, 2.0) | {"errored": 0, "incomplete": 0, "leaks": 0} | figures


def rows(mine: dict[str, float], **direct: float) -> list[dict[str, Any]]:
    """All cases with one repeat; vllm-router's figures are all 2."""
    runs = {
        "turnback": [mine],
        "vllm_router": [run()],
        "direct": [run(**{"p50_ms": 1.0, "total_p50_ms": 1.0} | direct)],
    }
    cases = (("one", 1), ("many", 16), (LARGE_BODY, 1))
    return [summary.row(name, clients, runs) for name, clients in cases]


def missed(mine: dict[str, float], **direct: float) -> list[str]:
    """The bars that do not hold, by the start of their names."""
    return [bar.bar.split(",")[0] for bar in summary.bars(rows(mine, **direct)) if not bar.holds]


def test_equal_routers_hold_every_bar() -> None:
    """A router as good as the other one passes."""
    assert missed(run()) == []
    assert len(summary.bars(rows(run()))) == 9


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        ({"req_s": 1.99}, "req/s over"),
        ({"p50_ms": 2.51}, ("p50 first byte", "time added")),
        ({"cpu_ms": 2.21}, "CPU per request"),
        ({"cpu_ms": math.nan}, "CPU per request"),
        ({"p50_ms": 2.31}, "time added to the first byte"),
        ({"total_p50_ms": 2.31}, "time added to the whole answer"),
        ({"errored": 1}, "answers that failed"),
        ({"incomplete": 1}, "answers that failed"),
        ({"leaks": 1}, "handles that reached"),
    ],
)
def test_each_bar_can_be_missed(figures: dict[str, float], name: str | tuple[str, ...]) -> None:
    """One figure beyond its limit fails the bars that are made of it, and no other."""
    found = missed(run(**figures))
    assert found
    assert all(bar.startswith(name) for bar in found)


def test_errors_without_a_router_count_too() -> None:
    """A mock that fails makes no valid comparison."""
    assert missed(run(), errored=1) == ["answers that failed"]


def test_rows_hold_medians_spreads_and_ratios() -> None:
    """Of three repeats; counts are summed."""
    mine = [run(req_s=value, errored=1) for value in (90.0, 100.0, 120.0)]
    told = summary.row("case", 1, {"turnback": mine, "vllm_router": [run(req_s=50.0)]})
    assert told["turnback"]["req_s"] == 100.0
    assert told["turnback"]["spread"]["req_s"] == pytest.approx(0.3)
    assert told["turnback"]["errored"] == 3
    assert told["ratio"]["req_s"] == 2.0


def test_percentiles_are_measured_values() -> None:
    """Nearest rank; nothing measured is NaN, and NaN holds no bar."""
    values = [float(value) for value in range(1, 101)]
    assert [summary.percentile(values, at) for at in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert math.isnan(summary.percentile([], 50))
    assert not Bar("bar", "<= 1", math.nan).holds
    assert not Bar("bar", ">= 1", math.nan).holds


def test_growth_is_held_against_the_first_sample() -> None:
    """A leak shows in growth and slope; a dip does not."""
    leaking = summary.growth([100.0 + second for second in range(51)])
    assert leaking["growth"] == pytest.approx(0.5)
    assert leaking["slope_mib_per_min"] == pytest.approx(60)
    assert summary.growth([100.0, 90.0, 100.0])["growth"] == 0
    assert math.isnan(summary.growth([100.0])["growth"])
