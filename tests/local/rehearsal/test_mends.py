"""Each mend of the emulator is needed, and with all of them the templates deploy and go."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.cloudformation import parsing

from runtime.errors import StartFailed
from runtime.local.rehearsal import account, census, deletions, deployed, inspection, mends
from runtime.local.rehearsal.checks import check_no_empty_values, check_skipped
from runtime.local.rehearsal.deployed import Stack
from runtime.local.rehearsal.inspection import retained
from tests.infra.synth import Synth, raw_settings, synth

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse:UserWarning")
BUCKET = {"Type": "AWS::S3::Bucket"}
VPC = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}}
SUBNET = {
    "Type": "AWS::EC2::Subnet",
    "Properties": {"CidrBlock": "10.0.0.0/24", "VpcId": {"Ref": "Vpc"}},
}
PARAMETER = {
    "Type": "AWS::SSM::Parameter",
    "Properties": {"Name": "/p", "Type": "String", "Value": "v", "Tags": {"key": "value"}},
}
FLOW_LOG = {
    "Type": "AWS::EC2::FlowLog",
    "Properties": {
        "ResourceType": "VPC",
        "ResourceId": {"Ref": "Vpc"},
        "TrafficType": "ALL",
        "LogDestinationType": "s3",
        "LogDestination": {"Fn::Join": ["", [{"Fn::GetAtt": ["Logs", "Arn"]}, "/folder"]]},
        "Tags": [{"Key": "key", "Value": "value"}],
    },
}
BALANCER = {
    "Type": "AWS::ElasticLoadBalancingV2::LoadBalancer",
    "Properties": {"Type": "network", "Subnets": [{"Ref": "Subnet"}], "Scheme": "internal"},
}
TARGETS = {
    "Type": "AWS::ElasticLoadBalancingV2::TargetGroup",
    "Properties": {"Protocol": "TCP", "Port": 80, "VpcId": {"Ref": "Vpc"}},
}
LISTENER = {
    "Type": "AWS::ElasticLoadBalancingV2::Listener",
    "Properties": {
        "LoadBalancerArn": {"Ref": "Balancer"},
        "Protocol": "TCP",
        "Port": 80,
        "DefaultActions": [{"Type": "forward", "TargetGroupArn": {"Ref": "Targets"}}],
    },
}
NEEDED: dict[str, dict[str, Any]] = {
    "tags of a parameter": {"Parameter": PARAMETER},
    "folder of a flow log": {"Logs": BUCKET, "Vpc": VPC, "Log": FLOW_LOG},
    "listener of a network load balancer": {
        "Vpc": VPC,
        "Subnet": SUBNET,
        "Balancer": BALANCER,
        "Targets": TARGETS,
        "Listener": LISTENER,
    },
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto as it is, in this process."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "rehearsal")
    monkeypatch.setenv("AWS_DEFAULT_REGION", account.REGION)
    with mock_aws():
        parsing.get_model_list.cache_clear()
        parsing.get_model_map.cache_clear()
        parsing.get_name_type_map.cache_clear()
        yield


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto as the emulator has it."""
    put = partial(monkeypatch.setattr, raising=False)
    mends.apply(put)
    deletions.apply(put)


def create(name: str, template: dict[str, Any]) -> None:
    boto3.client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(template))


@pytest.mark.parametrize("what", [*NEEDED])
def test_moto_alone_does_not_make_it(what: str) -> None:
    """Red when moto has learned it: then the mend can go."""
    with pytest.raises((ClientError, TypeError, IndexError)):
        create("stack", {"Resources": NEEDED[what]})


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("what", [*NEEDED])
def test_mended_moto_makes_it(what: str) -> None:
    """As CloudFormation would."""
    create("stack", {"Resources": NEEDED[what]})
    found = boto3.client("cloudformation").describe_stack_resources(StackName="stack")
    made = {each["LogicalResourceId"] for each in found["StackResources"]}
    assert made == {*NEEDED[what]}


@pytest.mark.parametrize("model", [mends.Secret, mends.PlacementGroup])
def test_moto_has_no_such_model(model: Any) -> None:
    """Red when it has one: then the kit's can go."""
    kinds = [
        each.cloudformation_type()
        for each in parsing.get_model_list()
        if each.__module__.startswith("moto.")
    ]
    assert len(kinds) > 100
    assert model.cloudformation_type() not in kinds


