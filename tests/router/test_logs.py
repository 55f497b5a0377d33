"""Log lines as JSON, each with its request's id."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.router.logs import REQUEST_ID, JsonLines, fresh_id, log_to_stderr


def line(message: str, *args: object, **more: Any) -> dict[str, Any]:
    """A record as it is written."""
    record = logging.LogRecord("turnback.router", logging.WARNING, "x.py", 1, message, args, None)
    record.created, record.msecs = 86400.042, 42.0
    record.__dict__.update(more)
    written = JsonLines().format(record)
    assert "\n" not in written
    parsed: dict[str, Any] = json.loads(written)
    return parsed


@pytest.fixture
def request_id() -> Iterator[str]:
    """The id of the request that the test serves."""
    token = REQUEST_ID.set("req-1")
    yield "req-1"
    REQUEST_ID.reset(token)


def test_line_has_time_level_and_message() -> None:
    """UTC with milliseconds, a lower-case level, the message put together; no id outside one."""
    assert line("%s is %s", "decode-1", "down\nagain") == {
        "time": "1970-01-02T00:00:00.042Z",
        "level": "warning",
        "message": "decode-1 is down\nagain",
    }


def test_line_has_the_request_id(request_id: str) -> None:
    """Within a request its id stands in each line."""
    assert line("x")["request_id"] == request_id


def test_line_has_the_turns_explanation() -> None:
    """What --explain tells is an object of its own, whatever values it has."""
    assert line("turn done", turn={"path": "warm", "odd": {1}})["turn"] == {
        "path": "warm",
        "odd": "{1}",
    }


def test_line_has_the_trace() -> None:
    """An unexpected error is told with its trace, in the same line."""
    try:
        raise ValueError("odd")
    except ValueError:
        assert "ValueError: odd" in line("x", exc_info=sys.exc_info())["trace"]


def test_no_line_is_lost_to_odd_text() -> None:
    """Bytes of an engine that are no UTF-8 do not lose the line that tells of them."""
    assert line("got %s", "\udcff")["message"] == "got \udcff"


def test_log_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """The kit's lines from INFO on, others' from WARNING on, all as JSON."""
    root, own = logging.getLogger(), logging.getLogger("turnback")
    before = root.handlers[:], root.level, own.level
    try:
        log_to_stderr()
        logging.getLogger("turnback.router").info("one")
        logging.getLogger("other").info("two")
        logging.getLogger("other").warning("three")
    finally:
        root.handlers[:], root.level = before[0], before[1]
        own.setLevel(before[2])
    captured = capsys.readouterr()
    assert [json.loads(line)["message"] for line in captured.err.splitlines()] == ["one", "three"]
    assert captured.out == ""


def test_fresh_ids_differ() -> None:
    """Every request has an id of its own."""
    ids = {fresh_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(id_) for id_ in ids} == {32}
