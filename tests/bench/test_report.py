"""The report's keys, its figures, and what it says when there is nothing to say."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.bench.report import (
    build_report,
    split_pull,
    write_report,
)
from runtime.bench.turn import TurnResult
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt
from tests.bench.simulated import pass_of

Make = Callable[..., TurnResult]

GOLDEN_KEYS = [
    "arms.bidirectional.requests",
    "arms.bidirectional.turns.decode.local_tokens",
    "arms.bidirectional.turns.decode.offered_tokens",
    "arms.bidirectional.turns.decode.reasons.pulled",
    "arms.bidirectional.turns.decode.stage_ms_p50.compute",
    "arms.bidirectional.turns.decode.stage_ms_p50.pull",
    "arms.bidirectional.turns.decode.stage_ms_p50.queue",
    "arms.bidirectional.turns.decode.verified_tokens",
    "arms.bidirectional.turns.errored",
    "arms.bidirectional.turns.incomplete",
    "arms.bidirectional.turns.n",
    "arms.bidirectional.turns.prefill.local_tokens",
    "arms.bidirectional.turns.prefill.offered_tokens",
    "arms.bidirectional.turns.prefill.reasons.pulled",
    "arms.bidirectional.turns.prefill.stage_ms_p50.compute",
    "arms.bidirectional.turns.prefill.stage_ms_p50.pull",
    "arms.bidirectional.turns.prefill.stage_ms_p50.queue",
    "arms.bidirectional.turns.prefill.verified_tokens",
    "arms.bidirectional.turns.prompt_tokens",
    "arms.bidirectional.turns.pulled_answer_tokens",
    "arms.bidirectional.turns.pulled_prompt_tokens",
    "arms.bidirectional.turns.returnable_answer_tokens",
    "arms.bidirectional.turns.ttft_ms.mean",
    "arms.bidirectional.turns.ttft_ms.p50",
    "arms.bidirectional.turns.ttft_ms.p90",
    "arms.bidirectional.turns.ttft_ms.p99",
    "arms.bidirectional.turns.turn",
    "arms.one_way.requests",
    "arms.one_way.turns.decode.local_tokens",
    "arms.one_way.turns.decode.offered_tokens",
    "arms.one_way.turns.decode.stage_ms_p50.compute",
    "arms.one_way.turns.decode.stage_ms_p50.pull",
    "arms.one_way.turns.decode.stage_ms_p50.queue",
    "arms.one_way.turns.decode.verified_tokens",
    "arms.one_way.turns.errored",
    "arms.one_way.turns.incomplete",
    "arms.one_way.turns.n",
    "arms.one_way.turns.prefill.local_tokens",
    "arms.one_way.turns.prefill.offered_tokens",
    "arms.one_way.turns.prefill.stage_ms_p50.compute",
    "arms.one_way.turns.prefill.stage_ms_p50.pull",
    "arms.one_way.turns.prefill.stage_ms_p50.queue",
    "arms.one_way.turns.prefill.verified_tokens",
    "arms.one_way.turns.prompt_tokens",
    "arms.one_way.turns.pulled_answer_tokens",
    "arms.one_way.turns.pulled_prompt_tokens",
    "arms.one_way.turns.returnable_answer_tokens",
    "arms.one_way.turns.ttft_ms.mean",
    "arms.one_way.turns.ttft_ms.p50",
    "arms.one_way.turns.ttft_ms.p90",
    "arms.one_way.turns.ttft_ms.p99",
    "arms.one_way.turns.turn",
    "complete",
    "created_utc",
    "engine",
    "environment.engine",
    "exactness.compared",
    "exactness.differences",
    "exactness.equal",
    "exactness.ties",
    "schema_version",
    "speedup.overall.ci95",
    "speedup.overall.n",
    "speedup.overall.ratio",
    "speedup.turn_1.ci95",
    "speedup.turn_1.n",
    "speedup.turn_1.ratio",
    "speedup.turns.ci95",
    "speedup.turns.n",
    "speedup.turns.ratio",
    "speedup.turns.turn",
    "stopped_by",
]


def leaf_keys(value: Any, path: str = "") -> set[str]:
    """Dotted names of all leaves; list items count as their list."""
    if isinstance(value, Mapping):
        return {key for name in value for key in leaf_keys(value[name], f"{path}.{name}")}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return {key for item in value for key in leaf_keys(item, path)}
    return {path.removeprefix(".")}


def report_of(profile: Profile, results: list[TurnResult], **more: Any) -> dict[str, Any]:
    return build_report([pass_of(profile, results, **more)])


@pytest.fixture
def results(make_turn: Make) -> list[TurnResult]:
    """Two conversations of three turns; ratio 1 at turn 1, later 2 in one and 8 in the other."""
    built = []
    for conversation, ratio in ((0, 2.0), (1, 8.0)):
        for turn in (1, 2, 3):
            fields = {"conversation": conversation, "turn": turn, "prompt_tokens": 60 * turn}
            built.append(make_turn(arm="one_way", ttft_ms=80.0, **fields))
            warm_ms = 80.0 if turn == 1 else 80.0 / ratio
            told = {
                "receipt": Receipt(96, 96, 0, 96, "pulled", 0.0, 1.0, 2.5, 3.0, 6.0),
                "decode_receipt": Receipt(120, 120, 32, 88, "pulled", 0.0, 0.5, 1.5, 2.0, 9.0),
            }
            warm = fields | (told if turn == 2 else {})
            built.append(make_turn(arm="bidirectional", ttft_ms=warm_ms, **warm))
    return built


def test_the_reports_keys_are_fixed(profile: Profile, results: list[TurnResult]) -> None:
    """A key added, lost or renamed is a new schema version."""
    report = report_of(profile, results)
    workload = report.pop("workload")
    assert sorted(leaf_keys(report)) == GOLDEN_KEYS
    assert report["schema_version"] == 1
    assert workload == profile.model_dump(mode="json")
    assert {"workload", "serving", "kv"} <= set(workload)


def test_turn_figures(profile: Profile, results: list[TurnResult]) -> None:
    """Latencies, prompt sizes and pulled tokens are those of the successful turns."""
    arms = report_of(profile, results)["arms"]
    assert arms["one_way"]["requests"] == arms["bidirectional"]["requests"] == 6
    assert [turn["turn"] for turn in arms["one_way"]["turns"]] == [1, 2, 3]
    second = arms["bidirectional"]["turns"][1]
    assert second == {
        "turn": 2,
        "n": 2,
        "errored": 0,
        "incomplete": 0,
        "ttft_ms": {"p50": 10.0, "p90": None, "p99": None, "mean": 25.0},
        "prompt_tokens": 120.0,
        "pulled_prompt_tokens": 120,
        "pulled_answer_tokens": 72,
        # Of each answer of 40 tokens all but the last one.
        "returnable_answer_tokens": 78,
        "prefill": {
            "reasons": {"pulled": 2},
            "offered_tokens": 192,
            "verified_tokens": 192,
            "local_tokens": 0,
            "stage_ms_p50": {"queue": 1.0, "pull": 2.0, "compute": 3.0},
        },
        "decode": {
            "reasons": {"pulled": 2},
            "offered_tokens": 240,
            "verified_tokens": 240,
            "local_tokens": 64,
            "stage_ms_p50": {"queue": 0.5, "pull": 1.5, "compute": 7.0},
        },
    }
    assert arms["one_way"]["turns"][1]["pulled_prompt_tokens"] == 0
    assert arms["one_way"]["turns"][0]["returnable_answer_tokens"] == 0
    assert arms["one_way"]["turns"][0]["prefill"]["stage_ms_p50"]["pull"] is None


def test_failures_are_counted_beside_latencies(
    profile: Profile, results: list[TurnResult], make_turn: Make
) -> None:
    """Failed turns are counted and have no part in any figure."""
    failed = [
        make_turn(turn=2, conversation=8, outcome="errored", ttft_ms=None, prompt_tokens=None),
        make_turn(turn=2, conversation=9, outcome="incomplete", ttft_ms=None),
    ]
    arm = report_of(profile, [*results, *failed])["arms"]["one_way"]
    turn = arm["turns"][1]
    assert arm["requests"] == 8
    assert (turn["n"], turn["errored"], turn["incomplete"]) == (2, 1, 1)
    assert turn["ttft_ms"]["mean"] == 80.0
    assert turn["prompt_tokens"] == 120.0


def test_speedups_per_turn_and_overall(profile: Profile, results: list[TurnResult]) -> None:
    """Ratios are geometric means of one-way over bidirectional; turn 1 stands apart."""
    speedup = report_of(profile, results)["speedup"]
    assert speedup["turn_1"] == {"ratio": 1.0, "ci95": [1.0, 1.0], "n": 2}
    assert [turn["turn"] for turn in speedup["turns"]] == [2, 3]
    assert [turn["ratio"] for turn in speedup["turns"]] == [pytest.approx(4)] * 2
    assert speedup["overall"]["ratio"] == pytest.approx(4)


def test_overall_interval_counts_conversations(profile: Profile, results: list[TurnResult]) -> None:
    """Turns of one conversation are one value: n is 2 here, not 4."""
    overall = report_of(profile, results)["speedup"]["overall"]
    assert overall["n"] == 2
    half = 12.7062 * math.log(4) / 2
    assert overall["ci95"] == [
        pytest.approx(4 / math.exp(half)),
        pytest.approx(4 * math.exp(half)),
    ]


def test_a_ratio_needs_both_arms(profile: Profile, make_turn: Make) -> None:
    """A turn that one arm did not finish is in no ratio."""
    half = [
        make_turn(turn=2, arm="one_way"),
        make_turn(turn=2, arm="bidirectional", outcome="errored", ttft_ms=None),
    ]
    speedup = report_of(profile, half)["speedup"]
    assert speedup["turns"][0] == {"turn": 2, "ratio": None, "ci95": None, "n": 0}
    assert speedup["overall"] == {"ratio": None, "ci95": None, "n": 0}


def test_a_report_of_nothing_is_whole(profile: Profile) -> None:
    """A run that was stopped before its first turn still has every key."""
    report = report_of(profile, [], stopped_by="Ctrl-C")
    assert (report["complete"], report["stopped_by"]) == (False, "Ctrl-C")
    assert leaf_keys(report["arms"]) == leaf_keys(report_of(profile, [])["arms"])
    assert report["exactness"]["compared"] == 0
    json.dumps(report, allow_nan=False)


def test_pulled_tokens_after_a_failed_turn_use_the_other_arms_prompt(
    profile: Profile, make_turn: Make
) -> None:
    """Both arms send the same prompt, so either one's count splits the pull."""
    turns = [
        make_turn(turn=1, arm="one_way", prompt_tokens=60),
        make_turn(turn=1, arm="bidirectional", outcome="errored", prompt_tokens=None),
        make_turn(turn=2, arm="bidirectional", receipt=Receipt(96, 96, 0, 96, "pulled")),
    ]
    turn = report_of(profile, turns)["arms"]["bidirectional"]["turns"][1]
    assert (turn["pulled_prompt_tokens"], turn["pulled_answer_tokens"]) == (60, 36)