@pytest.mark.parametrize("model", [*deletions.EC2, *deletions.ELBV2])
def test_moto_does_not_delete_it(model: Any) -> None:
    """Red when it does: then the deletion can go."""
    assert not hasattr(model, "delete")
    assert hasattr(model.delete_from_cloudformation_json, "__isabstractmethod__")


def vpcs() -> int:
    return len(boto3.client("ec2").describe_vpcs()["Vpcs"])


def delete_and_look(template: dict[str, Any]) -> int:
    """How many VPCs there are, over those before, when a deleted stack was looked at."""
    before, cloudformation = vpcs(), boto3.client("cloudformation")
    stack_id = cloudformation.create_stack(StackName="s", TemplateBody=json.dumps(template))
    cloudformation.delete_stack(StackName="s")
    cloudformation.describe_stacks(StackName=stack_id["StackId"])
    return vpcs() - before


WITH_OUTPUT = {"Resources": {"Vpc": VPC}, "Outputs": {"Id": {"Value": {"Ref": "Vpc"}}}}


def test_moto_alone_makes_outputs_of_deleted_stacks_anew() -> None:
    """Red when it does not: then `_forgetting` can go."""
    assert delete_and_look(WITH_OUTPUT) == 1


@pytest.mark.usefixtures("mended")
def test_mended_moto_leaves_deleted_stacks_deleted() -> None:
    """A look changes nothing."""
    assert delete_and_look(WITH_OUTPUT) == 0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """The committed settings."""
    return synth(raw_settings(), tmp_path_factory.mktemp("pair"))


@pytest.mark.usefixtures("mended")
def test_the_templates_deploy_and_nothing_is_left(
    pair: Synth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `make rehearse` shows through the CDK CLI, without it and without assets."""
    monkeypatch.setattr(inspection, "_check_wheel", lambda _: None)
    boto3.client("ssm").put_parameter(
        Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String"
    )
    before = census.census()
    types: dict[str, str] = {}
    made: dict[str, str] = {}
    cloudformation = boto3.client("cloudformation")
    for name, template in pair.all.items():
        create(name, template)
        types |= {f"{name}/{key}": each["Type"] for key, each in template["Resources"].items()}
        found = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
        made |= {
            f"{name}/{each['LogicalResourceId']}": each["ResourceType"]
            for each in found
            if "LogicalResourceId" in each
        }
    expected = {key: kind for key, kind in types.items() if kind != "AWS::CDK::Metadata"}
    check_skipped(expected | {"cli/Metadata": "AWS::CDK::Metadata"}, made)
    census.check_covers(made.values())
    stacks = [Stack(name, each["Resources"], {}, {}) for name, each in pair.all.items()]
    for role in deployed.ROLES:
        check_no_empty_values(inspection._checked_node("demo", role, stacks))
    with pytest.raises(StartFailed, match="not left the account as it was"):
        census.check_nothing_left(before, census.census(), {"AWS::S3::Bucket": 3})
    for name in reversed([*pair.all]):
        cloudformation.delete_stack(StackName=name)
    census.check_nothing_left(before, census.census(), {"AWS::S3::Bucket": 3})


def test_secret_in_a_secret_is_resolved(mended: None) -> None:
    """The keys' secret holds the generated key, as CloudFormation's dynamic reference gives it."""
    kind = mends.Secret.cloudformation_type()
    text = ['{"key": "{{resolve:secretsmanager:', {"Ref": "First"}, ':SecretString:::}}"}']
    generated = {"PasswordLength": 40, "ExcludePunctuation": True}
    first = {"Type": kind, "Properties": {"GenerateSecretString": generated}}
    second = {"Type": kind, "Properties": {"SecretString": {"Fn::Join": ["", text]}}}
    create("stack", {"Resources": {"First": first, "Second": second}})
    secrets = boto3.client("secretsmanager")
    told = [
        secrets.get_secret_value(SecretId=each["ARN"])["SecretString"]
        for each in secrets.list_secrets()["SecretList"]
    ]
    key, keys = sorted(told, key=len)
    assert len(key) == 40
    assert json.loads(keys) == {"key": key}


def test_retained_resources_are_counted(pair: Synth) -> None:
    """By DeletionPolicy, from the templates that the account has."""
    stacks = [Stack(name, each["Resources"], {}, {}) for name, each in pair.all.items()]
    assert retained(stacks) == {"AWS::S3::Bucket": 3}
