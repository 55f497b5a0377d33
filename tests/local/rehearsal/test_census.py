"""What is on a second page is there too."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from runtime.errors import StartFailed
from runtime.local.rehearsal import account, census


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto, in this process."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "rehearsal")
    monkeypatch.setenv("AWS_DEFAULT_REGION", account.REGION)
    with mock_aws():
        yield


def test_what_is_left_beyond_the_first_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto has ten parameters on a page."""
    only = {"AWS::SSM::Parameter": census.LISTINGS["AWS::SSM::Parameter"]}
    monkeypatch.setattr(census, "LISTINGS", only)
    ssm = boto3.client("ssm")
    names = [f"/p/{number:02}" for number in range(12)]
    for name in names[:-1]:
        ssm.put_parameter(Name=name, Value="v", Type="String")
    before = census.census()
    ssm.put_parameter(Name=names[-1], Value="v", Type="String")
    assert census.census() == {"AWS::SSM::Parameter": frozenset(names)}
    with pytest.raises(StartFailed, match="not left the account as it was") as failure:
        census.check_nothing_left(before, census.census(), {})
    assert names[-1] in failure.value.got


class _Unpaged:
    """A client whose call boto3 cannot page."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self._reply = reply

    def can_paginate(self, _call: str) -> bool:
        return False

    def describe_things(self) -> dict[str, Any]:
        return self._reply


@pytest.mark.parametrize("mark", ["NextToken", "NextMarker", "Marker", "IsTruncated"])
def test_a_page_with_more_to_come_is_refused(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be asked for; a reply that is all there is, is read."""
    things = census.Listing("service", "describe_things", "Things")
    monkeypatch.setattr(census, "LISTINGS", {"thing": things})
    reply: dict[str, Any] = {"Things": ["a"], "IsTruncated": False}
    monkeypatch.setattr(census, "client", lambda _: _Unpaged(reply))
    assert census.census() == {"thing": frozenset({"a"})}
    reply[mark] = "more"
    with pytest.raises(StartFailed, match="a part of the account") as failure:
        census.census()
    assert mark in failure.value.got
