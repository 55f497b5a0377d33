"""The report's keys, its figures, and what it says when there is nothing to say."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.bench.report import build_report, split_pull
from runtime.bench.scrape import COUNTERS
from runtime.bench.turn import TurnResult
from runtime.contract.bench import Objectives, Price
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt
from tests.bench.simulated import pass_of, simulated_pass

Make = Callable[..., TurnResult]

NO_RATIO = {"ratio": None, "ci95": None, "n": 0, "method": None}
GOLDEN = Path(__file__).parents[2] / "golden" / "report-keys.txt"

FIRST_KEYS = [
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


def test_no_key_of_the_first_reports_is_lost(profile: Profile, results: list[TurnResult]) -> None:
    """Readers of schema 1 find what they found; a key lost or renamed is a new version."""
    report = report_of(profile, results)
    assert set(FIRST_KEYS) - {"engine"} <= leaf_keys(report)
    assert "engine" in report
    assert report["schema_version"] == 1
    assert report["workload"] == profile.model_dump(mode="json")
    assert {"workload", "serving", "kv"} <= set(report["workload"])


def test_the_reports_keys_are_those_of_the_golden_file() -> None:
    """A key added or moved changes tests/golden/report-keys.txt, on purpose."""
    full = simulated_pass(
        failures=0.2,
        differences=0.2,
        objectives=Objectives(ttft_ms=100),
        price=Price(usd_per_node_hour=60),
    )
    report = build_report([full])
    report["arms"] = list(report["arms"].values())  # of either arm
    keys = leaf_keys({**report, "workload": None, "environment": None})
    assert "".join(f"{key}\n" for key in sorted(keys)) == GOLDEN.read_text("utf-8")


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
        "aborted": 0,
        "e2e_ms": {"p50": 200.0, "p90": None, "p99": None, "mean": 200.0},
        "tpot_ms": {"p50": 160.0, "p90": None, "p99": None, "mean": 175.0},
        "ttft_ms": {"p50": 10.0, "p90": None, "p99": None, "mean": 25.0},
        "prompt_tokens": 120.0,
        "pulled_prompt_tokens": 120,
        "pulled_answer_tokens": 72,
        # Of each answer of two tokens all but the last one.
        "returnable_answer_tokens": 2,
        "cached_tokens": 0,
        "computed_tokens": 2 * (120 - 96),
        "stage_ms_p50": dict.fromkeys(
            ("queue", "pull", "prefill", "hand_over", "first_decode", "unattributed")
        ),
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
    assert speedup["turn_1"] == {"ratio": 1.0, "ci95": [1.0, 1.0], "n": 2, "method": "t"}
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
    assert speedup["turns"][0] == {"turn": 2} | NO_RATIO
    assert speedup["overall"] == NO_RATIO


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
    engine = report_of(profile, [], engine={"prefill": {"nixl_reads": 3.0}, "decode": None})[
        "engine"
    ]
    assert engine == {"prefill": dict.fromkeys(COUNTERS, 0.0) | {"nixl_reads": 3.0}, "decode": None}


def test_passes_are_never_mixed() -> None:
    """Each pass has figures of its own turns; the main one's do not change beside another."""
    main, off = simulated_pass(ratio=2.0), simulated_pass(is_feature_on=False, name="off", seed=7)
    alone, beside = build_report([main]), build_report([main, off])
    (other,) = beside.pop("other_passes")
    assert beside == {key: value for key, value in alone.items() if key != "other_passes"}
    assert other["pass"]["name"] == "off"
    assert list(other["arms"]) == ["one_way"]
    assert other["speedup"]["overall"] == NO_RATIO
    assert other["requests"] == build_report([off])["requests"]
    shared = {"schema_version", "environment", "workload", "published"}
    assert set(other) == set(beside) - shared


def test_repeats_of_noise_and_left_turns_are_outside(profile: Profile, make_turn: Make) -> None:
    """A/A repeats and turns whose client left count in no latency of an arm."""
    turns = [
        make_turn(ttft_ms=80.0),
        make_turn(ttft_ms=900.0, is_again=True),
        make_turn(conversation=1, outcome="aborted", ttft_ms=None, e2e_ms=None),
    ]
    arm = report_of(profile, turns)["arms"]["one_way"]
    assert arm["turns"][0]["ttft_ms"]["mean"] == 80.0
    assert arm["requests"] == 2
    assert arm["outcomes"] == {"successful": 1, "errored": 0, "incomplete": 0, "aborted": 1}
    assert arm["turns"][0]["aborted"] == 1


def test_every_turn_has_a_row(make_turn: Make, profile: Profile) -> None:
    """Whatever came of it, in the order in which turns were sent."""
    turns = [
        make_turn(started_s=2.0, outcome="errored", error="HTTP 500", ttft_ms=None, e2e_ms=None),
        make_turn(started_s=1.0, is_again=True, receipt=Receipt(64, 64, 32, 32, "pulled")),
    ]
    first, second = report_of(profile, turns)["requests"]
    assert (first["is_again"], first["reason"], first["answer_tokens"]) == (True, "pulled", 2)
    assert (first["local_tokens"], first["pulled_tokens"], first["computed_tokens"]) == (32, 32, 36)
    assert (second["error"], second["ttft_ms"], second["computed_tokens"]) == (
        *("HTTP 500", None),
        None,
    )


def test_a_cut_short_run_of_a_profile_has_all_its_turns(profile: Profile, make_turn: Make) -> None:
    """A profile says how many turns there are; another workload's longest conversation does."""
    turns = [make_turn(turn=1), make_turn(turn=2)]
    of_profile = report_of(profile, turns)["arms"]["one_way"]["turns"]
    of_file = report_of(profile, turns, workload="chats.json")["arms"]["one_way"]["turns"]
    assert [len(of_profile), len(of_file)] == [3, 2]
