"""`turnback logs`: which lines, in which order, and what is said when there are none."""

import json
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner, Result

from runtime.aws.logs import Line, Logs, Wanted
from runtime.cli import app
from runtime.cli_logs import seconds_of
from runtime.contract.node_metrics import log_group
from runtime.errors import EXIT_INTERRUPTED, BadInput
from tests.aws.stubs import Answer, answering

NODE, OTHER = "i-0123456789abcdef0", "i-0fedcba9876543210"
MINUTE_MS = 60_000


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["logs", *words])


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def logs(account: None) -> Any:
    """Groups of the deployment `ours`: a router, a prefill node and two decode nodes."""
    made = boto3.client("logs")
    for role in ("prefill", "decode", "router"):
        made.create_log_group(logGroupName=log_group("ours", role))
    return made


def say(logs: Any, role: str, stream: str, *lines: tuple[int, str]) -> None:
    """Lines so many minutes ago."""
    group = log_group("ours", role)
    if not logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=stream)["logStreams"]:
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    events = [
        {"timestamp": now_ms() - minutes * MINUTE_MS, "message": text} for minutes, text in lines
    ]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


@pytest.fixture
def said(logs: Any) -> Any:
    """Of the last half hour."""
    say(logs, "router", f"{NODE}/journal", (9, '{"request_id": "aa11"} routed'), (1, "late"))
    say(logs, "decode", f"{NODE}/engine", (30, "old"), (8, "aa11 decoded"))
    say(logs, "decode", f"{OTHER}/engine", (7, "of another node\n"))
    say(logs, "prefill", f"{OTHER}/journal", (8, "aa11 prefilled"))
    return logs


def texts(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [line.split(": ", 1)[1] for line in result.stdout.splitlines()]


def test_lines_of_all_machines_by_time(said: Any) -> None:
    """Each with its time, role, machine and source; older ones only when asked for."""
    result = run("ours")
    first = result.stdout.splitlines()[0]
    assert first.endswith(f'Z router {NODE} journal: {{"request_id": "aa11"}} routed')
    assert len(texts(result)) == 5
    assert texts(result)[-1] == "late"
    assert "old" in texts(run("ours", "--since", "1h"))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--role", "prefill"], ["aa11 prefilled"]),
        (["--role", "decode", "--filter", "decoded"], ["aa11 decoded"]),
        (["--role", "decode", "--request-id", "aa11"], ["aa11 decoded"]),
        (["--limit", "1"], ['{"request_id": "aa11"} routed']),
    ],
)
def test_choices_are_kept(words: list[str], wanted: list[str], said: Any) -> None:
    """By role, text and request."""
    assert texts(run("ours", *words)) == wanted


def test_json_is_for_programs(said: Any) -> None:
    """One object a line."""
    (line,) = run("ours", "--role", "prefill", "--json").stdout.splitlines()
    told = json.loads(line)
    assert told["unix_ms"] == pytest.approx(now_ms() - 8 * MINUTE_MS, abs=MINUTE_MS)
    assert {**told, "unix_ms": 0} == {
        "unix_ms": 0,
        "role": "prefill",
        "node": OTHER,
        "source": "journal",
        "text": "aa11 prefilled",
    }


def test_nothing_said_is_no_failure(logs: Any) -> None:
    """stdout stays empty for programs."""
    result = run("ours", "--since", "2h")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no such line in the last 2h" in result.stderr


def test_role_without_a_group_does_not_hide_the_others(said: Any) -> None:
    """A fleet stack may be gone while its routers run."""
    said.delete_log_group(logGroupName=log_group("ours", "decode"))
    assert texts(run("ours", "--filter", "aa11")) == [
        '{"request_id": "aa11"} routed',
        "aa11 prefilled",
    ]


def test_no_such_deployment(logs: Any) -> None:
    """Named with the groups that were looked for."""
    result = run("theirs")
    assert result.exit_code == 2
    assert "no logs of a deployment theirs" in result.stderr
    assert "/turnback/theirs/router" in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize(
    ("words", "said_of_it"),
    [
        (["--since", "yesterday"], "--since is no length of time"),
        (["--since", "15"], "30s, 15m, 2h, 1d"),
        (["--node", "router-1"], "--node is no instance id"),
    ],
)
def test_bad_input_asks_aws_nothing(words: list[str], said_of_it: str) -> None:
    """No account is there at all."""
    result = run("ours", "--region", "eu-central-1", *words)
    assert result.exit_code == 2
    assert said_of_it in result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("15m", 900), ("2h", 7200), ("1d", 86_400)]
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    """As other tools take them."""
    assert seconds_of(text) == seconds


