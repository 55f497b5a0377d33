"""Alarms and dashboard: every metric is one that is sent, every alarm has its page."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
import typer
from aws_cdk import aws_sns as sns
from aws_cdk.assertions import Template
from cdk_nag import AwsSolutionsChecks
from cfnlint.api import lint
from cfnlint.config import ManualArgs

from runtime.cli import app as command_line
from runtime.contract import node_metrics
from runtime.contract.bench import ARMS
from runtime.contract.load import load_deployment
from runtime.contract.operations import ARM, NAMESPACE, TURN, TURNS, VALIDATION_METRICS, Metric
from stacks.constructs.alarms import BLOCK_NOTICE, BLOCK_PAGE, RUNBOOKS, Alarms
from stacks.constructs.dashboard import Dashboard
from stacks.constructs.metrics import GROUP_METRIC, Metrics
from tests.infra.formulas import is_breaching
from tests.infra.synth import BLOCK, NOW, ROOT, Synth, raw_settings

PAGES = sorted((ROOT / RUNBOOKS).glob("*.md"))
BLOCKS = {"prefill.capacity": BLOCK, "decode.capacity": BLOCK}
_VALUES: dict[str, set[str]] = {
    node_metrics.ROLE: {"prefill", "decode", "router"},
    ARM: set(ARMS),
    TURN: set(TURNS),
    "Deployment": {"demo"},
}


class Made:
    """A stack with all alarms and the dashboard."""

    def __init__(self, changes: dict[str, Any], now: datetime = NOW, **bars: Any) -> None:
        settings = load_deployment(raw_settings(changes), "deployment.toml")
        stack = cdk.Stack(cdk.App(), "Operations")
        topic = sns.Topic(stack, "Topic")
        alarms = Alarms(stack, "Alarms", settings=settings, topic=topic, now=now, **bars)
        Dashboard(stack, "Dashboard", settings=settings, alarms=alarms.by_name)
        self.template = Template.from_stack(stack).to_json()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [
            each["Properties"]
            for each in self.template["Resources"].values()
            if each["Type"] == f"AWS::{kind}"
        ]

    @property
    def alarms(self) -> dict[str, dict[str, Any]]:
        """By the page of each."""
        return {
            each["AlarmName"].removeprefix("turnback-demo-"): each
            for each in self.of("CloudWatch::Alarm")
        }

    @property
    def widgets(self) -> list[dict[str, Any]]:
        (board,) = self.of("CloudWatch::Dashboard")
        text = board["DashboardBody"]
        if isinstance(text, dict):
            text = "".join(part if isinstance(part, str) else "REF" for part in text["Fn::Join"][1])
        return [each["properties"] for each in json.loads(text)["widgets"]]


@pytest.fixture(scope="module")
def made() -> Made:
    """With everything that settings can bring."""
    return Made(BLOCKS, slo_ttft_p90_ms=500.0)


Seen = tuple[str, str, dict[str, str]]


def _in_alarms(made: Made) -> Iterator[Seen]:
    for alarm in made.of("CloudWatch::Alarm"):
        stats = [
            each["MetricStat"]["Metric"]
            for each in alarm.get("Metrics", ())
            if "MetricStat" in each
        ]
        for metric in stats or [alarm]:
            where = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
            yield metric["Namespace"], metric["MetricName"], where


def _in_widgets(made: Made) -> Iterator[Seen]:
    for widget in made.widgets:
        for row in widget.get("metrics", ()):
            if isinstance(row[0], str):
                words = [each for each in row if isinstance(each, str)]
                yield words[0], words[1], dict(zip(words[2::2], words[3::2], strict=True))


def _sent() -> dict[tuple[str, tuple[str, ...]], Metric]:
    kit = (*VALIDATION_METRICS, *node_metrics.ENGINE_METRICS, *node_metrics.ROUTER_METRICS)
    return {(each.name, tuple(sorted(each.dimensions))): each for each in kit}


@pytest.mark.parametrize("read", [_in_alarms, _in_widgets])
def test_every_metric_is_one_that_is_sent(read: Any, made: Made) -> None:
    """By the kit, with these dimensions and values of them, or by Auto Scaling."""
    seen = list(read(made))
    assert len(seen) > 15
    roles_of = {
        "router": {each.name for each in node_metrics.ROUTER_METRICS},
        "prefill": {each.name for each in node_metrics.ENGINE_METRICS},
        "decode": {each.name for each in node_metrics.ENGINE_METRICS},
    }
    for namespace, name, where in seen:
        if namespace == "AWS/AutoScaling":
            assert name == GROUP_METRIC
            assert where["AutoScalingGroupName"] in (
                "turnback-demo-prefill",
                "turnback-demo-decode",
            )
            continue
        assert namespace == NAMESPACE
        assert (name, tuple(sorted(where))) in _sent(), (name, where)
        assert all(value in _VALUES[key] for key, value in where.items())
        if node_metrics.ROLE in where:
            assert name in roles_of[where[node_metrics.ROLE]], (name, where)


def test_every_metric_of_machines_is_looked_at(made: Made) -> None:
    """What nobody looks at is not sent: each costs by the month."""
    looked = {name for _, name, _ in (*_in_alarms(made), *_in_widgets(made))}
    sent = {each.name for each in (*node_metrics.ENGINE_METRICS, *node_metrics.ROUTER_METRICS)}
    assert sent <= looked


def test_groups_publish_what_alarms_read(pair: Synth) -> None:
    """Auto Scaling tells nothing unless it is told to."""
    for stack in ("fleet", "router"):
        for group in pair.resources(stack, "AutoScaling::AutoScalingGroup").values():
            told = group["Properties"]["MetricsCollection"]
            assert told == [{"Granularity": "1Minute", "Metrics": [GROUP_METRIC]}]


def test_every_alarm_names_its_page_and_every_page_has_an_alarm(made: Made) -> None:
    """By the file's path; the page begins with the alarm's name."""
    for page, alarm in made.alarms.items():
        assert alarm["AlarmDescription"].endswith(f" See {RUNBOOKS}/{page}.md")
    (notice,) = made.of("Scheduler::Schedule")
    assert notice["Description"].endswith(f" See {RUNBOOKS}/{BLOCK_PAGE}.md")
    assert {path.stem for path in PAGES} == {*made.alarms, BLOCK_PAGE}
    for path in PAGES:
        assert path.read_text("utf-8").startswith(f"# {path.stem}\n")


def test_every_alarm_tells_the_topic_when_it_starts_and_ends(made: Made) -> None:
    """And nothing else; what missing data means is said for each."""
    for alarm in made.alarms.values():
        assert len(alarm["AlarmActions"]) == len(alarm["OKActions"]) == 1
        assert alarm["AlarmActions"][0]["Ref"].startswith("Topic")
        assert alarm["TreatMissingData"] in ("ignore", "notBreaching")


def test_windows_are_what_cloudwatch_takes(made: Made) -> None:
    """A day at most for periods below an hour. Source: PutMetricAlarm."""
    for alarm in made.alarms.values():
        period = alarm.get("Period") or max(
            each["MetricStat"]["Period"] for each in alarm["Metrics"] if "MetricStat" in each
        )
        assert period * alarm["EvaluationPeriods"] <= 86_400
        assert len(alarm.get("Metrics", ())) <= 20


@pytest.mark.parametrize("minutes", [10, 1440])
def test_idle_window_is_the_settings(minutes: int) -> None:
    """Up to a day."""
    alarm = Made({"operations.idle_alarm_minutes": minutes}).alarms["fleet-idle"]
    assert alarm["EvaluationPeriods"] * 5 == minutes


def test_bars_of_the_settings_are_thresholds() -> None:
    """Without a bar of TTFT there is no alarm of it."""
    assert "ttft-high" not in Made({}).alarms
    made = Made({}, min_speed_up=1.4, slo_ttft_p90_ms=250.0)
    assert made.alarms["ttft-high"]["Threshold"] == 250
    assert made.alarms["speed-up-low"]["Threshold"] == 1.4


def test_address_of_the_settings_is_told() -> None:
    """Nobody, where none is given."""
    assert Made({}).of("SNS::Subscription") == []
    (told,) = Made({"operations.alarm_email": "ops@example.com"}).of("SNS::Subscription")
    assert (told["Protocol"], told["Endpoint"]) == ("email", "ops@example.com")


def test_tcp_that_is_allowed_is_no_alarm() -> None:
    """The settings said so."""
    assert "efa-flat" not in Made({"transport.allow_tcp": True}).alarms


def test_money_is_shown_where_a_price_is_set() -> None:
    """Else hours."""
    assert "idle, node-hours" in json.dumps(Made({}).widgets)
    text = json.dumps(Made({"operations.usd_per_node_hour": 63.3}).widgets)
    assert "idle, USD" in text
    assert "/ 12 * 63.3" in text


def test_block_notice_comes_by_the_clock() -> None:
    """Four hours before the end, once for blocks that end together; its role may publish only."""
    made = Made(BLOCKS)
    (notice,) = made.of("Scheduler::Schedule")
    assert notice["ScheduleExpression"] == "at(2027-01-31T07:30:00)"
    assert "2027-01-31 11:30 UTC" in notice["Target"]["Input"]
    (role,) = made.of("IAM::Role")
    assert "scheduler.amazonaws.com" in json.dumps(role["AssumeRolePolicyDocument"])
    (policy,) = made.of("IAM::Policy")
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "sns:Publish"


def test_blocks_that_end_apart_have_a_notice_each() -> None:
    """By time."""
    later = BLOCK | {"ends_at": "2027-02-02T11:30:00Z"}
    notices = Made({"prefill.capacity": later, "decode.capacity": BLOCK}).of("Scheduler::Schedule")
    times = sorted(each["ScheduleExpression"] for each in notices)
    assert times == ["at(2027-01-31T07:30:00)", "at(2027-02-02T07:30:00)"]
    assert len({each["Name"] for each in notices}) == 2


@pytest.mark.parametrize("before", [timedelta(), timedelta(days=-1)])
def test_notice_that_is_past_is_left_out(before: timedelta) -> None:
    """Scheduler refuses a moment that is over."""
    moment = datetime(2027, 1, 31, 11, 30, tzinfo=UTC) - BLOCK_NOTICE - before
    assert Made(BLOCKS, now=moment).of("Scheduler::Schedule") == []
    assert Made({}).of("Scheduler::Schedule") == []


def test_wrong_dimensions_are_refused() -> None:
    """A metric with other dimensions has no data, and nobody would see it."""
    metrics = Metrics("demo", cdk.Duration.minutes(5))
    with pytest.raises(ValueError, match="dimensions"):
        metrics.of(node_metrics.TURNS)


def test_template_lints(made: Made) -> None:
    """Property names and values."""
    found = lint(json.dumps(made.template), config=ManualArgs(regions=["us-west-2"]))
    assert [str(each) for each in found] == []


def test_security_rules_pass(tmp_path: Path) -> None:
    """AwsSolutions finds nothing on alarms, dashboard and the notice's role."""
    app = cdk.App(outdir=str(tmp_path))
    stack = cdk.Stack(app, "Operations")
    settings = load_deployment(raw_settings(BLOCKS), "deployment.toml")
    topic = sns.Topic(stack, "Topic", enforce_ssl=True)
    alarms = Alarms(stack, "Alarms", settings=settings, topic=topic, now=NOW)
    Dashboard(stack, "Dashboard", settings=settings, alarms=alarms.by_name)
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    app.synth()
    report = json.loads((tmp_path / "validation-report.json").read_text("utf-8"))
    # A pack that found nothing at all has no report.
    failed = [each for each in report["pluginReports"] if each["conclusion"] != "success"]
    assert failed == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_says_what_to_do(path: Path, made: Made) -> None:
    """How to confirm, what to do, when it is harmless; with commands, flags and widgets that
    there are."""
    text = path.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Confirm", "Do", "Harmless when"]
    commands = vars(typer.main.get_command(command_line))["commands"]
    for quoted in re.findall(r"`(?:\S*/)?turnback ([^`]+)`", text):
        command = commands[quoted.split()[0]]
        flags = {flag for option in command.params for flag in option.opts}
        assert set(re.findall(r"--[\w-]+", quoted)) <= flags, quoted
    shown = json.dumps([widget.get("title") for widget in made.widgets])
    for title in re.findall(r"dashboard's `([^`]+)`", text):
        assert title in shown
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (path.parent / link).exists(), link


