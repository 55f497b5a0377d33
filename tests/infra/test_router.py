"""The router's stack."""

import json
from collections.abc import Callable

import pytest
import typer

from runtime.cli import app
from runtime.contract.keys import ApiKeys
from runtime.contract.node import KvTransferSpec
from stacks.constructs.router_arguments import router_arguments
from tests.infra.conftest import Changed
from tests.infra.synth import CERTIFICATE, Synth, text_of

Topology = Callable[[str], Synth]


def test_address_is_internal_and_plain_only_when_asked(pair: Synth) -> None:
    """The committed settings allow plain HTTP, in so many words."""
    assert pair.only("router", "ElasticLoadBalancingV2::LoadBalancer")["Scheme"] == "internal"
    listener = pair.only("router", "ElasticLoadBalancingV2::Listener")
    assert (listener["Protocol"], listener["Port"]) == ("TCP", 80)


def test_certificate_brings_tls(changed: Changed) -> None:
    """On 443, TLS 1.2 and later; clients reach that port and no other."""
    made = changed({"router.certificate_arn": CERTIFICATE})
    listener = made.only("router", "ElasticLoadBalancingV2::Listener")
    assert (listener["Protocol"], listener["Port"]) == ("TLS", 443)
    assert listener["Certificates"] == [{"CertificateArn": CERTIFICATE}]
    assert "TLS13-1-2" in listener["SslPolicy"]
    edge = made.only("network", "EC2::SecurityGroup", "GroupsEdge")
    assert [rule["FromPort"] for rule in edge["SecurityGroupIngress"]] == [443]


def test_arguments_are_those_of_the_command() -> None:
    """Each is an option of `turnback router`, with the value that the engines got."""
    kv = KvTransferSpec(decoder_kv_blocks_ttl_s=600, block_size_tokens=16)
    arguments = router_arguments("demo", kv, "arn:keys")
    command = typer.main.get_command(app).commands["router"]  # type: ignore[attr-defined]
    parsed = command.make_context("router", list(arguments)).params
    assert parsed["deployment"] == "demo"
    assert parsed["api_keys_secret"] == "arn:keys"  # noqa: S105 - a name, no secret
    assert (parsed["decoder_kv_blocks_ttl_s"], parsed["block_size_tokens"]) == (600, 16)
    assert (parsed["host"], parsed["port"]) == ("0.0.0.0", 8000)  # noqa: S104


def test_parameter_holds_one_argument_a_line(pair: Synth) -> None:
    """Values with blanks stay whole."""
    lines = text_of(pair.only("router", "SSM::Parameter")["Value"]).split("\n")
    assert lines[:2] == ["--deployment", "demo"]
    assert len(lines) % 2 == 0
    assert all(line.startswith("--") for line in lines[::2])


def test_generated_key_has_the_form_that_routers_read(pair: Synth) -> None:
    """The second secret holds the first one's value in the routers' JSON."""
    (made,) = (
        each["Properties"]
        for each in pair.resources("router", "SecretsManager::Secret").values()
        if "SecretString" in each["Properties"]
    )
    text = text_of(made["SecretString"])
    start, end = text.index("{{resolve"), text.index("}}") + 2
    keys = ApiKeys.model_validate_json(text[:start] + "k" * 48 + text[end:])
    assert keys.keys[0].admin


def test_routers_start_with_the_stack(pair: Synth, topology: Topology) -> None:
    """CPU nodes are to be had, and without routers nothing answers."""
    for made, count in ((pair, "1"), (topology("two-routers"), "2")):
        group = made.only("router", "AutoScaling::AutoScalingGroup")
        assert (group["MinSize"], group["MaxSize"]) == (count, count)
        assert len(group["TargetGroupARNs"]) == 1


def test_one_router_has_no_store(pair: Synth) -> None:
    """Its handles are in its own memory."""
    assert pair.resources("router", "ElastiCache::ReplicationGroup") == {}


def test_several_routers_share_a_store(topology: Topology) -> None:
    """Encrypted on the way and at rest, with a password, open to routers alone."""
    made = topology("two-routers")
    store = made.only("router", "ElastiCache::ReplicationGroup")
    assert store["Engine"] == "valkey"
    assert store["TransitEncryptionEnabled"]
    assert store["AtRestEncryptionEnabled"]
    assert "resolve:secretsmanager" in json.dumps(store["AuthToken"])
    inward = made.only("router", "EC2::SecurityGroupIngress")
    outward = made.only("router", "EC2::SecurityGroupEgress")
    assert inward["FromPort"] == outward["FromPort"] == store["Port"]
    assert inward["GroupId"] == outward["DestinationSecurityGroupId"]


def test_password_of_the_store_stands_in_secrets_only(topology: Topology) -> None:
    """Not in the parameter, and in user data by the secret's name."""
    made = topology("two-routers")
    assert "resolve" not in json.dumps(made.resources("router", "SSM::Parameter"))
    script = text_of(made.launch_template("router")["UserData"])
    assert "resolve" not in script
    assert "TURNBACK_STORE_SECRET='<" in script


def test_store_reaches_the_router_as_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address holds the password, and arguments can be read by every user of a machine."""
    monkeypatch.setenv("TURNBACK_STORE", "valkeys://:secret@store:6380")
    command = typer.main.get_command(app).commands["router"]  # type: ignore[attr-defined]
    parsed = command.make_context("router", router_arguments("demo", KvTransferSpec(), "arn"))
    assert parsed.params["store"] == "valkeys://:secret@store:6380"


def test_router_may_read_its_own_secrets_only(pair: Synth) -> None:
    """No other secret of the account."""
    (policy,) = pair.only("router", "IAM::Role")["Policies"]
    (secrets,) = (
        statement["Resource"]
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Action"] == "secretsmanager:GetSecretValue"
    )
    assert list(secrets) == ["Ref"]


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("router.instance_type", "m7i.large", "InstanceType"),
        ("image.router_ami_id", "ami-0fedcba9876543210", "ImageId"),
    ],
)
def test_router_nodes_are_settings(path: str, value: str, key: str, changed: Changed) -> None:
    """Type and image; the GPU nodes' stay what they are."""
    made = changed({path: value})
    assert made.launch_template("router")[key] == value
    assert made.launch_template("prefill")[key] != value


def test_store_type_is_a_setting(changed: Changed) -> None:
    """It is used where there is a store."""
    made = changed({"router.replicas": 2, "router.store_node_type": "cache.t4g.small"})
    group = made.only("router", "ElastiCache::ReplicationGroup")
    assert group["CacheNodeType"] == "cache.t4g.small"
