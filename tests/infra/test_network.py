"""The network's stack."""

import json
from typing import Any

import pytest

from stacks.constructs.node_spec import ROUTER_PORT, SERVING_PORT, SIDE_CHANNEL_PORT
from stacks.constructs.vpc import ENDPOINTS
from tests.infra.conftest import Changed
from tests.infra.synth import Synth


def _rules(made: Synth, direction: str) -> list[dict[str, Any]]:
    """Rules between groups, by the ids of their groups."""
    peer = "SourceSecurityGroupId" if direction == "Ingress" else "DestinationSecurityGroupId"
    return [
        {
            "group": _mark(each["Properties"]["GroupId"]),
            "peer": _mark(each["Properties"][peer]),
            "protocol": each["Properties"]["IpProtocol"],
            "port": each["Properties"].get("FromPort"),
        }
        for each in made.resources("network", f"EC2::SecurityGroup{direction}").values()
    ]


def _mark(reference: Any) -> str:
    name = str(reference["Fn::GetAtt"][0]).removeprefix("Groups")
    return next(each for each in ("Efa", "Node", "Edge") if name.startswith(each))


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_efa_group_names_itself_in_both_directions(direction: str, pair: Synth) -> None:
    """All protocols; a rule for 0.0.0.0/0 does not count for EFA."""
    rules = [rule for rule in _rules(pair, direction) if rule["group"] == "Efa"]
    assert rules == [{"group": "Efa", "peer": "Efa", "protocol": "-1", "port": None}]


def test_efa_group_has_no_other_rule(pair: Synth) -> None:
    """No address of the world, in either direction."""
    group = pair.only("network", "EC2::SecurityGroup", "GroupsEfa")
    assert not {"SecurityGroupIngress", "SecurityGroupEgress"} & set(group)


def test_pairs_of_groups_are_those_of_the_data_path(pair: Synth) -> None:
    """Handshakes among nodes, turns from routers to engines, the balancer to routers; and a
    validation's turns from a router to the balancer."""
    expected = {
        ("Efa", "Efa", None),
        ("Node", "Node", SIDE_CHANNEL_PORT),
        ("Node", "Edge", SERVING_PORT),
        ("Edge", "Edge", ROUTER_PORT),
        ("Edge", "Edge", 80),
    }
    inward = {(rule["group"], rule["peer"], rule["port"]) for rule in _rules(pair, "Ingress")}
    outward = {(rule["peer"], rule["group"], rule["port"]) for rule in _rules(pair, "Egress")}
    assert inward == outward == expected


def test_only_named_clients_reach_the_address(changed: Changed) -> None:
    """On the listener's port; nobody reaches engines or side channels from outside."""
    made = changed({"network.client_cidrs": ["10.1.0.0/16", "192.168.7.0/24"]})
    groups = made.resources("network", "EC2::SecurityGroup")
    open_to = {
        (key[6:10], rule["CidrIp"], rule["FromPort"])
        for key, group in groups.items()
        for rule in group["Properties"].get("SecurityGroupIngress", [])
    }
    assert open_to == {("Edge", "10.1.0.0/16", 80), ("Edge", "192.168.7.0/24", 80)}


def test_internet_is_one_nat_gateway(pair: Synth) -> None:
    """Nodes have private addresses; nothing outside can open a connection to them."""
    assert len(pair.resources("network", "EC2::NatGateway")) == 1
    subnets = [each["Properties"] for each in pair.resources("network", "EC2::Subnet").values()]
    assert not any(subnet["MapPublicIpOnLaunch"] for subnet in subnets)
    assert {subnet["AvailabilityZone"] for subnet in subnets} == {"us-west-2b"}


def test_without_internet_there_are_endpoints(changed: Changed) -> None:
    """Each service that a node or router calls, reachable for these two groups alone."""
    made = changed({"network.egress": "endpoints"})
    for kind in ("NatGateway", "InternetGateway", "EIP"):
        assert made.resources("network", f"EC2::{kind}") == {}
    endpoints = made.resources("network", "EC2::VPCEndpoint").values()
    kinds = [each["Properties"]["VpcEndpointType"] for each in endpoints]
    assert sorted(kinds) == ["Gateway", *["Interface"] * len(ENDPOINTS)]


@pytest.mark.parametrize(
    ("cidr", "half"), [("10.20.0.0/16", "10.20.0.0/17"), ("10.9.8.0/24", "10.9.8.0/25")]
)
def test_vpc_of_any_allowed_size_has_room(cidr: str, half: str, changed: Changed) -> None:
    """Nodes get the first half, one address each."""
    made = changed({"network.cidr": cidr})
    assert made.only("network", "EC2::VPC")["CidrBlock"] == cidr
    assert made.only("network", "EC2::Subnet", "OwnVpcNode")["CidrBlock"] == half


def test_imported_network_is_left_alone(changed: Changed) -> None:
    """Groups and buckets are made, nothing of the VPC; nothing is looked up."""
    made = changed(
        {
            "network": {
                "kind": "imported",
                "vpc_id": "vpc-0123456789abcdef0",
                "subnet_id": "subnet-0123456789abcdef0",
                "client_cidrs": ["10.0.0.0/8"],
            }
        }
    )
    kinds = {each["Type"] for each in made.all["network"]["Resources"].values()}
    assert kinds == {
        *("AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::EC2::SecurityGroup"),
        "AWS::SSM::Parameter",
        *("AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress"),
    }
    group = made.only("fleet", "AutoScaling::AutoScalingGroup", "Decode")
    assert group["VPCZoneIdentifier"] == ["subnet-0123456789abcdef0"]


def test_proxy_port_is_open_outwards(changed: Changed) -> None:
    """A proxy that the group does not let through would end the first boot."""
    made = changed({"downloads.proxy_url": "http://proxy.example:3128"})
    group = made.only("network", "EC2::SecurityGroup", "GroupsNode")
    assert {rule["FromPort"] for rule in group["SecurityGroupEgress"]} == {443, 3128}


def test_log_bucket_is_private_and_kept(pair: Synth) -> None:
    """Encrypted, TLS only, not public; `cdk destroy` leaves the logs."""
    bucket = pair.resources("network", "S3::Bucket")["Logs6819BB44"]
    assert bucket["DeletionPolicy"] == "Retain"
    assert all(bucket["Properties"]["PublicAccessBlockConfiguration"].values())
    assert "aws:SecureTransport" in json.dumps(pair.only("network", "S3::BucketPolicy", "Logs"))


def test_models_have_a_closed_bucket_that_stays(pair: Synth) -> None:
    """Encrypted, private, logged; its name is a parameter, and its id is fixed: data is in it."""
    found = pair.resources("network", "S3::Bucket")
    ((logical, bucket),) = ((key, each) for key, each in found.items() if "Models" in key)
    assert logical == "ModelsBucket970C6ADA"
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    properties = bucket["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert properties["BucketEncryption"]
    assert properties["LoggingConfiguration"]["LogFilePrefix"] == "models/"
    (rule,) = properties["LifecycleConfiguration"]["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert "ExpirationInDays" not in rule
    parameter = pair.only("network", "SSM::Parameter")
    assert parameter["Name"] == "/turnback/demo/model-bucket"
    assert parameter["Value"] == {"Ref": logical}
