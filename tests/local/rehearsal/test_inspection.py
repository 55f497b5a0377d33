"""A new TTL must change parameters and nothing else; the wheel must be the one that was hashed."""

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from runtime.errors import StartFailed
from runtime.local.rehearsal import deployed, inspection
from runtime.local.rehearsal.checks import check_no_empty_values
from runtime.local.rehearsal.deployed import Stack, boot_variables
from runtime.local.rehearsal.inspection import check_only_parameters_changed
from tests.infra.synth import golden

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


def node(monkeypatch: pytest.MonkeyPatch, parameter: str, spec: dict[str, Any]) -> Any:
    """Looks at a node whose user data names a parameter that holds a spec."""
    lines = f"TURNBACK_PARAMETER='{parameter}'\nTURNBACK_PROXY_URL=''\nset -eu\n"
    data = {"UserData": base64.b64encode(lines.encode()).decode()}
    wanted = {"Fn::Base64": {"Fn::Sub": "anything"}}
    template = {"LaunchTemplateName": "turnback-demo-decode", "LaunchTemplateData": {}}
    template["LaunchTemplateData"] = {"UserData": wanted}
    stacks = [replace(BEFORE[0], template={"Template": {"Type": "", "Properties": template}})]
    monkeypatch.setattr(deployed, "launch_template", lambda *_: data)
    monkeypatch.setattr(deployed, "parameter", lambda _: json.dumps(spec))
    monkeypatch.setattr(inspection, "_check_wheel", lambda _: None)
    return inspection._checked_node("demo", "decode", stacks)


def test_user_data_without_a_parameter_ends_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to nothing is seen before it is followed; no proxy is a choice."""
    node(monkeypatch, "/turnback/demo/decode", golden("node-spec-decode.json"))
    for text in ("None", ""):
        with pytest.raises(StartFailed, match="refer to nothing") as failure:
            node(monkeypatch, text, golden("node-spec-decode.json"))
        assert "TURNBACK_PARAMETER" in failure.value.got
        assert "PROXY" not in failure.value.got


def test_null_in_a_spec_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model would take it for a field that was left out."""
    spec = golden("node-spec-decode.json") | {"cpu": None}
    found = node(monkeypatch, "/turnback/demo/decode", spec)
    with pytest.raises(StartFailed, match="refer to nothing") as failure:
        check_no_empty_values(found)
    assert "cpu" in failure.value.got
