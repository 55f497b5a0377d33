"""The report's file is whole or not there, and only its own version is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.bench.report import build_report, read_report, write_report
from runtime.errors import BadInput
from tests.bench.simulated import simulated_pass


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


def test_a_report_is_read_back_as_it_was_built(tmp_path: Path) -> None:
    """The file holds all of it."""
    report = build_report([simulated_pass(failures=0.1, aborts=0.1)])
    write_report(report, tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == report


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"schema_version": 2}', "schema_version 2"),
        ('{"schema_version": true}', "schema_version True"),
        ("{}", "schema_version None"),
        ("[]", "schema_version None"),
        ('{"schema_version": 1', "Expecting"),
        ("", "Expecting value"),
        ('{"schema_version": 1, "arms": {}}', "no attribution, complete"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """The message says the version that was found, the one allowed, and what to do."""
    path = tmp_path / "report.json"
    path.write_text(text, "utf-8")
    with pytest.raises(BadInput) as caught:
        read_report(path)
    assert told in caught.value.got
    assert str(path) in caught.value.got
    assert caught.value.fix


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_report_that_cannot_be_read_is_refused(tmp_path: Path, make: Any) -> None:
    """A missing file, or a folder."""
    make(tmp_path / "report.json")
    with pytest.raises(BadInput, match="cannot be read"):
        read_report(tmp_path / "report.json")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are no UTF-8."""
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot be read"):
        read_report(tmp_path / "report.json")