def test_every_widget_and_alarm_is_on_the_page(made: Made) -> None:
    """docs/operations.md lists them, and no others."""
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    board, alarms = (
        text.split(f"## {name}\n")[1].split("\n## ")[0] for name in ("Dashboard", "Alarms")
    )
    rows = re.findall(r"^\| (.*?) \|", board, re.MULTILINE)
    assert rows[1:] == [widget["title"] for widget in made.widgets]
    linked = re.findall(r"^\| \[([\w-]+)\]\(runbooks/([\w-]+)\.md\)", alarms, re.MULTILINE)
    assert {name for name, _ in linked} == {*made.alarms, BLOCK_PAGE}
    assert all(name == page for name, page in linked)


RUNNING = {
    ("GroupInServiceInstances", "turnback-demo-prefill"): 1.0,
    ("GroupInServiceInstances", "turnback-demo-decode"): 2.0,
}
SERVING = RUNNING | {
    ("Answering", "prefill"): 5.0,
    ("Answering", "decode"): 10.0,
    ("Turns", "router"): 100.0,
    ("TurnsFailed", "router"): 1.0,
    ("OfferedTokens", "router"): 1000.0,
    ("PulledTokens", "router"): 900.0,
    ("LocalTokens", "router"): 0.0,
    ("Expired", "decode"): 20.0,
    ("RefusedHandles", "router"): 0.0,
    ("CanaryDifferences", "router"): 0.0,
    ("ReuseOn", "router"): 1.0,
    **{
        (name, role): value
        for role in ("prefill", "decode")
        for name, value in (
            ("NixlFailed", 0.0),
            ("NixlReadsAfterExpiry", 0.0),
            ("NixlReadBytes", 1e9),
            ("EfaRxBytes", 1.1e9),
        )
    },
    ("SpeedUp", ""): 1.6,
    ("TtftP90Ms", "later"): 400.0,
}
"""Points of a fleet that is well: one prefill and two decode nodes, 5 minutes."""


