"""`turnback scale` and `turnback preflight` as a user meets them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from runtime.cli import app
from tests.aws.fleet import activity, add_group, answering_too, desired
from tests.aws.stubs import product

pytestmark = pytest.mark.usefixtures("account")

SETTINGS = """
name = "ours"
availability_zone = "us-west-2b"

[model]
id = "Qwen/Qwen3-32B"
revision = "main"

[network]
kind = "own"
client_cidrs = ["10.20.0.0/16"]

[image]
ami_id = "ami-0123456789abcdef0"

[router]
allow_plain_http = true
"""


def run(*words: str) -> Result:
    """The command with these words."""
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A plan of two nodes on demand."""
    path = tmp_path / "deployment.toml"
    path.write_text(SETTINGS, "utf-8")
    return path


def price(_asked: dict[str, Any], _real: Any) -> Any:
    return {"PriceList": [product("60")]}


def account_with(vcpus: int) -> dict[str, Any]:
    """Answers of an account that can run the plan when its quota is 384 vCPUs."""
    image = {"State": "available", "Architecture": "x86_64"}
    zones = [{"ZoneName": "us-west-2b", "ZoneId": "usw2-az2"}]
    offered = [{"Location": "us-west-2b"}]
    return {
        "GetProducts": price,
        "GetServiceQuota": lambda *_: {"Quota": {"Value": float(vcpus)}},
        "DescribeImages": lambda *_: {"Images": [image]},
        "DescribeAvailabilityZones": lambda *_: {"AvailabilityZones": zones},
        "DescribeInstanceTypeOfferings": lambda *_: {"InstanceTypeOfferings": offered},
        "GetCapacityManagerSupportabilityScores": lambda *_: {"AggregateScore": "high"},
    }


def test_preflight_passes(settings: Path) -> None:
    """Nothing fails: exit 0, and JSON with every finding alone on stdout."""
    with answering_too(**account_with(384)):
        result = run("preflight", "--settings", str(settings), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["deployment"] == "ours"
    assert told["counts"] == {"pass": 8, "warn": 0, "fail": 0}
    assert {each["check"]: each["status"] for each in told["findings"]} == dict.fromkeys(
        (
            *("credentials", "quota", "type offered", "type's hardware", "supportability"),
            *("subnets", "image", "price"),
        ),
        "pass",
    )


def test_preflight_fails_with_the_fix(settings: Path) -> None:
    """A check that fails: exit 3, the table, and what to do about it."""
    with answering_too(**account_with(192)):
        result = run("preflight", "--settings", str(settings))
    assert result.exit_code == 3
    assert "preflight of ours" in result.stdout
    assert "quota (L-417A185B)" in result.stderr
    assert "request-service-quota-increase" in result.stderr


def test_preflight_reads_overrides_as_the_app_does(settings: Path) -> None:
    """A key without the prefix is somebody else's; the file can be named among them."""
    with answering_too(**account_with(384)):
        given = ("-c", "name=other", "-c", "foo", "-c", f"turnback:settings={settings}")
        result = run("preflight", *given, "-c", "turnback:name=mine", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["deployment"] == "mine"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = ", "TOML"),
        (SETTINGS.replace("revision", "revison"), "revison"),
        (f"{SETTINGS}\n[prefill]\ncount = 0\n", "prefill.count"),
        (f'{SETTINGS}\n[decode]\ninstance_type = "trn2.48xlarge"\n', "decode.instance_type"),
    ],
)
def test_preflight_of_wrong_settings_is_bad_input(settings: Path, text: str, told: str) -> None:
    """No TOML, unknown keys, values that cannot be: exit 2, and nothing is asked."""
    settings.write_text(text, "utf-8")
    with answering_too() as called:
        result = run("preflight", "--settings", str(settings))
    assert result.exit_code == 2
    assert told in result.stderr
    assert called == []


