"""What servers counted and held over a pass."""

import pytest

from runtime.bench.folder import Sample
from runtime.bench.report.evidence import (
    MOST_ENTRIES,
    engine_counters,
    reading_problems,
    timeline,
)
from runtime.bench.scrape import COUNTERS


def reading(at_s: float, count: float, role: str = "decode", url: str = "d1") -> Sample:
    return Sample(at_s, role, url, dict.fromkeys(COUNTERS, count) | {"capacity_tokens": 1000.0})


def test_counters_cover_the_pass_and_no_warm_up() -> None:
    """From the last reading before the first measured turn to the last one."""
    samples = [reading(30.0, 9.0), reading(-1.0, 2.0), reading(-1.0, 5.0), reading(10.0, 7.0)]
    assert engine_counters(samples) == {"decode": dict.fromkeys(COUNTERS, 4.0)}


def test_servers_of_a_role_are_summed() -> None:
    """Two decode nodes are one role."""
    samples = [reading(at_s, 3 * (at_s > 0), url=url) for at_s in (-1.0, 9.0) for url in "ab"]
    assert engine_counters(samples) == {"decode": dict.fromkeys(COUNTERS, 6.0)}


def test_a_late_first_reading_still_counts() -> None:
    """A server that joined late is read from when it answered."""
    assert engine_counters([reading(5.0, 2.0), reading(9.0, 3.0)]) == {
        "decode": dict.fromkeys(COUNTERS, 1.0)
    }


@pytest.mark.parametrize(
    "second",
    [
        [],
        [Sample(9.0, "decode", "d1", {})],
        [reading(9.0, 0.0)],
    ],
)
def test_a_role_that_nobody_knows_of_is_null(second: list[Sample]) -> None:
    """Read once, silent at the end, or restarted: counters would be wrong."""
    samples = [reading(-1.0, 5.0), *second]
    assert engine_counters(samples) == {"decode": None}
    assert any("do not cover" in line for line in reading_problems(samples))


def test_no_samples_no_counters() -> None:
    """Nothing was scraped."""
    assert engine_counters([]) is None
    assert timeline([]) == []
    assert reading_problems([]) == []


def test_silent_readings_are_counted() -> None:
    """A server that does not answer is skipped, and the report says how often."""
    samples = [reading(-1.0, 1.0), Sample(1.0, "decode", "d1", {}), reading(2.0, 1.0)]
    assert reading_problems(samples) == ["decode d1: 1 of 3 readings were not answered"]
    assert len(timeline(samples)) == 2


def test_pins_are_a_share_of_all_decode_nodes() -> None:
    """500 pinned tokens of two nodes that hold 1,000 each."""
    samples = [
        reading(1.0, 0.0, url="d1"),
        reading(1.0, 0.0, url="d2"),
        Sample(1.5, "router", "r", {"running": 2.0, "waiting": 1.0, "pinned_tokens": 500.0}),
    ]
    *_, router = timeline(samples)
    assert router == {
        "at_s": 1.5,
        "role": "router",
        "url": "r",
        "kv_usage": None,
        "running": 2.0,
        "waiting": 1.0,
        "pinned_share": 0.25,
    }
    assert timeline(samples[2:])[0]["pinned_share"] is None


def test_a_long_timeline_is_thinned_evenly() -> None:
    """Every server keeps its share of moments, from the first to near the end."""
    samples = [
        reading(float(at_s), 0.0, role, role)
        for at_s in range(1000)
        for role in ("prefill", "decode")
    ]
    found = timeline(samples)
    assert len(found) <= MOST_ENTRIES
    for role in ("prefill", "decode"):
        moments = [entry["at_s"] for entry in found if entry["role"] == role]
        assert moments[0] == 0
        assert moments[-1] > 990
        assert len(moments) >= MOST_ENTRIES // 2 - 1
    assert [entry["at_s"] for entry in found] == sorted(entry["at_s"] for entry in found)