@pytest.mark.parametrize(
    ("page", "changes"),
    [
        ("speed-up-low", {("SpeedUp", ""): 0.9}),
        ("ttft-high", {("TtftP90Ms", "later"): 501.0}),
        ("turns-failed", {("TurnsFailed", "router"): 6.0}),
        ("pulled-share-low", {("PulledTokens", "router"): 400.0}),
        ("handles-expired", {("Expired", "decode"): 81.0}),
        ("handles-refused", {("RefusedHandles", "router"): 1.0}),
        ("transfers-failed", {("NixlFailed", "prefill"): 1.0}),
        ("transfers-failed", {("NixlFailed", "decode"): 1.0, ("NixlFailed", "prefill"): None}),
        ("reads-after-expiry", {("NixlReadsAfterExpiry", "decode"): 1.0}),
        ("efa-flat", {("EfaRxBytes", "prefill"): 0.0, ("EfaRxBytes", "decode"): 0.0}),
        ("efa-flat", {("EfaRxBytes", "prefill"): None, ("EfaRxBytes", "decode"): None}),
        ("canary-different", {("CanaryDifferences", "router"): 1.0}),
        ("reuse-off", {("ReuseOn", "router"): 0.0}),
        ("fleet-idle", {("Turns", "router"): 0.0}),
        ("fleet-idle", {("Turns", "router"): None}),
        ("nodes-silent", {("Answering", "decode"): 5.0}),
        ("nodes-silent", {("Answering", "decode"): None, ("Answering", "prefill"): None}),
    ],
)
def test_alarm_sees_its_fault_and_no_other_does(
    page: str, changes: dict[tuple[str, str], float | None], made: Made
) -> None:
    """The formula breaches with the fault and not without it."""
    assert [each for each, alarm in made.alarms.items() if is_breaching(alarm, SERVING)] == []
    points = {key: value for key, value in (SERVING | changes).items() if value is not None}
    seen = {each for each, alarm in made.alarms.items() if is_breaching(alarm, points)}
    assert seen == {page}


