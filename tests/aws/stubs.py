"""AWS clients with scripted answers, for what moto does not pretend. No call leaves."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import boto3
from botocore.stub import Stubber

from runtime.aws.plan import FleetPlan, RolePlan

CREDENTIALS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
AMI = "ami-0123456789abcdef0"


class Answer(NamedTuple):
    """One call that is expected, and what comes back.

    `asked` None: any parameters. `error` is AWS's word in place of a reply.
    """

    method: str
    reply: dict[str, Any]
    asked: dict[str, Any] | None = None
    error: str = ""


@cache
def _client(service: str) -> Any:
    """One for all tests: making it takes longer than all else they do."""
    return boto3.client(service, region_name="us-west-2", **CREDENTIALS)


@contextmanager
def answering(service: str, *answers: Answer) -> Iterator[Any]:
    """A client that gets these answers in this order; all of them must be asked for."""
    client = _client(service)
    with Stubber(client) as stubber:
        for each in answers:
            if each.error:
                stubber.add_client_error(
                    each.method, each.error, f"told by a test: {each.error}", 400
                )
            else:
                stubber.add_response(each.method, each.reply, each.asked)
        yield client
        stubber.assert_no_pending_responses()


def role_plan(role: Any = "prefill", **changes: Any) -> RolePlan:
    """One p5en node on demand, but for the changes."""
    fields: dict[str, Any] = {"instance_type": "p5en.48xlarge", "vcpus": 192, "count": 1} | changes
    return RolePlan(role=role, **fields)


def fleet_plan(*roles: RolePlan, **changes: Any) -> FleetPlan:
    """A prefill and a decode node in us-west-2b, but for the changes."""
    fields: dict[str, Any] = {
        "name": "ours",
        "region": "us-west-2",
        "availability_zone": "us-west-2b",
        "ami_id": AMI,
    } | changes
    return FleetPlan(roles=roles or (role_plan(), role_plan("decode")), **fields)


def product(usd: str, unit: str = "Hrs") -> str:
    """A product of the list with one rate, as the API sends it: text."""
    dimension = {"unit": unit, "pricePerUnit": {"USD": usd}}
    return json.dumps({"terms": {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}}})
