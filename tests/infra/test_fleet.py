"""The fleet's stack: one setting after the other."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import aws_cdk
import pytest
from aws_cdk.assertions import Annotations, Match

from runtime.aws.discovery import DRAINING_TAG
from runtime.aws.groups import COUNT_TAG
from runtime.contract.instances import INSTANCE_TYPES, InstanceType
from stacks.constructs.network_interfaces import NetworkInterface, build_network_interfaces
from tests.infra.conftest import Changed
from tests.infra.synth import BLOCK, TOPOLOGIES, Synth, golden, raw_settings, scrubbed

ROLES = ("prefill", "decode")
Topology = Callable[[str], Synth]


@pytest.mark.parametrize("role", ROLES)
def test_launch_template_is_the_reviewed_one(role: str, pair: Synth) -> None:
    """Exactly what an instance of the committed settings is made of."""
    assert scrubbed(pair.launch_template(role)) == golden(f"launch-template-{role}.json")


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_no_group_has_a_desired_count(name: str, topology: Topology) -> None:
    """CloudFormation would wait for instances, and roll back where there are none."""
    made = topology(name)
    for stack in ("fleet", "router"):
        for group in made.resources(stack, "AutoScaling::AutoScalingGroup").values():
            assert "DesiredCapacity" not in group["Properties"]


def test_groups_start_empty_and_grow_to_the_count(topology: Topology) -> None:
    """GPU nodes are paid for from the moment someone asks for them; a rollout needs one more."""
    made = topology("2p4d")
    for role, count in (("Prefill", 2), ("Decode", 4)):
        group = made.only("fleet", "AutoScaling::AutoScalingGroup", role)
        assert (group["MinSize"], group["MaxSize"]) == ("0", str(count + 1))
        tag = {"Key": COUNT_TAG, "Value": str(count), "PropagateAtLaunch": False}
        assert tag in group["Tags"]


def test_spare_is_a_setting(changed: Changed) -> None:
    """None, where a block or a budget has no room for it."""
    made = changed({"prefill.spare": 0, "decode.spare": 2})
    sizes = [
        made.only("fleet", "AutoScaling::AutoScalingGroup", role.capitalize())["MaxSize"]
        for role in ROLES
    ]
    assert sizes == ["1", "3"]


def test_both_roles_share_zone_subnet_and_placement_group(pair: Synth) -> None:
    """EFA does not cross zones, and a cluster placement group keeps the roles close."""
    groups = [
        pair.only("fleet", "AutoScaling::AutoScalingGroup", role.capitalize()) for role in ROLES
    ]
    subnets = [group["VPCZoneIdentifier"] for group in groups]
    assert subnets[0] == subnets[1]
    assert len(subnets[0]) == 1
    placements = [pair.launch_template(role)["Placement"] for role in ROLES]
    assert placements == [{"GroupName": {"Ref": "Placement"}}] * 2
    assert pair.only("fleet", "EC2::PlacementGroup")["Strategy"] == "cluster"


def test_capacity_block_has_its_market_and_no_placement_group(topology: Topology) -> None:
    """A block is placed already; without the market type EC2 refuses the launch."""
    made = topology("capacity-block")
    assert made.resources("fleet", "EC2::PlacementGroup") == {}
    for role in ROLES:
        data = made.launch_template(role)
        assert "Placement" not in data
        assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
        target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
        assert target == {"CapacityReservationId": BLOCK["capacity_reservation_id"]}


def test_capacity_block_ends_an_hour_early(topology: Topology) -> None:
    """EC2 begins to end instances 30 minutes before the block's end."""
    made = topology("capacity-block")
    for role in ROLES:
        action = made.only("fleet", "AutoScaling::ScheduledAction", role.capitalize())
        assert action["StartTime"] == "2027-01-31T10:30:00Z"
        assert action["DesiredCapacity"] == 0
        assert "MaxSize" not in action


def test_scale_in_that_is_past_is_left_out(changed: Changed) -> None:
    """EC2 refuses a scheduled action in the past, and with it the whole stack."""
    made = changed(TOPOLOGIES["capacity-block"], now=datetime(2027, 1, 31, 10, 30, tzinfo=UTC))
    assert made.resources("fleet", "AutoScaling::ScheduledAction") == {}


def test_reservation_uses_its_own_placement_group_or_none(topology: Topology) -> None:
    """Any other group asks for room outside of the reservation."""
    made = topology("odcr")
    assert made.resources("fleet", "EC2::PlacementGroup") == {}
    prefill, decode = (made.launch_template(role) for role in ROLES)
    assert "Placement" not in prefill
    assert decode["Placement"] == {"GroupName": "reserved"}
    for data in (prefill, decode):
        assert "InstanceMarketOptions" not in data
        assert data["CapacityReservationSpecification"]["CapacityReservationTarget"]


@pytest.mark.parametrize("name", ["p6-b300.48xlarge", "p5.48xlarge", "g6e.8xlarge"])
def test_instance_type_brings_its_interfaces(name: str, changed: Changed) -> None:
    """Template and spec follow the instance table."""
    row = INSTANCE_TYPES[name]
    both = {f"{role}.instance_type": name for role in ROLES}
    made = changed({**both, **{f"{role}.tensor_parallel_size": 1 for role in ROLES}})
    data = made.launch_template("prefill")
    assert data["InstanceType"] == name
    efa = [each for each in data["NetworkInterfaces"] if each["InterfaceType"] == "efa-only"]
    assert len(efa) == row.efa_interfaces
    assert json.loads(made.spec_text("prefill"))["transport"]["efa_devices"] == row.efa_interfaces