@pytest.mark.parametrize(
    "points",
    [
        {},
        {key: 0.0 for key in RUNNING},
        {key: 0.0 for key in RUNNING} | {("Turns", "router"): 0.0, ("ReuseOn", "router"): 1.0},
    ],
    ids=["nothing", "no nodes", "routers alone"],
)
def test_fleet_that_is_off_is_no_alarm(points: dict[tuple[str, str], float], made: Made) -> None:
    """Nothing is told where nothing runs; a validation's verdict stands."""
    states = {page: is_breaching(alarm, points) for page, alarm in made.alarms.items()}
    assert {page for page, state in states.items() if state is None} == {
        "speed-up-low",
        "ttft-high",
    }
    assert not any(states.values())


def test_few_turns_are_no_share(made: Made) -> None:
    """One failed turn of three is no 33 %."""
    few = SERVING | {("Turns", "router"): 3.0, ("Expired", "decode"): 3.0}
    seen = {each for each, alarm in made.alarms.items() if is_breaching(alarm, few)}
    assert seen == set()


def test_cold_fleet_is_not_low(made: Made) -> None:
    """Without handles nothing was offered, and nothing is a share of it."""
    cold = SERVING | {("OfferedTokens", "router"): 0.0, ("PulledTokens", "router"): 0.0}
    assert not is_breaching(made.alarms["pulled-share-low"], cold)