def test_preflight_without_settings_is_bad_input(tmp_path: Path) -> None:
    """A missing file is named."""
    result = run("preflight", "--settings", str(tmp_path / "none.toml"))
    assert result.exit_code == 2
    assert "none.toml" in result.stderr


def test_scale_up_and_down(account: None) -> None:
    """Nodes come and go; lines tell what is wanted, what it costs and what is there."""
    add_group("prefill")
    decode = add_group("decode")
    with answering_too(GetProducts=price):
        up = run("scale", "up", "ours", "--decode", "1", "--wait")
    assert up.exit_code == 0, up.output
    assert "price: 180.00 USD per hour" in up.stdout
    assert "prefill 2 of 2 in service, decode 1 of 1 in service" in up.stdout
    assert desired()[decode] == 1
    with answering_too():
        down = run("scale", "down", "ours", "--wait")
    assert down.exit_code == 0
    assert set(desired().values()) == {0}


def test_scale_json_keeps_stdout_for_the_report(account: None) -> None:
    """Progress goes to stderr."""
    add_group("prefill")
    decode = add_group("decode")
    with answering_too(GetProducts=price):
        result = run("scale", "up", "ours", "--wait", "--json")
    told = json.loads(result.stdout)
    assert (told["reached"], told["usd_per_hour"], told["problems"]) == (True, 240, [])
    assert told["groups"][1] == {
        "name": decode,
        "role": "decode",
        "wanted": 2,
        "in_service": 2,
        "instances": 2,
    }
    assert "2 wanted" in result.stderr


def test_scale_that_does_not_get_there_exits_3(account: None) -> None:
    """The report has the kind of the problem; stderr has the message and the way out."""
    add_group("prefill")
    add_group("decode")
    failed = activity(1, "Failed", "VcpuLimitExceeded - no more than 192")
    looks: Iterator[list[Any]] = iter([[], []])

    def activities(_asked: dict[str, Any], _real: Any) -> Any:
        return {"Activities": next(looks, [failed])}

    def none_started(_asked: dict[str, Any], real: Any) -> Any:
        reply = real()
        for group in reply["AutoScalingGroups"]:
            group["Instances"] = []
        return reply

    with answering_too(
        GetProducts=price,
        DescribeAutoScalingGroups=none_started,
        DescribeScalingActivities=activities,
    ):
        result = run("scale", "up", "ours", "--wait", "--timeout-s", "1", "--json")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert told["reached"] is False
    assert {each["kind"] for each in told["problems"]} == {"quota"}
    assert "turnback scale down ours" in result.stderr


def test_scale_of_an_unknown_deployment_is_bad_input() -> None:
    """Exit 2 with the region that was looked at."""
    with answering_too():
        result = run("scale", "up", "ours", "--region", "us-west-2")
    assert result.exit_code == 2
    assert "us-west-2" in result.stderr


@pytest.mark.parametrize(
    "words",
    [("down", "ours", "--decode", "1"), ("sideways", "ours"), ("up", "ours", "--prefill", "-1")],
)
def test_scale_refuses_words_that_mean_nothing(words: tuple[str, ...]) -> None:
    """Nothing is asked of AWS."""
    with answering_too() as called:
        assert run("scale", *words).exit_code == 2
    assert called == []


def test_scale_without_a_region_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 cannot guess it; the way out is told."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    result = run("scale", "up", "ours")
    assert result.exit_code == 2
    assert "--region" in result.stderr


def test_interrupted_scale_says_what_stays(account: None) -> None:
    """Ctrl-C: exit 130, and the user knows that nodes may still come."""
    add_group("prefill")
    add_group("decode")

    def interrupted(_asked: dict[str, Any], _real: Any) -> Any:
        raise KeyboardInterrupt

    with answering_too(GetProducts=price, SetDesiredCapacity=interrupted):
        result = run("scale", "up", "ours")
    assert result.exit_code == 130
    assert "stays asked" in result.stderr
