"""What a validation makes of a run."""

import json
from dataclasses import replace
from typing import Any

import pytest

from runtime.bench.bars import Bars
from runtime.bench.report import build_report
from runtime.bench.turn import TurnResult
from runtime.contract.operations import VALIDATION_METRICS
from runtime.errors import EngineDied
from runtime.job.judge import (
    KvSize,
    expected_bytes,
    judge_exactness,
    judge_transport,
    kv_size,
    metrics,
    pulled_share_percent,
    summary,
)
from tests.bench.simulated import simulated_pass

QWEN3_32B = {
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 5120,
    "torch_dtype": "bfloat16",
}
SIZE = KvSize(bytes_per_token=4096, block_size_tokens=32)
ADDRESS = "s3://bucket/runs/one/report.json"


def run(**changes: Any) -> tuple[dict[str, Any], list[TurnResult]]:
    """A simulated pass as `measure` gives one."""
    info, results, samples = simulated_pass(**changes)
    return build_report([(info, results, samples)]), results


@pytest.mark.parametrize(
    ("config", "dtype", "ranks", "expected", "copies"),
    [
        (QWEN3_32B, "bfloat16", 8, 2 * 64 * 8 * 128 * 2, 1),
        (QWEN3_32B, "auto", 8, 2 * 64 * 8 * 128 * 2, 1),
        (QWEN3_32B, "float32", 1, 2 * 64 * 8 * 128 * 4, 1),
        (QWEN3_32B | {"num_key_value_heads": 2}, "bfloat16", 8, 2 * 64 * 2 * 128 * 2, 4),
        ({"text_config": QWEN3_32B}, "bfloat16", 8, 2 * 64 * 8 * 128 * 2, 1),
        (QWEN3_32B | {"head_dim": None}, "bfloat16", 8, 2 * 64 * 8 * 80 * 2, 1),
        (QWEN3_32B | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "auto", 8, 64 * 576 * 2, 8),
    ],
)
def test_kv_of_a_token(
    config: dict[str, Any], dtype: str, ranks: int, expected: int, copies: int
) -> None:
    """Keys and values over all layers and heads; a latent attention's one vector."""
    assert kv_size(config, dtype, 16, ranks) == KvSize(expected, 16, copies)


@pytest.mark.parametrize("config", [{}, QWEN3_32B | {"torch_dtype": "fp4"}])
def test_a_config_that_does_not_say_is_not_guessed(config: dict[str, Any]) -> None:
    """Bytes are told then, and not judged."""
    assert kv_size(config, "auto", 16, 8) is None


def moved(report: dict[str, Any], results: list[TurnResult], factor: float = 1.0) -> None:
    """The engines count the bytes of what receipts say, times a factor."""
    low, high = expected_bytes(results, SIZE)
    report["engine"] = {
        "prefill": {"nixl_reads": 5, "nixl_bytes": (low + high) / 2 * factor},
        "decode": {"nixl_reads": 7, "nixl_bytes": 0},
    }
    for counted in report["engine"].values():
        counted["failed_transfers"] = 0


def test_transfers_that_add_up_are_good() -> None:
    """More than none on both roles, none failed, as many bytes as the tokens' KV."""
    report, results = run()
    moved(report, results)
    told = judge_transport(report, results, SIZE)
    assert (told["transfers"], told["failed_transfers"]) == (12, 0)
    low, high = told["expected_bytes"]
    assert 0 < low <= told["bytes"] <= high


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("few bytes", "bytes were moved"),
        ("many bytes", "bytes were moved"),
        ("no read by P", "no transfer was read by a prefill engine"),
        ("no read by D", "no transfer was read by a decode engine"),
        ("failed transfer", "3 transfers failed on decode"),
        ("no counters", "the prefill engines' counters cannot be read"),
        ("cold turn", "pulled nothing from D"),
        ("failed turn", "turns failed: it is said"),
        ("no turn", "0 of 0 later turns"),
    ],
)
def test_transfers_that_do_not_add_up_are_told(what: str, said: str) -> None:
    """Each of them alone, whatever HTTP status the turns had."""
    report, results = run()
    moved(report, results, {"few bytes": 0.5, "many bytes": 2.0}.get(what, 1.0))
    engine = report["engine"]
    if what.startswith("no read"):
        engine["prefill" if what.endswith("P") else "decode"]["nixl_reads"] = 0
    elif what == "failed transfer":
        engine["decode"]["failed_transfers"] = 3
    elif what == "no counters":
        engine["prefill"] = None
    elif what == "cold turn":
        results = [replace(results[0], arm="bidirectional", turn=2, receipt=None), *results]
    elif what == "failed turn":
        results[0] = replace(results[0], outcome="errored", error="it is said")
    elif what == "no turn":
        results = []
    with pytest.raises(EngineDied) as failure:
        judge_transport(report, results, SIZE)
    assert said in failure.value.got


