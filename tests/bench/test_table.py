"""What a reader sees in the terminal."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from runtime.bench.report import build_report
from runtime.bench.table import render
from runtime.bench.turn import TurnResult
from runtime.contract.bench import Objectives, Price
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt
from tests.bench.simulated import pass_of, simulated_pass

Make = Callable[..., TurnResult]

COUNTERS = {
    "nixl_reads": 4.0,
    "nixl_bytes": 3 * 2.0**20,
    "nixl_seconds": 0.25,
    "failed_transfers": 0.0,
    "reads_after_free": 1.0,
}


def console_text(report: dict[str, Any], width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(report))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(profile: Profile, results: list[TurnResult], *, width: int = 160, **more: Any) -> str:
    passed = pass_of(profile, results, **({"environment": {"engine": "vllm"}} | more))
    return console_text(build_report([passed]), width)


@pytest.fixture
def results(make_turn: Make) -> list[TurnResult]:
    """Two conversations; turn 2 is four times faster, and one answer differs."""
    built = []
    for conversation in (0, 1):
        for turn in (1, 2):
            place = {"conversation": conversation, "turn": turn, "prompt_tokens": 60 * turn}
            built.append(make_turn(arm="one_way", ttft_ms=80.0, **place))
            built.append(
                make_turn(
                    arm="bidirectional",
                    ttft_ms=80.0 if turn == 1 else 20.0,
                    receipt=Receipt(96, 96, 0, 96, "pulled") if turn == 2 else None,
                    token_ids=(5, 9) if conversation == turn == 1 else (5, 6),
                    **place,
                )
            )
    return built


def test_every_turn_has_a_row(profile: Profile, results: list[TurnResult]) -> None:
    """Sizes, both latencies, ratio, pulls, counts; below, interval, answer and the other arm."""
    rows = [line for line in shown(profile, results).splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]
    assert cells == [
        ["1", "60", "80.0", "80.0", "1.00x", "0", "2, 0"],
        ["", "", "", "", "(1.00..1.00)", "0", "2, 0"],
        ["2", "120", "80.0", "20.0", "4.00x", "120", "2, 0"],
        ["", "", "", "", "(4.00..4.00)", "72", "2, 0"],
        ["3", "-", "-", "-", "-", "0", "0, 0"],
        ["", "", "", "", "", "0", "0, 0"],
    ]


def test_eighty_columns_are_enough(profile: Profile, results: list[TurnResult]) -> None:
    """No figure is cut on a plain terminal."""
    text = shown(profile, results, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "(4.00..4.00)" in text


def test_lines_for_the_whole_run(profile: Profile, results: list[TurnResult]) -> None:
    """Overall ratio, exactness with the first difference, and engine counters follow."""
    text = shown(profile, results, engine={"prefill": COUNTERS, "decode": None})
    assert "4.00 times as fast" in text
    assert "Requests: one-way 4 successful, 0 errored, 0 incomplete, 0 aborted" in text
    assert "4 turns compared, 3 equal, 0 ties, 1 differences" in text
    assert "conversation 1, turn 1, position 1 (token)" in text
    assert "prefill engine: 4 NIXL reads, 3.0 MiB in 0.250 s, 0 failed transfers, 1 reads" in text
    assert "decode engine: counters could not be read" in text


def test_a_partial_report_says_so(profile: Profile, results: list[TurnResult]) -> None:
    """What stopped the run stands above the table; a whole run has no such line."""
    assert "PARTIAL REPORT: stopped by Ctrl-C" in shown(profile, results, stopped_by="Ctrl-C")
    assert "PARTIAL" not in shown(profile, results)


def test_a_mock_report_says_so(profile: Profile, results: list[TurnResult]) -> None:
    """Times of the mock engine are never shown as if they were real ones."""
    assert "MOCK ENGINE" in shown(profile, results, environment={"engine": "mock"})
    assert "MOCK" not in shown(profile, results)


def test_an_empty_report_can_be_shown(profile: Profile) -> None:
    """A run stopped before its first turn is shown, not a crash."""
    text = shown(profile, [], stopped_by="Ctrl-C")
    assert "No speed-up can be told" in text
    assert "Engine counters: not scraped" in text


def test_a_single_conversation_has_no_interval(profile: Profile, results: list[TurnResult]) -> None:
    """One value has no interval, and the table says it."""
    text = shown(profile, [r for r in results if r.conversation == 0])
    assert "4.00x" in text
    assert "(no interval)" in text


def test_every_pass_has_a_table_of_its_own() -> None:
    """One arm, no ratio, where the feature is off; a line for each objective and saving."""
    asked: dict[str, Any] = {
        "objectives": Objectives(ttft_ms=200),
        "price": Price(usd_per_node_hour=60),
    }
    off_pass = simulated_pass(1.0, 4, 3, name="off", is_feature_on=False)
    text = console_text(build_report([simulated_pass(2.0, 4, 3, **asked), off_pass]))
    main, off = text.split("TTFT per turn, pass off")
    assert "per turn, pass main" in main
    assert "Within the objectives (TTFT up to 200 ms): one-way" in main
    assert "GPU-seconds, 0." in main
    assert "speed-up" not in off
    assert "The feature is off on both servers" in off


def test_sweep_has_a_row_for_each_prefix_length() -> None:
    """Beside those of turns."""
    text = console_text(build_report([simulated_pass(2.0, 3, 3, points=(2000, 24000))]))
    assert "Turns from the second on, by own prefix" in text
    assert "│     24,000 │" in text
