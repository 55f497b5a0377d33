"""Every key of a report is documented, and explained."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from runtime.bench.exactness import Verdict
from runtime.bench.render.csv import COLUMNS
from runtime.bench.report import build_report
from runtime.bench.scrape import COUNTERS
from runtime.contract.bench import BenchSpec, Objectives, Price
from tests.bench.report.test_build import leaf_keys
from tests.bench.report.test_published import figures
from tests.bench.simulated import simulated_pass

DOCS = Path(__file__).parents[2] / "docs"
BENCHMARK = (DOCS / "benchmark.md").read_text("utf-8")
REFERENCE = (DOCS / "reference.md").read_text("utf-8")
CSV = REFERENCE.split("## `requests.csv`", 1)[1]
REPORT = REFERENCE.split("## `report.json`", 1)[1].split("\n## ", 1)[0]

UNEXPLAINED = {
    # What the turn, the pass or the profile is: a name says it.
    *("conversation", "turn", "arm", "point", "repeat", "block", "outcome", "error", "path"),
    *("reason", "is_edited", "is_again", "started_s", "ended_s", "think_s", "answer_tokens"),
    *("created_utc", "complete", "stopped_by", "environment", "pass", "bench", "seed"),
    *("schema_version", "workload", "arms", "one_way", "bidirectional", "kind", "position"),
    *("one_way_id", "bidirectional_id", "one_way_logprob", "bidirectional_logprob"),
    *("objectives", "price", *BenchSpec.model_fields, *Price.model_fields),
    *("role", "url", "at_s", "profile", "published", "name", "own_prefix_tokens", "requests"),
    # Explained on the receipts' side of the reference.
    *("reasons", "offered_tokens", "verified_tokens", "prefill", "decode", "compute"),
}


def report_keys() -> set[str]:
    """Every word that is a key somewhere in a full report; the profile's and reasons apart."""
    full: dict[str, Any] = {
        "failures": 0.2,
        "differences": 0.2,
        "objectives": Objectives(ttft_ms=100),
        "price": Price(usd_per_node_hour=60),
    }
    report = build_report([simulated_pass(**full), simulated_pass(name="second")], figures())
    for one in (report, *report["other_passes"]):
        for arm in one["arms"].values():
            for turn in arm["turns"]:
                turn["prefill"]["reasons"] = turn["decode"]["reasons"] = None
    keys = leaf_keys({**report, "workload": None, "environment": None})
    return {word for key in keys for word in key.split(".")}


KEYS = report_keys()


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_is_in_the_reference(key: str) -> None:
    """A key that the reference does not name fails here."""
    assert re.search(rf"[`.]{key}[`.]", REPORT)


def test_every_column_of_the_rows_is_in_the_reference() -> None:
    """A column that is not explained there fails here, and so does one that is no more."""
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", CSV, re.MULTILINE)))
    assert sorted(named) == sorted(COLUMNS)


def test_every_figure_is_explained() -> None:
    """docs/benchmark.md has each key that is a figure."""
    told = {key for key in KEYS if re.search(rf"[`.]{key}[`.]", BENCHMARK)}
    assert KEYS - told - UNEXPLAINED == set()


def test_verdicts_and_counters_are_explained() -> None:
    """Each word and each counter in a table of its own."""
    for word in (*get_args(Verdict), *COUNTERS):
        assert f"`{word}`" in BENCHMARK
