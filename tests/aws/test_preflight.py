"""Checks of an account, against stubbed replies."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.exceptions import NoCredentialsError
from botocore.stub import Stubber
from typer.testing import CliRunner

from runtime.aws import preflight as room
from runtime.aws.preflight import CHECKS, Finding, preflight
from runtime.cli import app
from runtime.contract.load import load_deployment
from tests.contract.test_deployment import BLOCK, with_changes

Answer = tuple[str, dict[str, Any]]
Ask = Callable[..., list[Finding]]
ZONE: Answer = (
    "describe_availability_zones",
    {"AvailabilityZones": [{"State": "available", "ZoneId": "usw2-az2"}]},
)


@cache
def _client(service: str) -> Any:
    """One for all tests: making one takes half a second. Every call is stubbed."""
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    return boto3.Session(region_name="us-west-2", **keys).client(service)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run one check with the replies of its services, in order; an error code is a refusal."""
    stubs: list[Stubber] = []

    def run(
        check: str, replies: dict[str, list[Answer | tuple[str, str]]], changes: dict[str, Any]
    ) -> list[Finding]:
        for service, answers in replies.items():
            stub = Stubber(_client(service))
            for operation, reply in answers:
                if isinstance(reply, str):
                    stub.add_client_error(operation, reply)
                else:
                    stub.add_response(operation, reply)
            stub.activate()
            stubs.append(stub)
        monkeypatch.setattr(room, "CHECKS", {check: CHECKS[check]})
        found = preflight(load_deployment(with_changes(changes), "x"), _client)
        while stubs:
            stub = stubs.pop()
            stub.deactivate()
            stub.assert_no_pending_responses()
        return found

    return run


def _quota(vcpus: float) -> Answer:
    return "get_service_quota", {"Quota": {"Value": vcpus}}


def _running(*cores: int) -> Answer:
    instances = [{"CpuOptions": {"CoreCount": each, "ThreadsPerCore": 2}} for each in cores]
    return "describe_instances", {"Reservations": [{"Instances": instances}]}


@pytest.mark.parametrize(
    ("quota", "running", "changes", "state"),
    [
        (384, (), {}, "pass"),
        (384, (96,), {}, "fail"),
        (383, (), {}, "fail"),
        (0, (), {"prefill.capacity": BLOCK, "decode.capacity": BLOCK}, "warn"),
        (1152, (), {"decode.count": 5}, "pass"),
    ],
)
def test_quota_counts_vcpus_with_what_runs(
    ask: Ask, quota: int, running: tuple[int, ...], changes: dict[str, Any], state: str
) -> None:
    """192 a node; short quota ends on-demand launches, and only warns for reserved ones."""
    replies = {"service-quotas": [_quota(quota)], "ec2": [_running(*running)]}
    (found,) = ask("quota", replies, changes)
    assert found.state == state
    assert "L-417A185B" in found.evidence
    assert bool(found.fix) is (state != "pass")


def test_type_that_the_zone_lacks_is_told(ask: Ask) -> None:
    """Regions have types that not all of their zones have."""
    reply = {"InstanceTypeOfferings": [{"InstanceType": "c7i.2xlarge"}]}
    found = ask("offer", {"ec2": [("describe_instance_type_offerings", reply)]}, {})
    assert [each.state for each in found] == ["fail", "pass"]
    assert "p5en.48xlarge is not offered in us-west-2b" in found[0].evidence


RESERVED = {"prefill.capacity": BLOCK, "decode.capacity": BLOCK}
GOOD = {
    "State": "active",
    "AvailabilityZone": "us-west-2b",
    "InstanceType": "p5en.48xlarge",
    "TotalInstanceCount": 2,
    "AvailableInstanceCount": 2,
    "EndDate": datetime(2027, 1, 31, 11, 30, tzinfo=UTC),
}


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({}, "pass", "active, 2 free"),
        ({"State": "scheduled"}, "warn", "scheduled"),
        ({"State": "expired"}, "fail", "it is expired"),
        ({"AvailabilityZone": "us-west-2a"}, "fail", "it is in us-west-2a"),
        ({"InstanceType": "p5.48xlarge"}, "fail", "it holds p5.48xlarge"),
        ({"TotalInstanceCount": 1}, "fail", "1 instances, 2 are wanted"),
        ({"EndDate": datetime(2027, 2, 1, 11, 30, tzinfo=UTC)}, "fail", "2027-02-01T11:30:00Z"),
    ],
)
def test_reservation_must_fit(ask: Ask, change: dict[str, Any], state: str, said: str) -> None:
    """State, zone, type, size for both roles together, and the block's end."""
    reply = {"CapacityReservations": [GOOD | change]}
    found = ask("reservation", {"ec2": [("describe_capacity_reservations", reply)]}, RESERVED)
    assert [(each.state, said in each.evidence) for each in found] == [(state, True)]