def test_bytes_of_a_model_that_does_not_say_are_told() -> None:
    """And judge nothing."""
    report, results = run()
    moved(report, results, 99.0)
    assert judge_transport(report, results, None)["expected_bytes"] is None


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({}, "equal"), ({"dtype": "bfloat16", "again_share": 1.0}, "equal")],
)
def test_answers_that_agree_are_good(changes: dict[str, Any], verdict: str) -> None:
    """Up to the noise of equal runs."""
    report, _ = run(**changes)
    assert judge_exactness(report)["verdict"] == verdict


@pytest.mark.parametrize("changes", [{"differences": 0.9, "again_share": 1.0}])
def test_answers_that_differ_end_the_run(changes: dict[str, Any]) -> None:
    """More often than equal runs do."""
    report, _ = run(**changes)
    with pytest.raises(EngineDied, match="changes answers"):
        judge_exactness(report)


def test_a_run_that_compared_nothing_has_proven_nothing() -> None:
    """All turns of one arm failed."""
    report, _ = run()
    report["exactness"] |= {"compared": 0, "verdict": "not_compared"}
    with pytest.raises(EngineDied, match="changes answers"):
        judge_exactness(report)


def test_the_summary_fits_a_parameter_and_a_message() -> None:
    """4 kB of a standard parameter, with what the state machine adds."""
    report, _ = run(clients=2, points=(0, 2000))
    told = summary(report, ADDRESS, Bars(1.0, 100.0))
    assert len(json.dumps(told)) < 2000
    assert told["report"] == ADDRESS
    assert 1.7 < told["speedup"]["ratio"] < 2.3
    assert told["ttft_ms"]["bidirectional"]["n"] == 2 * 10 * 4


@pytest.mark.parametrize(
    ("bars", "missed"),
    [
        (Bars(), 0),
        (Bars(min_speedup=1.2), 0),
        (Bars(min_speedup=9.0), 1),
        (Bars(slo_ttft_p90_ms=1e6), 0),
        (Bars(slo_ttft_p90_ms=1.0), 4),
        (Bars(9.0, 1.0), 5),
    ],
)
def test_bars(bars: Bars, missed: int) -> None:
    """The benchmark's own; each is told with what was got and what is asked."""
    report, _ = run()
    told = summary(report, ADDRESS, bars)
    assert len(told["missed"]) == missed
    assert told["verdict"] == ("below_bar" if missed else "good")


def test_a_figure_that_could_not_be_had_misses_its_bar() -> None:
    """Never good for want of a measurement; and never a ratio made from failures."""
    report, _ = run(failures=1.0)
    told = summary(report, ADDRESS, Bars(0.1, 1e9))
    assert told["verdict"] == "below_bar"
    assert told["speedup"]["ratio"] is None


def test_many_missed_bars_do_not_burst_a_message() -> None:
    """One a turn; a conversation may have many."""
    report, _ = run(turns=30)
    told = summary(report, ADDRESS, Bars(slo_ttft_p90_ms=1.0))
    assert told["missed"][-1] == "and more"
    assert len(json.dumps(told)) < 2000


def test_metrics_are_the_contracts_each_with_its_dimensions() -> None:
    """All that a run can tell, once for each arm and turn."""
    report, results = run()
    moved(report, results)
    data = metrics(report)
    seen = {metric for metric, _, _ in data}
    assert seen == {each for each in VALIDATION_METRICS if each.name not in MACHINES_OWN}
    for metric, at, _ in data:
        assert ("Deployment", *at) == metric.dimensions
    shares = [value for metric, _, value in data if metric.name == "PulledShare"]
    assert shares == [pulled_share_percent(report)]
    assert 50 < shares[0] <= 100


MACHINES_OWN = ("ValidationFailed", "BarMissed")
"""Put by the state machine itself."""


def test_what_could_not_be_measured_is_no_metric() -> None:
    """Not a zero."""
    report, _ = run(failures=1.0)
    names = {metric.name for metric, _, _ in metrics(report)}
    assert not names & {"SpeedUp", "SpeedUpLow", "TtftP50Ms", "PulledShare"}
    assert "FailedTurns" in names
