"""What /metrics tells of stages."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from runtime.router.metrics import RouterMetrics


def stage_samples(metrics: RouterMetrics, stage: str) -> dict[tuple[str, str], float]:
    """(sample, le) -> value of one stage's histogram, as a scraper reads it."""
    found = {
        (sample.name.removeprefix("turnback_turn_stage_seconds"), sample.labels.get("le", "")): (
            sample.value
        )
        for family in families(metrics.page().decode())
        for sample in family.samples
        if sample.labels.get("stage") == stage
    }
    assert found, metrics.page()
    return found


def test_stages_are_a_histogram() -> None:
    """Each bucket holds all that is not longer than its bound, the last one everything."""
    metrics = RouterMetrics()
    for seconds in (0.0005, 0.001, 0.002, 5.0, 100.0):
        metrics.stage("prefill", seconds)
    metrics.stage("queue", 0.1)
    told = stage_samples(metrics, "prefill")
    buckets = {le: value for (name, le), value in told.items() if name == "_bucket"}
    assert buckets == {
        **{"0.001": 2, "0.003": 3, "0.01": 3, "0.03": 3, "0.1": 3, "0.3": 3, "1.0": 3},
        **{"3.0": 3, "10.0": 4, "30.0": 4, "+Inf": 5},
    }
    assert told["_count", ""] == 5
    assert told["_sum", ""] == pytest.approx(105.0035)
    assert stage_samples(metrics, "queue")["_count", ""] == 1


def test_routers_of_one_process_count_apart() -> None:
    """Each has a registry of its own."""
    one, other = RouterMetrics(), RouterMetrics()
    one.stage("take", 1.0)
    assert b'stage="take"' not in other.page()
