"""Results, messages, the validation and what starts it."""

import json
from pathlib import Path
from typing import Any

import pytest

from cdk.app import fingerprint
from runtime.contract.load import load_deployment
from runtime.contract.operations import state_machine_name
from runtime.errors import BadSettings
from tests.infra.conftest import Changed
from tests.infra.synth import ROOT, Synth, raw_settings, text_of, wheel


def rule_input(made: Synth) -> Any:
    """What the rule gives the state machine."""
    (target,) = made.only("operations", "Events::Rule")["Targets"]
    return json.loads(target["Input"])


def test_committed_settings_validate_after_a_deploy(pair: Synth) -> None:
    """Nodes are started and ended; there is no bar."""
    assert rule_input(pair) == {
        "mode": "validate",
        "scale_up": True,
        "scale_down": "always",
        "min_speedup": 0,
        "slo_ttft_p90_ms": 0,
    }


def test_the_stacks_own_end_starts_it(pair: Synth) -> None:
    """And no other stack's; a failed deploy starts nothing."""
    rule = pair.only("operations", "Events::Rule")
    assert rule["EventPattern"] == {
        "source": ["aws.cloudformation"],
        "detail-type": ["CloudFormation Stack Status Change"],
        "detail": {
            "stack-id": [{"Ref": "AWS::StackId"}],
            "status-details": {"status": ["CREATE_COMPLETE", "UPDATE_COMPLETE"]},
        },
    }


def test_the_stack_is_deployed_last(pair: Synth) -> None:
    """Its event says that all is there."""
    operations = pair.deployment.operations
    names = {each.stack_name for each in operations.dependencies}
    assert {"turnback-demo-network", "turnback-demo-fleet", "turnback-demo-router"} <= names


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"after_deploy": "scale"}, {"mode": "scale", "scale_down": "on_failure"}),
        ({"validation.scale_down": "never"}, {"mode": "validate", "scale_down": "never"}),
        ({"validation.min_speedup": 1.3}, {"min_speedup": 1.3}),
        ({"validation.slo_ttft_p90_ms": 800}, {"slo_ttft_p90_ms": 800}),
    ],
)
def test_settings_are_the_rules_input(
    changes: dict[str, Any], expected: dict[str, Any], changed: Changed
) -> None:
    """Each of them."""
    given = rule_input(changed(changes))
    assert {name: given[name] for name in expected} == expected


def test_nothing_starts_where_nothing_shall(changed: Changed) -> None:
    """The state machine is there for `turnback validate`."""
    made = changed({"after_deploy": "nothing"})
    assert not made.resources("operations", "Events::Rule")
    machine = made.only("operations", "StepFunctions::StateMachine")
    assert machine["StateMachineName"] == state_machine_name("demo")


def definition_of(made: Synth) -> str:
    """With a word for each reference."""
    return text_of(made.only("operations", "StepFunctions::StateMachine")["DefinitionString"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prefill.count": 3}, '"role":"prefill","group":"turnback-demo-prefill","wanted":3'),
        ({"validation.bench_timeout_min": 90}, '"executionTimeout":["5400"]'),
        ({"validation.nodes_timeout_min": 60}, '"NumericGreaterThan":120'),
        ({"decode.tensor_parallel_size": 4}, "--tensor-parallel-size 8"),
        ({"profile": "glm-5-fp8"}, "--profile glm-5-fp8"),
        ({"model.revision": "abc"}, "/abc/manifest.json"),
        ({"kv.block_size_tokens": 64}, "--set kv.block_size_tokens=64"),
        ({"kv.backends": ["UCX", "LIBFABRIC"]}, "--set kv.backends=UCX,LIBFABRIC"),
        ({"prefill_prefix_caching": True}, "--set serving.prefill_prefix_caching=True"),
        (
            {"operations.usd_per_node_hour": 63.3},
            "--set bench.price.usd_per_node_hour=63.3",
        ),
    ],
)
def test_settings_are_in_the_definition(
    changes: dict[str, Any], said: str, pair: Synth, changed: Changed
) -> None:
    """Each of them, and it was not there before."""
    found = definition_of(changed(changes))
    assert said in found
    if said not in ("--tensor-parallel-size 8",):
        assert said not in definition_of(pair)


def test_what_the_profile_says_is_not_said_again(pair: Synth) -> None:
    """The committed settings are the profile's."""
    assert "--set" not in definition_of(pair)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("after_deploy", "later"),
        ("validation.min_speedup", 0),
        ("validation.slo_ttft_p90_ms", -1),
        ("validation.scale_down", "sometimes"),
        ("validation.nodes_timeout_min", 4),
        ("validation.bench_timeout_min", 721),
        ("validation.speedup", 1.5),
    ],
)
def test_settings_that_cannot_be_used_are_refused(path: str, value: object) -> None:
    """By their name, before anything is synthesized."""
    with pytest.raises(BadSettings) as failure:
        load_deployment(raw_settings({path: value}), "deployment.toml")
    assert [each.field for each in failure.value.problems] == [path]


def test_results_are_private_and_stay(pair: Synth) -> None:
    """Encrypted, over TLS alone, with access logs, for a year; not deleted with the stack."""
    (bucket,) = pair.resources("operations", "S3::Bucket").values()
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = bucket["Properties"]
    assert all(properties["PublicAccessBlockConfiguration"].values())
    assert properties["BucketEncryption"]
    assert properties["LoggingConfiguration"]["LogFilePrefix"] == "results/"
    (rule,) = properties["LifecycleConfiguration"]["Rules"]
    assert rule["ExpirationInDays"] == 365
    policy = json.dumps(pair.only("operations", "S3::BucketPolicy"))
    assert '"aws:SecureTransport": "false"' in policy


