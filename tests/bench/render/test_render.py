"""Page, summary, rows and files of a report, without a browser."""

import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runtime.bench.render.csv import COLUMNS, rows
from runtime.bench.render.data import conversation_bars, five_numbers, shown_conversation, thinned
from runtime.bench.render.files import write_reports, write_turn_chart
from runtime.bench.render.html import page
from runtime.bench.render.markdown import summary
from runtime.bench.render.palette import TONES
from runtime.bench.render.words import notices, verdicts
from tests.bench.render.conftest import EVIL, NAMES, Reports, report_of
from tests.bench.simulated import simulated_pass

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """It closes itself."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """It must be the one that was opened last."""
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_page_is_well_formed_and_needs_nothing_beside_it(named: Reports, name: str) -> None:
    """No script, no image, no address to fetch from, whatever is in the report."""
    parser = Balance()
    parser.feed(page(named(name)))
    assert parser.open == []
    for tag, attributes in parser.tags:
        assert tag not in ("script", "img", "link", "iframe", "object", "a", "form")
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert key not in ("src", "srcset", "action")
            if key in ("href", "xlink:href"):
                assert (value or "").startswith("#")
            assert "url(http" not in (value or "")


def test_page_is_the_same_for_the_same_report(plain: dict[str, Any]) -> None:
    """No date, no random id: reports can be compared by their bytes."""
    assert page(plain) == page(json.loads(json.dumps(plain)))


def test_page_takes_every_colour_from_its_variables(full: dict[str, Any]) -> None:
    """No stand-in is left, and a chart has no black or white of its own."""
    text = page(full)
    for tone in TONES:
        assert tone.stand_in not in text
        assert text.count(f"--{tone.name}:") == 2, "light and dark"
    charts = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", charts)


def test_every_chart_has_a_table_under_it(full: dict[str, Any]) -> None:
    """Between two charts of different titles there is a table."""
    for part in page(full).split("<h3>")[1:]:
        if "<svg" in part:
            assert "<table>" in part.split("</svg>")[-1]


def test_what_comes_from_outside_is_escaped(failed: dict[str, Any]) -> None:
    """An error cannot be markup of the page, nor of the summary."""
    text = page(failed)
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    table_rows = [line for line in summary(failed).splitlines() if line.startswith("|")]
    assert "<script>" not in summary(failed)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table_rows[:5]}) == 1


def test_problems_come_before_any_figure(failed: dict[str, Any]) -> None:
    """A reader meets PARTIAL and the problems first, on the page and in the summary."""
    told = notices(failed)
    assert told[0].startswith("PARTIAL REPORT: stopped by")
    assert not [line for line in told[1:] if line.startswith("the pass is partial")]
    text = page(failed)
    assert text.index("PARTIAL REPORT") < text.index("<h3>")
    assert summary(failed).index("PARTIAL REPORT") < summary(failed).index("## Pass")


def test_mock_times_are_never_shown_as_real(plain: dict[str, Any]) -> None:
    """The mock engine is named above everything."""
    mock = plain | {"environment": plain["environment"] | {"engine": "mock"}}
    assert "MOCK ENGINE" in page(mock)
    assert "MOCK ENGINE" in summary(mock)
    assert "MOCK" not in page(plain)


def test_verdicts_say_what_was_gained(full: dict[str, Any]) -> None:
    """Ratio with its interval, milliseconds, answers, failures, money, objectives."""
    text = "\n".join(verdicts(full))
    assert re.search(
        r"came 1\.\d\d times as fast .* \(95 % interval .*12 conversations\): a gain", text
    )
    assert re.search(r"Median TTFT from turn 2 on: [\d.]+ ms one-way, .* ms less", text)
    assert "ANSWERS DIFFER" in text
    assert re.search(r"one-way \d+ successful, \d+ errored, \d+ incomplete, \d+ aborted", text)
    assert re.search(r"Prefill saved: .* GPU-seconds, 0\.\d+ USD; per 1,000 turns", text)
    assert "TTFT up to 200 ms, TPOT up to 10 ms" in text
    assert "3 repeats: " in text
    alone = verdicts(full["other_passes"][1])
    assert alone[0].startswith("The feature is off on both servers")
    assert "times as fast" not in "".join(alone)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(1.1, 1.3, "a gain"), (0.9, 1.3, "no difference is shown"), (0.7, 0.9, "a loss")],
)
def test_an_interval_around_one_is_no_gain(
    plain: dict[str, Any], low: float, high: float, words: str
) -> None:
    """The words follow the interval, not the ratio."""
    overall = plain["speedup"]["overall"] | {"ratio": 1.2, "ci95": [low, high]}
    told = verdicts(plain | {"speedup": plain["speedup"] | {"overall": overall}})
    assert told[0].endswith(f": {words}.")


@pytest.mark.parametrize("name", ["failed", "lopsided"])
def test_no_ratio_is_made_from_failures(named: Reports, name: str) -> None:
    """An arm without a successful turn leaves a sentence in place of the ratio."""
    assert verdicts(named(name))[0].startswith("No speed-up can be told")
    assert "No turn succeeded in both arms, so there is no ratio." in page(named(name))


def test_single_conversation_has_no_interval(single: dict[str, Any]) -> None:
    """And the words say so."""
    assert "(one conversation, so no interval)" in verdicts(single)[0]


def test_without_readings_a_sentence_stands(failed: dict[str, Any]) -> None:
    """No samples: no usage over time, no counters."""
    assert "metrics were not read" in page(failed)
    assert "counters were not read" in page(failed)


def test_rows_hold_every_request_of_every_pass(full: dict[str, Any]) -> None:
    """One row each, failed ones and repeats too; flags as words, unknowns empty."""
    read = list(csv.DictReader(io.StringIO(rows(full))))
    passes = [full, *full["other_passes"]]
    assert len(read) == sum(len(one["requests"]) for one in passes)
    assert tuple(read[0]) == COLUMNS
    assert {row["pass"] for row in read} == {"main", "caching on", "feature off"}
    first = full["requests"][0]
    assert read[0]["is_again"] == "false"
    assert float(read[0]["ttft_ms"]) == first["ttft_ms"]
    assert float(read[0]["prefill_ms"]) == first["stages_ms"]["prefill"]
    errored = next(row for row in read if row["outcome"] == "errored")
    assert errored["ttft_ms"] == errored["prefill_ms"] == ""
    assert errored["error"].startswith("HTTP 500")


def test_rows_lose_no_key_of_a_request(plain: dict[str, Any]) -> None:
    """A key that the report gains must become a column."""
    assert {*plain["requests"][0]} - {"stages_ms"} <= {*COLUMNS}
    assert {f"{stage}_ms" for stage in plain["requests"][0]["stages_ms"]} <= {*COLUMNS}


@pytest.mark.parametrize("text", ["=1+1", "@x", "+1", "-1", "\tx"])
def test_rows_are_no_formulas(plain: dict[str, Any], text: str) -> None:
    """A spreadsheet does not run what a server has said."""
    request = plain["requests"][0] | {"error": text, "outcome": "errored", "ttft_ms": -1.5}
    read = next(csv.DictReader(io.StringIO(rows(plain | {"requests": [request]}))))
    assert read["error"] == f"'{text}"
    assert read["ttft_ms"] == "-1.5", "numbers stay numbers"


def test_published_figures_stand_beside_ours(full: dict[str, Any]) -> None:
    """Each difference of set-up is named, in page and summary."""
    row = {
        "own_prefix_tokens": 2000,
        "published": {"off_ms": 158.0, "on_ms": 122.0, "ratio": 158 / 122}
        | {"off_prefill_ms": 153.0, "on_prefill_ms": 128.0},
        "ours": {"off_ms": None, "on_ms": 100.0, "one_way_ms": 150.0, "ratio": None}
        | {"off_prefill_ms": None, "on_prefill_ms": 91.0},
    }
    told = {
        "profile": "qwen3-32b",
        "rows": [row],
        "pull_ms": {"published": [30.0, 130.0], "ours": [12.0, 34.0]},
        "differences": ["repeats: published 1, here 5"],
    }
    for text in (page(full | {"published": told}), summary(full | {"published": told})):
        assert "Beside the published figures" in text
        assert "repeats: published 1, here 5" in text
        assert "1.30x" in text
        assert "153" in text
        assert "KV pull: published 30 to 130 ms, here 12 to 34 ms" in text


def test_files_are_written_whole(full: dict[str, Any], tmp_path: Path) -> None:
    """All five, without drafts; the report reads back as it was."""
    files = write_reports(full, tmp_path / "new" / "folder")
    assert [path.name for path in files] == [
        *("report.json", "ttft.svg", "requests.csv", "summary.md", "report.html")
    ]
    assert sorted(path.name for path in files[0].parent.iterdir()) == sorted(p.name for p in files)
    assert json.loads(files[0].read_text("utf-8")) == full
    assert b"\r\n" in files[2].read_bytes()
    assert b"\r\r\n" not in files[2].read_bytes()


def test_report_json_is_there_whatever_drawing_does(plain: dict[str, Any], tmp_path: Path) -> None:
    """What was measured is on the disk before anything is drawn, and no half file is left."""
    broken = dict(plain)
    broken["requests"] = [{**plain["requests"][0], "stages_ms": 5}]
    with pytest.raises(AttributeError):
        write_reports(broken, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_turn_chart_is_an_image_of_its_own(plain: dict[str, Any], tmp_path: Path) -> None:
    """Light and dark, on a ground of its own, nothing to fetch, the same each time."""
    one, two = tmp_path / "img" / "one.svg", tmp_path / "img" / "two.svg"
    write_turn_chart(plain, one)
    write_turn_chart(plain, two)
    text = one.read_text("utf-8")
    assert one.read_bytes() == two.read_bytes()
    assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "prefers-color-scheme:dark" in text
    assert "var(--one-way)" in text
    assert "bidirectional, median and quartiles" in text
    assert len(text) < 60_000


def test_turn_chart_of_nothing_is_refused(failed: dict[str, Any], tmp_path: Path) -> None:
    """An empty chart would look like a result."""
    with pytest.raises(ValueError, match="no turn succeeded"):
        write_turn_chart(failed, tmp_path / "chart.svg")
    assert "ttft.svg" not in [path.name for path in write_reports(failed, tmp_path)]


def test_five_numbers_are_values_that_were_measured() -> None:
    """Nearest rank, for one value and for many."""
    assert five_numbers([3.0]) == (3.0,) * 5
    assert five_numbers([4.0, 1.0, 3.0, 2.0]) == (1.0, 1.0, 2.0, 3.0, 4.0)
    assert five_numbers([float(n) for n in range(1, 101)]) == (1.0, 25.0, 50.0, 75.0, 100.0)


def test_thinned_keeps_both_ends() -> None:
    """And no more than asked."""
    assert thinned(range(5), 9) == [0, 1, 2, 3, 4]
    assert thinned(range(100), 5)[0] == 0
    assert thinned(range(100), 5)[-1] == 99
    assert len(thinned(range(100), 5)) == 5


def test_timeline_parts_follow_each_other(plain: dict[str, Any]) -> None:
    """Parts of a turn add up to its end; think times of both arms stand, cut where long."""
    place = shown_conversation(plain)
    assert place == (0, 0)
    bars = conversation_bars(plain, place)
    mine = [bar for bar in bars if bar.arm == "one_way" and bar.turn == 1]
    for earlier, later in pairwise(mine):
        assert later.begin_s == pytest.approx(earlier.begin_s + earlier.length_s)
    request = next(r for r in plain["requests"] if r["arm"] == "one_way" and r["turn"] == 1)
    assert mine[-1].begin_s + mine[-1].length_s == pytest.approx(request["e2e_ms"] / 1000)
    cut = [bar for bar in bars if bar.is_cut]
    assert len(cut) == 8, "four think times in each arm, 3 s each"
    assert all(bar.length_s < 1 for bar in cut)
    assert {bar.arm for bar in bars if bar.kind == "pull"} == {"bidirectional"}


def test_passes_are_never_mixed() -> None:
    """A pass's section is the same whatever stands beside it, but for its number."""
    main, other = simulated_pass(2.0, 3, 3), simulated_pass(1.2, 3, 3, name="other", seed=9)
    alone, both = page(report_of(main)), page(report_of(main, other))
    cut = re.compile(r'<section id="pass-0">.*?</section>', re.DOTALL)
    (one,), (two,) = cut.findall(alone), cut.findall(both)
    assert one.replace("<h2>Result</h2>", "<h2>Pass main</h2>") == two


def test_an_open_loop_says_how_many_arrive(plain: dict[str, Any]) -> None:
    """Its number of clients plays no part."""
    assert "clients: 1, repeats: 1" in page(plain)
    bench = plain["pass"]["bench"] | {"arrivals_per_s": 2.5}
    told = page(plain | {"pass": plain["pass"] | {"bench": bench}})
    assert "arrivals: 2.5 a second, repeats: 1" in told
    assert "clients: 1," not in told


def test_commands_that_draw_nothing_do_not_load_matplotlib() -> None:
    """Routers and launchers start without it."""
    code = (
        "import sys, runtime.cli, runtime.bench.render.files; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
