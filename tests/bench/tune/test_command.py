"""`turnback tune` as a user meets it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from runtime.bench.tune import tuning
from runtime.cli import app
from tests.bench.tune.made import made_report

ROOT = Path(__file__).parents[3]


def run(*words: object) -> Result:
    """The command, on a wide terminal."""
    return CliRunner().invoke(app, ["tune", *map(str, words)], env={"COLUMNS": "200"})


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A copy of the file that the kit ships."""
    return Path(shutil.copy(ROOT / "deployment.toml", tmp_path / "deployment.toml"))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report with think times."""
    return written(tmp_path, made_report(noise=0.05, think_s=30.0))


def written(folder: Path, report: dict[str, Any]) -> Path:
    """A report's file."""
    path = folder / "report.json"
    path.write_text(json.dumps(report))
    return path


def test_it_prints_the_lines_and_what_they_rest_on(report: Path) -> None:
    """Both settings with their reasons, the fit, the pins, the effect."""
    done = run(report)
    assert done.exit_code == 0
    for words in (
        "\n[kv]\ndecoder_kv_blocks_ttl_s = ",
        "\nkv_recompute_threshold_tokens = ",
        "pulling wins from",
        "of returns (40 gaps of this pass)",
        "40 pulls of 288 to 8",
        "Pinned on D:",
        "an estimate from the fit, not a measurement",
    ):
        assert words in done.output, words


def test_json_is_all_there_is_on_stdout(report: Path) -> None:
    """For programs."""
    told = json.loads(run(report, "--json").stdout)
    assert told["report"] == str(report)
    assert told["applied"] is None
    assert len(told["settings"]) == 2


def test_apply_writes_and_says_what_to_run_next(report: Path, settings: Path) -> None:
    """The difference, then deploy and rollout; a second time it says so already."""
    done = run(report, "--apply", "--settings", settings)
    assert done.exit_code == 0
    assert "-decoder_kv_blocks_ttl_s = 480" in done.output
    assert "cdk deploy --all" in done.output
    assert "turnback rollout NAME" in done.output
    assert "says so already" in run(report, "--apply", "--settings", settings).output


def test_apply_with_json_tells_the_difference(report: Path, settings: Path) -> None:
    """In one object."""
    told = json.loads(run(report, "--apply", "--json", "--settings", settings).stdout)
    assert told["applied"]["file"] == str(settings)
    assert "+decoder_kv_blocks_ttl_s" in told["applied"]["difference"]


def test_another_profile_is_warned_of(tmp_path: Path, settings: Path) -> None:
    """Measured with one model, written for another."""
    workload = {"name": "tiny", "kv": {}}
    path = written(tmp_path, made_report(noise=0.05, think_s=30.0, workload=workload))
    done = run(path, "--apply", "--settings", settings)
    assert done.exit_code == 0
    assert "measured with profile tiny, the settings serve with qwen3-32b" in done.stderr


def test_a_mock_report_is_warned_of_and_never_applied(tmp_path: Path, settings: Path) -> None:
    """Its times say nothing about real serving."""
    environment = {"engine": "mock"}
    path = written(tmp_path, made_report(noise=0.05, think_s=30.0, environment=environment))
    done = run(path)
    assert (done.exit_code, "MOCK ENGINE" in done.output) == (0, True)
    before = settings.read_text()
    done = run(path, "--apply", "--settings", settings)
    assert done.exit_code == 2
    assert "environment.engine is mock" in done.stderr
    assert settings.read_text() == before


def test_a_report_that_says_nothing_is_bad_input(tmp_path: Path) -> None:
    """Neither pulls nor think times."""
    done = run(written(tmp_path, made_report(arms=("one_way",))))
    assert done.exit_code == 2
    assert "no turn of this pass pulled" in done.stderr
    assert "no think times" in done.stderr


def test_nothing_to_change_is_good_and_writes_nothing(tmp_path: Path, settings: Path) -> None:
    """Pulling always wins, and no gaps are known."""
    path = written(tmp_path, made_report(noise=0.05, lengths=(4000, 8000)))
    before = settings.read_text()
    done = run(path, "--apply", "--settings", settings)
    assert (done.exit_code, settings.read_text()) == (0, before)
    assert "nothing to change is suggested" in done.output


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (["--think-mean-s", "nan"], "--think-mean-s cannot be used"),
        (["--think-mean-s", "-1"], "--think-mean-s cannot be used"),
        (["--keep-share", "1"], "--keep-share cannot be used"),
        (["--keep-share", "0"], "--keep-share cannot be used"),
        (["--keep-share", "nan"], "--keep-share cannot be used"),
        (["--pin-share", "1.5"], "--pin-share cannot be used"),
        (["--turns-per-s", "inf"], "--turns-per-s cannot be used"),
        (["--think-times", "nothing.txt"], "think times cannot be read"),
        (["--think-times", "x", "--think-mean-s", "3"], "given twice"),
        (["--pass", "second"], "no such pass"),
        (["--apply", "--settings", "nothing.toml"], "nothing.toml cannot be read"),
    ],
)
def test_bad_options_are_told(report: Path, words: list[str], got: str) -> None:
    """With exit code 2 and in four parts."""
    done = run(report, *words)
    assert done.exit_code == 2
    assert got in done.stderr
    assert "fix:" in done.stderr


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"schema_version": 2}', "\x00"])
def test_what_is_no_report_of_this_version_is_told(tmp_path: Path, text: str | None) -> None:
    """Missing, empty, another version."""
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    assert run(path).exit_code == 2


def test_ctrl_c_is_130(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", interrupted)
    done = run(report)
    assert done.exit_code == 130
    assert "interrupted" in done.stderr
