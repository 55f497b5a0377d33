"""A machine's metrics reach CloudWatch, and what AWS does not take goes with the next."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

from runtime import cli_metrics
from runtime.aws.node_metrics import put_metrics
from runtime.cli import app
from runtime.contract import node_metrics as names
from runtime.contract.operations import DEPLOYMENT, NAMESPACE
from runtime.engine_api import NIXL_BYTES
from tests.aws.stubs import Answer, answering
from tests.launch.engine_double import EngineDouble, engine_double
from tests.launch.fake_node import FakeNode
from tests.launch.nodes import good_node

WHERE = {DEPLOYMENT: "ours", names.ROLE: "decode"}


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    with engine_double() as double:
        yield double


@pytest.fixture
def node(tmp_path: Path, engine: EngineDouble) -> FakeNode:
    return good_node(tmp_path, url=engine.url)


def test_values_have_their_dimensions_and_units(account: None) -> None:
    """As an alarm asks for them."""
    cloudwatch = boto3.client("cloudwatch")
    put_metrics(cloudwatch, {names.READ_BYTES: 500.0, names.KV_USAGE: 25.0}, WHERE)
    now = datetime.now(UTC)
    (point,) = cloudwatch.get_metric_statistics(
        Namespace=NAMESPACE,
        MetricName="NixlReadBytes",
        Dimensions=[
            {"Name": "Deployment", "Value": "ours"},
            {"Name": "Role", "Value": "decode"},
        ],
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=300,
        Statistics=["Sum"],
    )["Datapoints"]
    assert (point["Sum"], point["Unit"]) == (500.0, "Bytes")


def test_one_call_takes_a_reading(account: None) -> None:
    """PutMetricData takes 1000 at most."""
    assert max(len(names.ENGINE_METRICS), len(names.ROUTER_METRICS)) <= 1000


class _Ended(threading.Event):
    """Lets so many periods pass, and does something after each."""

    def __init__(self, *after: Any) -> None:
        super().__init__()
        self._after = [*after]

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout == 60
        if not self._after:
            self.set()
            return True
        self._after.pop(0)()
        return False


def test_minutes_that_aws_did_not_take_are_not_lost(
    node: FakeNode,
    engine: EngineDouble,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line in the journal; the bytes of that minute come with the next."""

    def read_more() -> None:
        engine.samples[NIXL_BYTES] += 100

    with answering(
        "cloudwatch",
        Answer("put_metric_data", {}),
        Answer("put_metric_data", {}, error="InternalServiceFault"),
        Answer("put_metric_data", {}),
    ) as client:
        sent: list[dict[str, float]] = []
        monkeypatch.setattr("runtime.aws.clients.client", lambda *_: client)
        real = put_metrics

        def note(cloudwatch: Any, values: Any, where: Any) -> None:
            assert where == WHERE
            sent.append({metric.name: value for metric, value in values.items()})
            real(cloudwatch, values, where)

        monkeypatch.setattr("runtime.aws.node_metrics.put_metrics", note)
        cli_metrics._send_until(_Ended(read_more, read_more), node.machine, "decode", "ours", 60)
    assert "NixlReadBytes" not in sent[0]
    assert [each["NixlReadBytes"] for each in sent[1:]] == [100, 200]
    assert "go with the next" in capsys.readouterr().err


def test_once_prints_and_sends_nothing(node: FakeNode) -> None:
    """What a runbook asks of a machine; no credentials, no region."""
    words = ["node-metrics", "--deployment", "ours", "--role", "decode", "--once"]
    result = CliRunner().invoke(app, [*words, "--root", str(node.root)])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["is_answering"] is True
    assert told["totals"]["NixlReadBytes"] == 8 * 2**30


def test_signal_ends_it_well(node: FakeNode) -> None:
    """systemd stops the unit without a failure, also while AWS cannot be reached."""
    command = [sys.executable, "-m", "runtime.cli", "node-metrics", "--role", "decode"]
    # Nothing listens on the port: each try fails at once.
    env = {
        **os.environ,
        "TURNBACK_DEPLOYMENT": "ours",
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with subprocess.Popen(
        [*command, "--root", str(node.root)], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "metrics were not sent" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
