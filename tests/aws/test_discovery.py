"""Nodes of a deployment out of its EC2 tags."""

import asyncio
import logging
from typing import Any
from unittest.mock import patch

import boto3
import botocore.client
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from runtime.aws.discovery import (
    DEPLOYMENT_TAG,
    DRAINING_TAG,
    GENERATION_TAG,
    ROLE_TAG,
    _node,
    instance_listing,
)
from runtime.contract.node import KvTransferSpec, NodeAddress, RouterSpec
from runtime.errors import BadInput
from runtime.router.discovery import follow
from runtime.router.nodes import Fleet
from tests.router.fleet import until

IMAGE = "ami-12c6146b"
"""One that moto knows."""


def start(role: str, deployment: str = "ours", **tags: str) -> str:
    """Run an instance; its id."""
    named = {DEPLOYMENT_TAG: deployment, ROLE_TAG: role}
    named |= {f"turnback:{name}": value for name, value in tags.items()}
    reply = boto3.client("ec2").run_instances(
        ImageId=IMAGE,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": name, "Value": value} for name, value in named.items()],
            }
        ],
    )
    return str(reply["Instances"][0]["InstanceId"])


def address_of(instance: str) -> str:
    """Its private address."""
    reply = boto3.client("ec2").describe_instances(InstanceIds=[instance])
    return str(reply["Reservations"][0]["Instances"][0]["PrivateIpAddress"])


def instance(tags: dict[str, str], **fields: Any) -> dict[str, Any]:
    """As DescribeInstances tells one."""
    return {"InstanceId": "i-1", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]} | fields


@pytest.mark.usefixtures("account")
def test_running_instances_are_nodes() -> None:
    """Role, generation, port and draining are their tags; the address is the private one."""
    prefill = start("prefill")
    decode = start("decode", generation="blue", port="9000", draining="true")
    assert sorted(instance_listing("ours")(), key=lambda node: node.role) == [
        NodeAddress(
            role="decode",
            url=f"http://{address_of(decode)}:9000",
            generation="blue",
            draining=True,
        ),
        NodeAddress(role="prefill", url=f"http://{address_of(prefill)}:8000"),
    ]


@pytest.mark.usefixtures("account")
def test_others_are_no_nodes() -> None:
    """Another deployment's, routers, and what is stopped or has ended."""
    start("prefill", deployment="theirs")
    start("router")
    stopped, ended = start("decode"), start("decode")
    client = boto3.client("ec2")
    listing = instance_listing("ours")
    assert len(listing()) == 2
    client.stop_instances(InstanceIds=[stopped])
    client.terminate_instances(InstanceIds=[ended])
    assert listing() == []


@pytest.mark.usefixtures("account")
def test_every_page_is_read() -> None:
    """A large deployment comes in pages; a node on the second one is a node."""
    started = {start("decode") for _ in range(7)}
    pages = []
    make_call = botocore.client.BaseClient._make_api_call

    def small_pages(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        pages.append(operation)
        return make_call(self, operation, arguments | {"MaxResults": 5})

    with patch.object(botocore.client.BaseClient, "_make_api_call", small_pages):
        assert len(instance_listing("ours")()) == len(started)
    assert len(pages) == 2


def test_instance_with_ipv6_alone_has_brackets_in_its_url() -> None:
    """An address with colons and a port need them."""
    found = _node(
        instance(
            {ROLE_TAG: "decode"},
            NetworkInterfaces=[{"Ipv6Addresses": [{"Ipv6Address": "fd00::1"}]}],
        )
    )
    assert found is not None
    assert found.url == "http://[fd00::1]:8000"


def test_instance_without_address_or_role_is_no_node() -> None:
    """It has just been started, or is none of ours."""
    assert _node(instance({ROLE_TAG: "decode"})) is None
    assert _node(instance({}, PrivateIpAddress="10.0.0.1")) is None
    assert _node({"InstanceId": "i-1", "PrivateIpAddress": "10.0.0.1"}) is None


@pytest.mark.parametrize("draining", ["false", "", "True"])
def test_only_true_drains(draining: str) -> None:
    """Anything else than `true` in the tag leaves the node in use."""
    tags = {ROLE_TAG: "decode", DRAINING_TAG: draining, GENERATION_TAG: "g"}
    found = _node(instance(tags, PrivateIpAddress="10.0.0.1"))
    assert found is not None
    assert not found.draining


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("port", ["99999", "http", "-1", "²"])
def test_wrong_tag_leaves_one_instance_out(port: str, caplog: pytest.LogCaptureFixture) -> None:
    """The others are listed, and one line tells which instance it is."""
    wrong, right = start("decode", port=port), start("decode")
    listing = instance_listing("ours")
    for _ in range(2):
        assert [node.url for node in listing()] == [f"http://{address_of(right)}:8000"]
    assert [record.levelno for record in caplog.records if wrong in record.getMessage()] == [
        logging.WARNING
    ]


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeInstances"),
        EndpointConnectionError(endpoint_url="https://ec2.eu-central-1.amazonaws.com"),
    ],
)
async def test_refusal_leaves_the_last_list(error: Exception) -> None:
    """What AWS does not answer changes no node; it is told with the way out."""
    start("prefill")
    start("decode")
    listing = instance_listing("ours")
    spec = RouterSpec(
        prefill_urls=("http://p:1",), decode_urls=("http://d:1",), port=8000, kv=KvTransferSpec()
    )
    fleet = Fleet(spec)
    following = asyncio.create_task(follow(listing, fleet, 0.01))
    urls = {node.url for node in listing()}
    await until(lambda: {node.url for node in fleet.nodes} == urls)
    calls = []

    def refuse(*_call: Any) -> None:
        calls.append(1)
        raise error

    with patch.object(botocore.client.BaseClient, "_make_api_call", refuse):
        with pytest.raises(BadInput, match="cannot be listed") as refusal:
            listing()
        assert "AWS_REGION" in refusal.value.fix
        await until(lambda: len(calls) > 3)
        assert {node.url for node in fleet.nodes} == urls
    late = start("decode")
    late_url = f"http://{address_of(late)}:8000"
    await until(lambda: late_url in {node.url for node in fleet.nodes})
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.usefixtures("account")
def test_missing_region_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first listing, with the variable to set."""
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(BadInput, match="deployment ours") as refusal:
        instance_listing("ours")
    assert "region" in refusal.value.got
    assert "AWS_REGION" in refusal.value.fix


@pytest.mark.usefixtures("account")
def test_aws_region_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that the message names, and that containers have set, is read."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert instance_listing("ours")() == []