def event(number: int, text: str, at_ms: int) -> dict[str, Any]:
    return {
        "eventId": str(number),
        "timestamp": at_ms,
        "message": text,
        "logStreamName": f"{NODE}/journal",
    }


def wanted(**changes: Any) -> Wanted:
    fields: dict[str, Any] = {"deployment": "ours", "roles": ("router",), "since_unix_ms": 1000}
    return Wanted(**(fields | changes))


def test_pages_are_followed_to_the_end() -> None:
    """AWS may send an empty page before a full one."""
    asked = {"logGroupName": "/turnback/ours/router", "startTime": 1000}
    with answering(
        "logs",
        Answer("filter_log_events", {"events": [], "nextToken": "a"}, asked),
        Answer(
            "filter_log_events", {"events": [event(1, "one", 2000)]}, asked | {"nextToken": "a"}
        ),
    ) as client:
        assert Logs(client).look(wanted()) == [Line(2000, "router", NODE, "journal", "one")]


def test_one_machine_is_asked_for_by_its_streams() -> None:
    """moto knows no prefixes: what is asked of AWS is looked at. Texts are in quotes."""
    asked = {
        "logGroupName": "/turnback/ours/router",
        "startTime": 1000,
        "logStreamNamePrefix": f"{NODE}/",
        "filterPattern": '"say \\"hi\\"" "aa11"',
    }
    with answering("logs", Answer("filter_log_events", {"events": []}, asked)) as client:
        assert Logs(client).look(wanted(node=NODE, texts=('say "hi"', "aa11"))) == []


def test_look_is_bounded() -> None:
    """No page is asked for that would not be shown."""
    page = {"events": [event(at, "x", 2000 + at) for at in range(5)], "nextToken": "a"}
    with answering("logs", Answer("filter_log_events", page)) as client:
        assert len(Logs(client).look(wanted(most=3))) == 3


def test_refusal_is_told(account: None) -> None:
    """With the action that is missing, at once: it does not pass by itself."""
    refused = Answer("filter_log_events", {}, error="AccessDeniedException")
    with answering("logs", refused) as client, pytest.raises(BadInput) as told:
        Logs(client).look(wanted())
    assert "logs:FilterLogEvents" in told.value.allowed
    assert "router machines cannot be read" in told.value.what


def test_throttling_passes() -> None:
    """It is asked again after a pause."""
    pauses: list[float] = []
    with answering(
        "logs",
        Answer("filter_log_events", {}, error="ThrottlingException"),
        Answer("filter_log_events", {"events": []}),
    ) as client:
        assert Logs(client, pauses.append).look(wanted()) == []
    assert len(pauses) == 1


def test_following_shows_late_lines_once() -> None:
    """A line that arrives after a later one is shown; none is shown twice."""
    hour = 3_600_000
    first = [event(1, "one", hour), event(2, "three", hour + 5000)]
    late = [*first, event(3, "two", hour + 2000)]
    asked = {"logGroupName": "/turnback/ours/router"}
    pauses: list[float] = []
    with answering(
        "logs",
        Answer("filter_log_events", {"events": first}, asked | {"startTime": 1000}),
        Answer(
            "filter_log_events",
            {"events": late},
            asked | {"startTime": hour + 5000 - MINUTE_MS},
        ),
    ) as client:
        lines = Logs(client, pauses.append).follow(wanted())
        assert [line.text for line in islice(lines, 3)] == ["one", "three", "two"]
    assert pauses == [2.0]


def test_following_goes_on_past_the_limit_of_a_look() -> None:
    """Lines that fill a look are not met for ever."""
    events = [event(at, str(at), 100_000 + at) for at in range(4)]
    with answering(
        "logs",
        *[Answer("filter_log_events", {"events": events}) for _ in range(2)],
    ) as client:
        lines = Logs(client, lambda _: None).follow(wanted(most=2))
        assert [line.text for line in islice(lines, 4)] == ["0", "1", "2", "3"]


def test_following_ends_with_ctrl_c(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown stays, and the exit code tells."""

    def interrupted(_self: Logs, _wanted: Wanted) -> Iterator[Line]:
        yield Line(0, "router", NODE, "journal", "shown")
        raise KeyboardInterrupt

    monkeypatch.setattr(Logs, "follow", interrupted)
    result = run("ours", "--follow")
    assert result.exit_code == EXIT_INTERRUPTED
    assert result.stdout == f"1970-01-01T00:00:00.000Z router {NODE} journal: shown\n"
