"""What stacks write and machines run is what a rollout reads and asks for."""

import json
from typing import Any

from runtime.aws.machines import rolled_groups
from runtime.aws.rollout.fleet import NodeRole, Target
from runtime.aws.rollout.parameters import parameter_names, read_targets
from runtime.contract.status import KIT_PYTHON, NODE_UNIT, ROUTER_UNIT, arguments_generation
from tests.infra.conftest import Changed
from tests.infra.synth import ROOT, Synth, text_of

SCRIPT = (ROOT / "stacks" / "user_data.sh").read_text("utf-8")


class _Deployed:
    """Answers with a synthesized deployment's parameters and groups, as AWS would."""

    def __init__(self, made: Synth) -> None:
        self._made = made

    def get_parameters(self, *, Names: list[str]) -> dict[str, Any]:
        found = [
            {"Name": each["Properties"]["Name"], "Value": text_of(each["Properties"]["Value"])}
            for stack in ("fleet", "router")
            for each in self._made.resources(stack, "SSM::Parameter").values()
        ]
        return {"Parameters": [each for each in found if each["Name"] in Names]}

    def get_paginator(self, _operation: str) -> "_Deployed":
        return self

    def paginate(self, **_asked: Any) -> list[dict[str, Any]]:
        groups = [
            each["Properties"]
            | {"DesiredCapacity": 0, "MaxSize": int(each["Properties"]["MaxSize"])}
            for stack in ("fleet", "router")
            for each in self._made.resources(stack, "AutoScaling::AutoScalingGroup").values()
        ]
        return [{"AutoScalingGroups": groups}]


def _targets(made: Synth) -> dict[NodeRole, Target]:
    deployed = _Deployed(made)
    return read_targets(deployed, "demo", rolled_groups(deployed, "demo"))


def test_parameters_have_the_names_that_a_rollout_reads(pair: Synth) -> None:
    """One of each role."""
    written = {
        each["Properties"]["Name"]
        for stack in ("fleet", "router")
        for each in pair.resources(stack, "SSM::Parameter").values()
    }
    assert written == set(parameter_names("demo").values())


def test_targets_are_what_is_deployed(pair: Synth, changed: Changed) -> None:
    """A new TTL is another generation of all roles, and no other pairing."""
    before, after = _targets(pair), _targets(changed({"kv.decoder_kv_blocks_ttl_s": 600}))
    assert set(before) == {"prefill", "decode", "router"}
    for role, target in before.items():
        is_router = role == "router"  # nothing reads these of it
        assert (target.ttl_s, target.lease_s) == ((None, None) if is_router else (480, 30))
        assert after[role].ttl_s == (None if is_router else 600)
        assert after[role].generation != target.generation
        assert after[role].pairing == target.pairing
    assert before["prefill"].pairing == before["decode"].pairing != ""
    assert before["router"].pairing == ""


def test_another_image_is_another_pairing(pair: Synth, changed: Changed) -> None:
    """So that a rollout starts new nodes in place of restarting old ones."""
    other = _targets(changed({"image.ami_id": "ami-0fedcba9876543210"}))
    assert other["decode"].pairing != _targets(pair)["decode"].pairing


def test_router_generation_is_that_of_its_arguments(pair: Synth) -> None:
    """As its start script computes it (test_user_data)."""
    text = text_of(pair.only("router", "SSM::Parameter")["Value"])
    assert _targets(pair)["router"].generation == arguments_generation(text)


def test_units_and_interpreter_are_those_of_the_machines() -> None:
    """What the first boot starts and installs into."""
    assert f"unit={NODE_UNIT}\n" in SCRIPT
    assert f"unit={ROUTER_UNIT}\n" in SCRIPT
    assert 'systemctl start --no-block "$unit"\n' in SCRIPT
    assert "readonly kit=/opt/turnback\n" in SCRIPT
    assert "[[ -x $kit/venv/bin/python ]]" in SCRIPT
    assert KIT_PYTHON == "/opt/turnback/venv/bin/python"


def test_machines_may_take_commands_and_no_more(pair: Synth) -> None:
    """What the SSM agent needs for Run Command; nothing that changes the account."""
    for stack in ("fleet", "router"):
        for role in pair.resources(stack, "IAM::Role").values():
            (policy,) = role["Properties"]["Policies"]
            text = json.dumps(policy["PolicyDocument"])
            for action in (
                *("ssm:UpdateInstanceInformation", "ssmmessages:OpenDataChannel"),
                *("ec2messages:GetMessages", "ec2messages:SendReply"),
            ):
                assert action in text
            for word in ("SendCommand", "CreateTags", "autoscaling:", "elasticloadbalancing:"):
                assert word not in text
