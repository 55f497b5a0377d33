"""`turnback report`: from passes on the disk to files, or to a message that helps."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from runtime.bench.folder import PassFolder
from runtime.cli import app
from tests.bench.simulated import Passed, simulated_pass


def put(folder: Path, passed: Passed) -> Path:
    """Write a pass as the benchmark does."""
    info, turns, samples = passed
    written = PassFolder(folder)
    written.begin(info)
    for turn in turns:
        written.add_turn(turn)
    for sample in samples:
        written.add_sample(sample)
    return folder


def ask(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def refused(result: Result) -> str:
    """The message of bad input."""
    assert result.exit_code == 2, result.output
    for word in ("got:", "allowed:", "fix:"):
        assert word in result.stderr
    return result.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two passes; the one with the feature off was the first."""
    put(tmp_path / "run" / "1-off", simulated_pass(1.0, 3, 2, name="off", is_feature_on=False))
    put(tmp_path / "run" / "2-on", simulated_pass(2.0, 3, 2, name="on"))
    return tmp_path / "run"


def test_run_folder_gives_one_report(run: Path) -> None:
    """The pass with both arms is the main one; files lie in the run's folder, and are told."""
    result = ask(run)
    assert result.exit_code == 0, result.output
    report = json.loads((run / "report.json").read_text("utf-8"))
    assert report["pass"]["name"] == "on"
    assert [one["pass"]["name"] for one in report["other_passes"]] == ["off"]
    assert "times as fast" in result.stdout
    for name in ("report.json", "report.html", "requests.csv", "summary.md"):
        assert (run / name).exists()
        assert str(run / name) in result.stdout


def test_given_order_of_passes_is_kept(run: Path, tmp_path: Path) -> None:
    """The first pass that is given is the main one; --out takes the files."""
    result = ask(run / "1-off", run / "2-on", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "new" / "report.json").read_text("utf-8"))
    assert report["pass"]["name"] == "off"
    assert not (run / "1-off" / "report.json").exists()


def test_programs_are_told_the_files(run: Path) -> None:
    """With --json nothing else is on standard output."""
    result = ask(run, "--json")
    assert json.loads(result.stdout)["report.html"] == str(run / "report.html")


def test_interrupted_run_is_reported_as_partial(tmp_path: Path) -> None:
    """Its last line was cut short; the rest counts, and the report says what happened."""
    info, turns, samples = simulated_pass(2.0, 3, 2)
    info = type(info)(**{**vars(info), "stopped_by": "it has not ended"})
    folder = put(tmp_path / "pass", (info, turns, samples))
    with (folder / "turns.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"conversation": 7, "tu')
    result = ask(folder)
    assert result.exit_code == 0, result.output
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert report["complete"] is False
    assert len(report["requests"]) == len(turns)
    assert "PARTIAL REPORT: stopped by it has not ended" in result.stdout


def test_empty_pass_beside_others_is_left_out_aloud(run: Path) -> None:
    """A run that was stopped before its third pass keeps its two."""
    put(run / "3-next", (simulated_pass(1.0, 2, 2, name="next")[0], [], []))
    result = ask(run)
    assert result.exit_code == 0, result.output
    assert "no turn was measured" in result.stdout
    assert len(json.loads((run / "report.json").read_text("utf-8"))["other_passes"]) == 1


def test_nothing_measured_is_refused(tmp_path: Path) -> None:
    """An empty report would look like a result."""
    folder = put(tmp_path / "pass", (simulated_pass(1.0, 2, 2)[0], [], []))
    assert "nothing was measured" in refused(ask(folder))
    assert not (folder / "report.json").exists()


def test_folder_without_a_pass_is_refused(tmp_path: Path) -> None:
    """Also one that is not there."""
    assert "holds no pass" in refused(ask(tmp_path))
    assert "no such folder" in refused(ask(tmp_path / "missing"))


def test_other_format_is_refused(run: Path) -> None:
    """A later kit's pass is not read half."""
    path = run / "2-on" / "pass.json"
    raw = json.loads(path.read_text("utf-8")) | {"format": 99}
    path.write_text(json.dumps(raw), "utf-8")
    assert "format 99" in refused(ask(run))


def test_spoilt_turns_are_refused(run: Path) -> None:
    """A line in the middle that is no turn."""
    (run / "2-on" / "turns.jsonl").write_text('{"turn": 1}\n{}\n', "utf-8")
    assert "turns.jsonl" in refused(ask(run))


def test_out_that_cannot_be_written_is_refused(run: Path, tmp_path: Path) -> None:
    """A file is where the folder should be."""
    (tmp_path / "file").write_text("", "utf-8")
    assert "cannot be used" in refused(ask(run, "--out", tmp_path / "file"))