def test_an_arms_own_prompt_count_comes_first(profile: Profile, make_turn: Make) -> None:
    """The other arm's count only fills a gap."""
    turns = [
        make_turn(turn=1, arm="bidirectional", prompt_tokens=60),
        make_turn(turn=1, arm="one_way", prompt_tokens=70),
        make_turn(turn=2, arm="bidirectional", receipt=Receipt(96, 96, 0, 96, "pulled")),
    ]
    turn = report_of(profile, turns)["arms"]["bidirectional"]["turns"][1]
    assert turn["pulled_prompt_tokens"] == 60


@pytest.mark.parametrize(
    ("local", "pulled", "previous", "want"),
    [
        (0, 96, 60, (60, 36)),
        (32, 64, 60, (28, 36)),
        (64, 32, 60, (0, 32)),
        (0, 32, 60, (32, 0)),
        (0, 0, 60, (0, 0)),
        (0, 96, None, (96, 0)),
    ],
)
def test_a_pull_is_split_at_the_previous_prompts_end(
    local: int, pulled: int, previous: int | None, want: tuple[int, int]
) -> None:
    """Positions below the previous prompt's length are prompt, the rest is answer."""
    split = split_pull(local_tokens=local, pulled_tokens=pulled, previous_prompt_tokens=previous)
    assert split == want


def test_engine_counters_are_passed_on(profile: Profile) -> None:
    """What was scraped stands in the report, also when one role did not answer."""
    counters = {"prefill": {"nixl_reads": 3.0}, "decode": None}
    assert report_of(profile, [], engine=counters)["engine"] == counters


def test_writing_replaces_the_old_report_whole(tmp_path: Path) -> None:
    """The new report takes the old one's place and leaves no draft behind."""
    path = tmp_path / "out" / "report.json"
    write_report({"a": 1}, path)
    write_report({"a": 2}, path)
    assert path.read_text("utf-8") == '{\n  "a": 2\n}\n'
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]


def test_a_report_that_is_not_json_leaves_the_old_one(tmp_path: Path) -> None:
    """A value that JSON does not have never reaches the file."""
    path = tmp_path / "report.json"
    write_report({"a": 1}, path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_report({"a": float("nan")}, path)
    assert json.loads(path.read_text("utf-8")) == {"a": 1}
