"""Both settings together, and what they would give."""

import json
from typing import Any

import pytest

from runtime.bench.tune.gaps import exponential, observed
from runtime.bench.tune.tuning import Tuning, Wishes, tune
from tests.bench.tune.made import Truth, made

GAPS = exponential(30)


def tuned(wishes: Wishes | None = None, truth: Truth | None = None, **sizes: object) -> Tuning:
    """Of a made pass with some noise."""
    return tune(made(truth, **{"noise": 0.05, **sizes}), wishes or Wishes(GAPS, turns_per_s=0.1))


def test_both_settings_are_suggested_and_make_up_the_effect() -> None:
    """TTL from the gaps, threshold from the fit; short pulls are given up at a gain."""
    made_up = tuned()
    assert made_up.settings == {
        "decoder_kv_blocks_ttl_s": 100,
        "kv_recompute_threshold_tokens": made_up.threshold.tokens,
    }
    assert made_up.then.threshold_tokens > made_up.now.threshold_tokens == 64
    assert made_up.then.saved_ms is not None
    assert made_up.now.saved_ms is not None
    assert made_up.then.saved_ms > 0.95 * made_up.now.saved_ms
    assert made_up.then.warm_share is not None
    assert made_up.now.warm_share is not None
    assert made_up.then.warm_share < made_up.now.warm_share
    assert made_up.then.ci95_ms is not None
    low, high = made_up.then.ci95_ms
    assert low < made_up.then.saved_ms < high


def test_the_effect_is_the_mean_saving_of_the_returns_that_are_kept() -> None:
    """By the true lines, without noise."""
    truth = Truth()
    seen = made(truth)
    gaps = observed([1.0] * 30 + [1000.0] * 10, "test")
    found = tune(seen, Wishes(gaps, 0.7, turns_per_s=0.01)).then
    rows = [row.pulled_tokens or 0 for row in seen.warmable]
    saved = [
        (truth.d - truth.b) * each - truth.a for each in rows if each >= found.threshold_tokens
    ]
    assert found.kept_share == 0.75
    assert found.saved_ms == pytest.approx(0.75 * sum(saved) / len(rows), rel=1e-6)
    assert found.warm_share == pytest.approx(0.75 * len(saved) / len(rows))


def test_the_interval_of_the_effect_covers_the_truth() -> None:
    """In about 95 % of draws."""
    truth, hits = Truth(), 0
    for seed in range(60):
        found = tuned(truth=truth, noise=0.1, seed=seed)
        rows = [row.pulled_tokens or 0 for row in found.seen.warmable]
        kept = [each for each in rows if each >= found.then.threshold_tokens]
        saved = sum((truth.d - truth.b) * each - truth.a for each in kept) / len(rows)
        assert found.then.ci95_ms is not None
        low, high = found.then.ci95_ms
        hits += low <= 0.95 * saved <= high
    assert 52 <= hits <= 60


def test_one_setting_comes_without_the_other() -> None:
    """No gaps: no TTL. No pulls: no threshold, and no saving is told."""
    no_gaps = tuned(Wishes())
    assert list(no_gaps.settings) == ["kv_recompute_threshold_tokens"]
    assert no_gaps.then.kept_share is None
    assert no_gaps.then.ttl_s == 480
    no_pulls = tuned(arms=("one_way",))
    assert list(no_pulls.settings) == ["decoder_kv_blocks_ttl_s"]
    assert (no_pulls.then.saved_ms, no_pulls.then.warm_share) == (None, None)
    assert "the pass has no bidirectional turn" in no_pulls.warnings
    assert no_pulls.budget is None


def test_the_budget_is_the_reports_unless_it_is_given() -> None:
    """Capacity, rate, share; the benchmark's own rate is told as such."""
    own = tuned(Wishes(GAPS))
    assert own.budget is not None
    assert own.budget.capacity_tokens == 400_000
    assert own.budget.turns_per_s == pytest.approx(1.0)
    assert any("are the benchmark's" in line for line in own.warnings)
    given = tuned(Wishes(GAPS, 0.9, 50_000, 0.25, 2.0))
    assert given.budget is not None
    assert given.budget.tokens == 12_500
    assert given.ttl.seconds is None
    assert not any("are the benchmark's" in line for line in given.warnings)


def test_without_a_capacity_the_budget_is_not_kept_and_that_is_told() -> None:
    """The TTL is suggested all the same."""
    found = tuned(kv_capacity_tokens={"decode": None})
    assert found.ttl.seconds == 100
    assert any("--kv-capacity-tokens" in line for line in found.warnings)


def test_pins_beyond_the_budget_are_told() -> None:
    """Those of the old TTL, and the peaks of the new one."""
    lines = tuned(Wishes(GAPS, turns_per_s=1.0)).warnings
    assert any("a TTL of 480 s would pin" in line for line in lines)
    tight = tuned(Wishes(GAPS, 0.95, turns_per_s=2.5))
    assert tight.ttl.is_bounded
    assert any("at peaks" in line for line in tight.warnings)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"environment": {"engine": "mock"}}, "MOCK ENGINE"),
        ({"complete": False, "stopped_by": "Ctrl-C"}, "PARTIAL REPORT: stopped by Ctrl-C"),
        ({"arms": ("bidirectional",)}, "no one_way turn"),
        ({"think_s": 20.0}, "the gaps are those of the benchmark's workload"),
    ],
)
def test_what_must_be_taken_with_care_is_told(changes: dict[str, Any], word: str) -> None:
    """It works all the same."""
    found = tuned(Wishes(), **changes)
    assert any(word in line for line in found.warnings)
    assert found.threshold.tokens is not None


def test_it_is_plain_json() -> None:
    """Nothing in it is NaN, and it names the keys of deployment.toml."""
    told = json.loads(json.dumps(tuned().to_dict(), allow_nan=False))
    assert set(told["settings"]) == {
        "kv.decoder_kv_blocks_ttl_s",
        "kv.kv_recompute_threshold_tokens",
    }
    assert told["threshold"]["fit"]["pulls"] == 40
    json.dumps(tuned(Wishes(), arms=("one_way",)).to_dict(), allow_nan=False)
