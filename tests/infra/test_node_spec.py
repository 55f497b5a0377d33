"""Settings -> NodeSpec parameters."""

import json
from pathlib import Path
from typing import Any

import aws_cdk
import pytest
from aws_cdk.assertions import Template

from cdk.app import Deployment
from runtime.contract.load import load_deployment
from runtime.contract.node import NodeSpec
from stacks.constructs.node_spec import fleet_specs
from stacks.fleet import FleetStack
from stacks.image import ImageStack
from stacks.network import NetworkStack
from tests.infra.conftest import Changed
from tests.infra.synth import NOW, Synth, golden, raw_settings, wheel


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_spec_is_the_reviewed_one(role: str, pair: Synth) -> None:
    """Exactly what a node of the committed settings reads at boot."""
    assert json.loads(pair.spec_text(role)) == golden(f"node-spec-{role}.json")


def test_spec_has_no_empty_reference(pair: Synth) -> None:
    """What synthesis could not fill in must not reach a node as text."""
    for role in ("prefill", "decode"):
        text = pair.spec_text(role)
        assert not any(word in text for word in ("None", "null", '""', "Token"))
        NodeSpec.model_validate_json(text)


def test_ttl_and_threshold_change_the_parameters_alone(pair: Synth, changed: Changed) -> None:
    """No instance, template or group is touched: a rollout restarts engines, nothing else."""
    other = changed({"kv.decoder_kv_blocks_ttl_s": 600, "kv.kv_recompute_threshold_tokens": 256})
    before = pair.all
    touched = {
        (stack, each["Type"], name)
        for stack, template in other.all.items()
        for key, each in template["Resources"].items()
        for name, value in each.get("Properties", {}).items()
        if value != before[stack]["Resources"][key]["Properties"].get(name)
    }
    # CloudFormation changes a parameter's value in place; another name would replace it.
    assert touched == {
        (stack, "AWS::SSM::Parameter", "Value") for stack in ("fleet", "router", "operations")
    }
    for stack, template in other.all.items():
        assert set(template["Resources"]) == set(before[stack]["Resources"])
    spec = NodeSpec.model_validate_json(other.spec_text("decode"))
    assert (spec.kv.decoder_kv_blocks_ttl_s, spec.kv.kv_recompute_threshold_tokens) == (600, 256)


@pytest.mark.parametrize(
    ("props", "expected"),
    [
        ({}, (480, 64)),
        ({"decoder_kv_blocks_ttl_s": 99}, (99, 64)),
        ({"kv_recompute_threshold_tokens": 7}, (480, 7)),
    ],
)
def test_props_of_the_stack_win_over_the_settings(
    props: dict[str, Any], expected: tuple[int, int], tmp_path: Path
) -> None:
    """Left out, they are the settings'; given, they reach both roles' specs."""
    settings = load_deployment(raw_settings(), "deployment.toml")
    app = aws_cdk.App(outdir=str(tmp_path / "out"))
    env = aws_cdk.Environment(region="us-west-2")
    network = NetworkStack(
        *(app, "Network"),
        name="demo",
        availability_zone="us-west-2b",
        network=settings.network,
        env=env,
    )
    image = ImageStack(
        *(app, "Image"),
        name="demo",
        image=settings.image,
        kit_wheel=wheel(tmp_path),
        env=env,
    )
    fleet = FleetStack(
        *(app, "Fleet"),
        settings=settings,
        network=network,
        image=image,
        kit_wheel=wheel(tmp_path),
        now=NOW,
        env=env,
        **props,
    )
    found = Template.from_stack(fleet).find_resources("AWS::SSM::Parameter").values()
    for each in found:
        kv = NodeSpec.model_validate_json(each["Properties"]["Value"]).kv
        assert (kv.decoder_kv_blocks_ttl_s, kv.kv_recompute_threshold_tokens) == expected


def test_props_are_held_to_the_same_rules(tmp_path: Path) -> None:
    """A TTL below the margin is no more possible in code than in the file."""
    settings = load_deployment(raw_settings(), "deployment.toml")
    app = aws_cdk.App(outdir=str(tmp_path / "out"))
    network = NetworkStack(
        *(app, "Network"),
        name="demo",
        availability_zone="us-west-2b",
        network=settings.network,
        env=aws_cdk.Environment(region="us-west-2"),
    )
    image = ImageStack(app, "Image", name="demo", image=settings.image, kit_wheel=wheel(tmp_path))
    with pytest.raises(ValueError, match="at least 15 s"):
        FleetStack(
            *(app, "Fleet"),
            settings=settings,
            network=network,
            image=image,
            kit_wheel=wheel(tmp_path),
            now=NOW,
            decoder_kv_blocks_ttl_s=5,
        )


@pytest.mark.parametrize(
    ("changes", "kit", "other_pairs"),
    [
        ({"kv.decoder_kv_blocks_ttl_s": 600}, "kit", True),
        ({"prefill.tensor_parallel_size": 4}, "kit", True),
        ({}, "newer", False),
        ({"image.ami_id": "ami-0fedcba9876543210"}, "kit", False),
        ({"model.revision": "main"}, "kit", False),
        ({"kv.block_size_tokens": 32}, "kit", False),
        ({"kv.bidirectional": False, "after_deploy": "nothing"}, "kit", False),
        ({"prefill_prefix_caching": True}, "kit", True),
    ],
)
def test_generation_follows_every_change_and_pairing_those_that_part(
    changes: dict[str, object], kit: str, other_pairs: bool
) -> None:
    """A new TTL may meet the old one; a new image, kit, model or block size may not."""
    before_settings = load_deployment(raw_settings(), "deployment.toml")
    settings = load_deployment(raw_settings(changes), "deployment.toml")
    before = fleet_specs(before_settings, before_settings.kv, "kit")
    after = fleet_specs(settings, settings.kv, kit)
    assert after.prefill.generation == after.decode.generation != before.prefill.generation
    assert (after.pairing == before.pairing) is other_pairs


def test_spec_that_no_parameter_holds_is_refused(changed: Changed) -> None:
    """A standard parameter takes 4 KB; the message names what is long."""
    with pytest.raises(ValueError, match=r"shorten model\.id"):
        changed({"model.revision": "r" * 4000})


PARTS = ("network", "image", "fleet", "router", "operations")


def test_stacks_are_named_after_the_deployment(pair: Synth) -> None:
    """Two deployments in one account do not meet."""
    deployment: Deployment = pair.deployment
    names = [stack.stack_name for stack in deployment.stacks()]
    assert names == [f"turnback-demo-{part}" for part in PARTS]
