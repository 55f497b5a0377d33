"""Log groups of machines, and who may write to them."""

import json
from typing import Any

import pytest

from runtime.contract.node_metrics import log_group
from tests.infra.conftest import Changed
from tests.infra.synth import Synth, text_of


def _statements(made: Synth, role: str) -> list[dict[str, Any]]:
    stack, mark = ("router", "") if role == "router" else ("fleet", role.capitalize())
    (policy,) = made.only(stack, "IAM::Role", mark)["Policies"]
    found: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return found


@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
def test_machine_writes_to_streams_of_its_role_alone(role: str, pair: Synth) -> None:
    """It cannot make groups, which would be kept for ever, nor read what others wrote."""
    statements = [each for each in _statements(pair, role) if "logs:" in json.dumps(each["Action"])]
    (statement,) = statements
    assert set(statement["Action"]) == {
        "logs:CreateLogStream",
        "logs:DescribeLogStreams",
        "logs:PutLogEvents",
    }
    assert text_of(statement["Resource"]).endswith(f":log-group:{log_group('demo', role)}:*")


def test_retention_is_the_settings(changed: Changed) -> None:
    """Of every group of machines; they go with their stacks."""
    made = changed({"operations.log_retention_days": 7})
    groups = [
        group
        for stack in ("fleet", "router")
        for group in made.resources(stack, "Logs::LogGroup").values()
    ]
    assert {each["Properties"]["LogGroupName"] for each in groups} == {
        log_group("demo", role) for role in ("prefill", "decode", "router")
    }
    for group in groups:
        assert group["Properties"]["RetentionInDays"] == 7
        assert group["DeletionPolicy"] == "Delete"


def test_every_log_group_of_a_deployment_has_a_retention(pair: Synth) -> None:
    """Lines without an end cost without an end."""
    groups = [
        group
        for template in pair.all.values()
        for group in template["Resources"].values()
        if group["Type"] == "AWS::Logs::LogGroup"
    ]
    assert len(groups) >= 5
    assert all(each["Properties"].get("RetentionInDays") for each in groups)