def test_alarms_may_write_to_the_topic(pair: Synth) -> None:
    """Asking for TLS takes the place of the policy that lets them by default."""
    statements = pair.only("operations", "SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    allowed = [each for each in statements if each["Effect"] == "Allow"]
    assert [each["Principal"] for each in allowed] == [{"Service": "cloudwatch.amazonaws.com"}]
    assert allowed[0]["Condition"] == {
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
    }


def rights(made: Synth, kind: str, mark: str) -> list[tuple[str, str]]:
    """(action, resource) of a policy's statements."""
    policies = made.only("operations", kind, mark)
    documents = [policies["PolicyDocument"]] if "PolicyDocument" in policies else []
    documents += [each["PolicyDocument"] for each in policies.get("Policies", ())]
    found = []
    for statement in (each for document in documents for each in document["Statement"]):
        actions, resources = statement["Action"], statement["Resource"]
        for action in [actions] if isinstance(actions, str) else actions:
            for resource in resources if isinstance(resources, list) else [resources]:
                found.append((action, resource if resource == "*" else text_of(resource)))
    return found


def test_machines_may_leave_results_and_read_none(pair: Synth) -> None:
    """Nodes and routers put below runs/; routers read three files of the model besides."""
    assert [action for action, _ in rights(pair, "IAM::Policy", "MachinesMay")] == ["s3:PutObject"]
    policy = pair.only("operations", "IAM::Policy", "MachinesMay")
    assert len(policy["Roles"]) == 3
    read = rights(pair, "IAM::Policy", "RoutersMay")
    assert {action for action, _ in read} == {"s3:GetObject"}
    names = {resource.rpartition("/")[2] for _, resource in read}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json"}


def test_the_machine_may_only_what_it_does(pair: Synth) -> None:
    """Capacity of its two groups, one document on its deployment's instances, its own places."""
    found = rights(pair, "IAM::Role", "ValidationRole")
    wide = {action for action, resource in found if resource == "*"}
    assert wide == {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeScalingActivities",
        *("ssm:ListCommands", "ssm:ListCommandInvocations", "ssm:GetCommandInvocation"),
        "cloudwatch:PutMetricData",
    }
    narrow = {action: resource for action, resource in found if resource != "*"}
    assert {*narrow} == {
        *("autoscaling:SetDesiredCapacity", "ssm:SendCommand", "ssm:PutParameter"),
        *("s3:PutObject", "s3:GetObject", "sns:Publish", "states:ListExecutions"),
    }
    groups = [resource for action, resource in found if action.endswith("SetDesiredCapacity")]
    names = {"turnback-demo-prefill", "turnback-demo-decode"}
    assert {each.rpartition("/")[2] for each in groups} == names
    role = pair.only("operations", "IAM::Role", "ValidationRole")
    (sending,) = [
        each
        for each in role["Policies"][0]["PolicyDocument"]["Statement"]
        if each["Action"] == "ssm:SendCommand" and "Condition" in each
    ]
    assert sending["Condition"] == {"StringEquals": {"ssm:resourceTag/turnback:deployment": "demo"}}


def digest(folder: Path, root: Path, **changes: Any) -> str:
    """Fingerprint of the committed settings with changes."""
    settings = load_deployment(raw_settings(changes), "deployment.toml")
    return fingerprint(settings, wheel(folder), root)


def test_the_fingerprint_is_of_all_that_is_deployed(tmp_path: Path) -> None:
    """Settings, kit and the code of the templates; equal for what is equal."""
    for room in ("cdk", "stacks", "ami"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "code.py").write_text("one")
    first = digest(tmp_path, tmp_path)
    assert digest(tmp_path, tmp_path) == first
    assert digest(tmp_path, tmp_path, **{"prefill.count": 2}) != first
    (tmp_path / "stacks" / "code.pyc").write_text("compiled")
    assert digest(tmp_path, tmp_path) == first
    for room in ("cdk", "stacks", "ami"):
        (tmp_path / room / "code.py").write_text("two")
        changed = digest(tmp_path, tmp_path)
        assert changed != first
        first = changed
    settings = load_deployment(raw_settings(), "deployment.toml")
    (tmp_path / "other.whl").write_bytes(b"another wheel")
    assert fingerprint(settings, tmp_path / "other.whl", tmp_path) != first


def test_the_stack_has_the_fingerprint(pair: Synth, tmp_path: Path) -> None:
    """So that it changes with each deploy that changes anything."""
    parameter = pair.only("operations", "SSM::Parameter", "Fingerprint")
    assert parameter["Name"] == "/turnback/demo/fingerprint"
    assert parameter["Value"] == digest(tmp_path, ROOT)


def test_logs_and_traces_are_kept(pair: Synth) -> None:
    """Every state with its data."""
    machine = pair.only("operations", "StepFunctions::StateMachine")
    assert machine["TracingConfiguration"] == {"Enabled": True}
    assert machine["LoggingConfiguration"]["Level"] == "ALL"
    assert machine["LoggingConfiguration"]["IncludeExecutionData"] is True
    (log,) = pair.resources("operations", "Logs::LogGroup").values()
    assert log["Properties"]["RetentionInDays"] == 90


def test_definition_is_small_enough(pair: Synth) -> None:
    """Step Functions takes 1 MB; what is over is found at the deploy alone."""
    assert len(definition_of(pair)) < 100_000
