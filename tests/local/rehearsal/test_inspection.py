"""A new TTL must change parameters and nothing else; the wheel must be the one that was hashed."""

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from runtime.errors import StartFailed
from runtime.local.rehearsal import deployed, inspection
from runtime.local.rehearsal.deployed import Stack, boot_variables
from runtime.local.rehearsal.inspection import check_only_parameters_changed

SPEC = {"Type": "AWS::SSM::Parameter", "Properties": {"Value": "480"}}
TEMPLATE: dict[str, Any] = {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"Version": "1"}}
BEFORE = [Stack("fleet", {"Spec": SPEC, "Template": TEMPLATE}, {}, {})]
SAME: dict[str, dict[str, Any]] = {
    "prefill": {"template": ("lt-1", 1), "group": "arn", "instances": ["i-1"]}
}


def after(**changes: Any) -> list[Stack]:
    new = {"Spec": {**SPEC, "Properties": {"Value": "600"}}, "Template": TEMPLATE, **changes}
    return [replace(BEFORE[0], template=new)]


def test_parameters_alone_may_change() -> None:
    """They are counted."""
    assert check_only_parameters_changed(BEFORE, after(), SAME, SAME) == 1


@pytest.mark.parametrize(
    "changed",
    [
        BEFORE,  # nothing: the new value has not arrived
        after(Template={**TEMPLATE, "Properties": {"Version": "2"}}),
        after(More={"Type": "AWS::EC2::Instance"}),
    ],
)
def test_another_change_ends_the_rehearsal(changed: list[Stack]) -> None:
    """Also no change at all."""
    with pytest.raises(StartFailed, match="changes more, or less, than parameters"):
        check_only_parameters_changed(BEFORE, changed, SAME, SAME)


@pytest.mark.parametrize(
    "part", [{"template": ("lt-1", 2)}, {"group": "another"}, {"instances": ["i-2"]}]
)
def test_a_replacement_ends_the_rehearsal(part: dict[str, Any]) -> None:
    """A new version, group or instance, whatever the templates say."""
    now = {"prefill": SAME["prefill"] | part}
    with pytest.raises(StartFailed, match="changes more, or less, than parameters"):
        check_only_parameters_changed(BEFORE, after(), SAME, now)


def test_wheel_of_another_digest_ends_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node would refuse it at boot, long after a deploy."""
    told = {
        "TURNBACK_WHEEL_URI": "s3://bucket/key.whl",
        "TURNBACK_WHEEL_SHA256": hashlib.sha256(b"a wheel").hexdigest(),
    }
    monkeypatch.setattr(deployed, "wheel", lambda _: b"a wheel")
    inspection._check_wheel(told)
    monkeypatch.setattr(deployed, "wheel", lambda _: b"another wheel")
    with pytest.raises(StartFailed, match="refuse the kit's wheel"):
        inspection._check_wheel(told)


def test_variables_are_read_from_user_data_alone() -> None:
    """Values between quotes; the script below them sets some of the same names again."""
    lines = ["#!/bin/bash", "TURNBACK_ROLE='prefill'", "TURNBACK_PROXY_URL=''", "set -eu"]
    script = "\n".join([*lines, "TURNBACK_ROLE=other", ""])
    data = base64.b64encode(script.encode()).decode()
    assert boot_variables({"UserData": data}) == {
        "TURNBACK_ROLE": "prefill",
        "TURNBACK_PROXY_URL": "",
    }