def test_addresses_and_subnets_stand_on_the_primary_alone(pair: Synth) -> None:
    """An address on an efa-only interface, or a public one beside others, fails the launch."""
    primary, *efa = pair.launch_template("decode")["NetworkInterfaces"]
    assert primary["AssociatePublicIpAddress"] is False
    allowed = {
        *("DeleteOnTermination", "DeviceIndex", "Groups", "InterfaceType", "NetworkCardIndex"),
    }
    assert all(set(each) == allowed for each in efa)
    assert "SubnetId" not in primary
    assert "SecurityGroupIds" not in pair.launch_template("decode")
    groups = {json.dumps(each["Groups"]) for each in efa}
    assert len(groups) == 1
    assert json.dumps(primary["Groups"]) not in groups


@pytest.mark.parametrize("role", [*ROLES, "router"])
def test_instances_are_closed(role: str, pair: Synth) -> None:
    """Tokens for metadata, one hop, no key pair, an encrypted volume."""
    data = pair.launch_template(role)
    assert data["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    assert "KeyName" not in data
    assert all(each["Ebs"]["Encrypted"] for each in data["BlockDeviceMappings"])


def _rights(made: Synth, role: str) -> dict[str, list[str]]:
    """Action -> its resources, but for the SSM agent's and the log's, which have more than one."""
    (policy,) = made.only("fleet", "IAM::Role", role.capitalize())["Policies"]
    return {
        statement["Action"]: [json.dumps(each) for each in statement["Resource"]]
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Resource"] != "*" and isinstance(statement["Action"], str)
    }


@pytest.mark.parametrize("role", ROLES)
def test_node_may_read_its_spec_its_model_and_the_wheel_only(role: str, pair: Synth) -> None:
    """The other role's parameter, other models, the rest of the buckets, every secret: closed."""
    rights = _rights(pair, role)
    assert set(rights) == {"ssm:GetParameter", "s3:GetObject"}
    parameters, (wheel, model) = "".join(rights["ssm:GetParameter"]), rights["s3:GetObject"]
    assert f":parameter/turnback/demo/{role}" in parameters
    assert ":parameter/turnback/demo/model-bucket" in parameters
    assert parameters.count(":parameter/") == 2
    assert ".whl" in wheel
    settings = raw_settings()["model"]
    assert f"/models/{settings['id']}/{settings['revision']}/*" in model
    assert "*" not in parameters + wheel + model.replace("/*", "")


def test_nodes_of_a_block_may_tell_routers_of_its_end(topology: Topology) -> None:
    """With one tag, on nodes of their deployment and role; others have no such right."""
    for role in ROLES:
        (policy,) = topology("capacity-block").only("fleet", "IAM::Role", role.capitalize())[
            "Policies"
        ]
        (tagging,) = (
            each
            for each in policy["PolicyDocument"]["Statement"]
            if each["Action"] == "ec2:CreateTags"
        )
        assert tagging["Condition"] == {
            "StringEquals": {
                "aws:ResourceTag/turnback:deployment": "demo",
                "aws:ResourceTag/turnback:role": role,
            },
            "ForAllValues:StringEquals": {"aws:TagKeys": [DRAINING_TAG]},
        }


def test_nodes_of_a_block_know_when_to_drain(topology: Topology, pair: Synth) -> None:
    """A quarter of an hour before their group goes to 0; without a block never."""
    for role in ROLES:
        spec = json.loads(topology("capacity-block").spec_text(role))
        assert spec["drains_at"] == "2027-01-31T10:15:00Z"
        assert "drains_at" not in json.loads(pair.spec_text(role))


def test_instances_carry_what_discovery_reads(pair: Synth) -> None:
    """Names of runtime/aws/discovery.py, on each instance from its launch."""
    for role in ROLES:
        tags = pair.only("fleet", "AutoScaling::AutoScalingGroup", role.capitalize())["Tags"]
        own = [tag["Key"] for tag in tags if not tag["PropagateAtLaunch"]]
        assert own == [COUNT_TAG]
        told = {tag["Key"]: tag["Value"] for tag in tags}
        assert told["turnback:deployment"] == "demo"
        assert told["turnback:role"] == role
        assert told["turnback:port"] == "8000"
        assert len(told["turnback:generation"]) == 12


def test_root_volume_size_is_a_setting(changed: Changed) -> None:
    """And the other role keeps its own."""
    made = changed({"prefill.root_volume_gib": 300})
    sizes = [
        made.launch_template(role)["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] for role in ROLES
    ]
    assert sizes == [300, 200]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decode.instance_type": "p5e.48xlarge"}, "different types"),
        ({"prefill.tensor_parallel_size": 4}, "4 of 8 GPUs"),
    ],
)
def test_settings_that_are_seldom_meant_are_warned_of(
    changes: dict[str, Any], said: str, changed: Changed
) -> None:
    """They work, so they are not refused."""
    stack: aws_cdk.Stack = changed(changes).deployment.fleet
    found = Annotations.from_stack(stack).find_warning("*", Match.string_like_regexp(said))
    assert len(found) == 1


def test_layout_that_ec2_refuses_does_not_get_into_a_template(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cfn-lint accepts any card and device index; the launch would fail hours later."""

    def one_card_too_many(row: InstanceType) -> tuple[NetworkInterface, ...]:
        return (*build_network_interfaces(row), NetworkInterface(99, 0, "efa-only"))

    monkeypatch.setattr("stacks.fleet.build_network_interfaces", one_card_too_many)
    with pytest.raises(ValueError, match=r"card 99: p5en\.48xlarge has 16"):
        changed({})