def test_unknown_ids_fail_and_missing_rights_warn(ask: Ask) -> None:
    """The one is the user's, the other says nothing about the account."""
    (gone,) = ask("image", {"ec2": [("describe_images", "InvalidAMIID.NotFound")]}, {})
    assert gone.state == "fail"
    (closed,) = ask("image", {"ec2": [("describe_images", "UnauthorizedOperation")]}, {})
    assert (closed.state, closed.fix) == ("warn", "allow DescribeImages")


@pytest.mark.parametrize(
    ("state", "architecture", "expected"),
    [
        ("available", "x86_64", "pass"),
        ("pending", "x86_64", "fail"),
        ("available", "arm64", "fail"),
    ],
)
def test_image_must_be_there(ask: Ask, state: str, architecture: str, expected: str) -> None:
    """Available, and for x86-64."""
    reply = {"Images": [{"ImageId": "ami-1", "State": state, "Architecture": architecture}]}
    (found,) = ask("image", {"ec2": [("describe_images", reply)]}, {})
    assert found.state == expected


@pytest.mark.parametrize(
    ("zone", "free", "expected"),
    [("us-west-2b", 5, "pass"), ("us-west-2b", 4, "fail"), ("us-west-2a", 99, "fail")],
)
def test_imported_subnet_must_have_room(ask: Ask, zone: str, free: int, expected: str) -> None:
    """One address a node and router, two for the load balancer; in the zone."""
    network = {
        "kind": "imported",
        "vpc_id": "vpc-0123456789abcdef0",
        "subnet_id": "subnet-0123456789abcdef0",
        "client_cidrs": ["10.0.0.0/8"],
    }
    reply = {"Subnets": [{"AvailableIpAddressCount": free, "AvailabilityZone": zone}]}
    (found,) = ask("addresses", {"ec2": [("describe_subnets", reply)]}, {"network": network})
    assert found.state == expected


def test_own_network_needs_no_addresses(ask: Ask) -> None:
    """Its subnet is half of the VPC."""
    assert ask("addresses", {}, {}) == []


@pytest.mark.parametrize(
    ("score", "state"), [("high", "pass"), ("low", "warn"), ("unsupported", "warn")]
)
def test_scarce_capacity_is_warned_of(ask: Ask, score: str, state: str) -> None:
    """A guess of AWS, so never a failure."""
    answer = ("get_capacity_manager_supportability_scores", {"AggregateScore": score})
    found = ask("supportability", {"ec2": [ZONE, answer, ZONE, answer]}, {})
    assert [each.state for each in found] == [state, state]


def test_price_is_that_of_all_gpu_nodes(ask: Ask) -> None:
    """From the price list, on demand."""
    terms = {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": "63.296"}}}}}
    reply = {"PriceList": [json.dumps({"terms": {"OnDemand": terms}})]}
    answers: list[Answer] = [("get_products", reply)] * 2
    (found,) = ask("price", {"pricing": answers}, {"decode.count": 3})
    assert found.evidence.startswith("253.18 USD an hour")


def test_price_that_is_not_listed_is_a_warning(ask: Ask) -> None:
    """Not a traceback, and not 0."""
    (found,) = ask("price", {"pricing": [("get_products", {"PriceList": []})]}, {})
    assert found.state == "warn"


@pytest.mark.parametrize(("state", "expected"), [("available", "pass"), ("impaired", "fail")])
def test_zone_must_be_usable(ask: Ask, state: str, expected: str) -> None:
    """Its state is AWS's word."""
    reply = {"AvailabilityZones": [{"State": state}]}
    (found,) = ask("zone", {"ec2": [("describe_availability_zones", reply)]}, {})
    assert (found.state, found.evidence) == (expected, f"us-west-2b is {state}")


def test_one_check_that_cannot_be_asked_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials every check that needs them warns."""

    def nobody(service: str) -> Any:
        raise NoCredentialsError

    found = preflight(load_deployment(with_changes({}), "x"), nobody)
    assert {each.check for each in found} == set(CHECKS) - {"reservation", "addresses"}
    assert {each.state for each in found} == {"warn"}


def test_command_prints_findings_and_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed check is bad input; --json gives the same to programs."""
    told = [Finding("zone", "pass", "there"), Finding("quota", "fail", "192 of 0", "raise it")]
    monkeypatch.setattr(room, "preflight", lambda *_: told)
    wanted = ["name=demo", "availability_zone=us-west-2b", "image.ami_id=ami-0123456789abcdef0"]
    arguments = ["preflight", *(part for each in wanted for part in ("-c", f"turnback:{each}"))]
    plain = CliRunner().invoke(app, arguments)
    assert plain.exit_code == 2
    assert "fail  quota           192 of 0\n      fix: raise it" in plain.output
    shown = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert [each["state"] for each in shown] == ["pass", "fail"]


def test_command_tells_bad_settings() -> None:
    """Before anything is asked."""
    done = CliRunner().invoke(app, ["preflight", "-c", "turnback:kv.ttl=3"])
    assert done.exit_code == 2
    assert "kv.ttl" in done.output
