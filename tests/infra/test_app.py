"""The app as a whole."""

import json
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk
import pytest

from cdk.app import committed_context
from cdk.wheel import build_kit_wheel
from runtime.errors import StartFailed
from tests.infra.conftest import Changed
from tests.infra.synth import ROOT, TOPOLOGIES, Synth

Topology = Callable[[str], Synth]
NAMES = ("Name", "AutoScalingGroupName", "LaunchTemplateName", "ReplicationGroupId", "BucketName")


def _physical_names(made: Synth) -> set[str]:
    return {
        str(resource["Properties"][name])
        for template in made.all.values()
        for resource in template["Resources"].values()
        for name in NAMES
        if name in resource.get("Properties", {})
    }


def test_two_deployments_in_one_account_do_not_meet(changed: Changed, topology: Topology) -> None:
    """No physical name, stack or export of one is the other's."""
    one = topology("two-routers")
    other = changed({**TOPOLOGIES["two-routers"], "name": "second"})
    names = _physical_names(one)
    assert len(names) > 6
    assert not names & _physical_names(other)
    assert all("demo" in name for name in names)
    stacks = [{each.stack_name for each in made.deployment.stacks()} for made in (one, other)]
    assert not stacks[0] & stacks[1]
    assert '"turnback-demo' not in json.dumps(other.all)


IDS = {
    "network": {"AWS::S3::Bucket": {"Logs6819BB44", "ModelsBucket970C6ADA"}},
    "image": {"AWS::SSM::Parameter": {"AmiId06984981"}},
    "fleet": {
        "AWS::SSM::Parameter": {"PrefillSpecParameter15A7982D", "DecodeSpecParameterF75F814D"}
    },
    "router": {
        "AWS::SSM::Parameter": {"ArgumentsParameterF157388E"},
        "AWS::SecretsManager::Secret": {
            *("ApiKeysFirstKeyB6C74C1D", "ApiKeys279AF7D5"),
            *("StorePassword707025A5", "StoreUrl9BB56909"),
        },
        "AWS::ElastiCache::ReplicationGroup": {"StoreGroup197960D5"},
    },
}


def test_logical_ids_of_what_holds_state_are_fixed(topology: Topology) -> None:
    """Another id would replace a bucket, a secret or a parameter of every deployment."""
    made = topology("two-routers")
    for stack, kinds in IDS.items():
        for kind, ids in kinds.items():
            assert set(made.templates[stack].find_resources(kind)) == ids


def test_tags_and_boundary_reach_everything(changed: Changed) -> None:
    """Mandatory tags on each taggable resource, the boundary on each role."""
    boundary = "arn:aws:iam::111122223333:policy/boundary"
    made = changed({"tags.cost-centre": "ml", "permissions_boundary_arn": boundary})
    roles = 0
    for template in made.all.values():
        for key, resource in template["Resources"].items():
            properties: Any = resource.get("Properties", {})
            if resource["Type"] == "AWS::IAM::Role":
                assert properties["PermissionsBoundary"] == boundary
                roles += 1
            for tags in (properties.get("Tags"),):
                if tags is not None:
                    assert "cost-centre" in json.dumps(tags), key
    assert roles == 7
    for role in ("prefill", "router"):
        for each in made.launch_template(role)["TagSpecifications"]:
            assert {"Key": "cost-centre", "Value": "ml"} in each["Tags"]


def test_nothing_is_looked_up(topology: Topology) -> None:
    """No account is needed to synthesize."""
    for name in TOPOLOGIES:
        for stack in topology(name).deployment.stacks():
            assert aws_cdk.Token.is_unresolved(stack.account)
            assert stack.region == "us-west-2"


def test_feature_flags_are_the_recommended_ones_but_one() -> None:
    """The committed context follows aws-cdk-lib.

    References between stacks are exports, not weak ones: an export keeps a network from
    being deleted under its fleet, and emulated accounts know it.
    """
    folder = Path(str(aws_cdk.__file__)).parent / "_jsii"
    (package,) = folder.glob("aws-cdk-lib@*.tgz")
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/recommended-feature-flags.json")
        assert member is not None
        recommended = json.load(member)
    assert recommended["@aws-cdk/core:defaultCrossStackReferences"] == "weak"
    assert committed_context(ROOT) == recommended | {
        "@aws-cdk/core:defaultCrossStackReferences": "strong"
    }


def test_wheel_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    """Else every synth would be a new generation."""
    first = build_kit_wheel(ROOT, tmp_path / "a")
    time.sleep(1.1)  # zip files tell two seconds apart
    second = build_kit_wheel(ROOT, tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        assert wheel.read("runtime/node.lock") == (ROOT / "locks" / "node.lock").read_bytes()


def test_wheel_that_cannot_be_built_is_told(tmp_path: Path) -> None:
    """With what the build said."""
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).touch()
    (tmp_path / "runtime").mkdir()
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "node.lock").touch()
    (tmp_path / "pyproject.toml").write_text("nonsense")
    with pytest.raises(StartFailed, match="wheel cannot be built"):
        build_kit_wheel(tmp_path, tmp_path / "out")


def _app(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdk.app", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_synth_needs_neither_account_nor_cli(tmp_path: Path) -> None:
    """The command of `make synth`, with rules of cdk-nag on."""
    done = _app(
        *("-o", str(tmp_path), "-c", "turnback:name=demo"),
        *("-c", "turnback:availability_zone=us-west-2b"),
        *("-c", "turnback:image.ami_id=ami-0123456789abcdef0"),
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("turnback-demo-*.template.json"))) == 4


def test_bad_settings_end_with_2_and_no_traceback() -> None:
    """Every problem at once, each with what, got, allowed and fix."""
    overrides = {
        "kv.decoder_kv_blocks_ttl_s": "5",
        "kv.kv_recompute_threshold_tokens": "-1",
        "kv.ttl": "3",
        "availability_zone": "eu-west-1a",
        "prefill.capacity.kind": "capacity_block",
        "prefill.capacity.placement_group": "near",
        "decode.tensor_parallel_size": "3",
        "model.attention": "mla",
        "router.replicas": "0",
    }
    given = [word for key, value in overrides.items() for word in ("-c", f"turnback:{key}={value}")]
    done = _app(*given)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    fields = set(re.findall(r"^  ([a-z][\w.]*)$", done.stderr, re.MULTILINE))
    assert fields >= {
        *("name", "image.ami_id", "kv.decoder_kv_blocks_ttl_s", "kv.kv_recompute_threshold_tokens"),
        *("kv.ttl", "prefill.instance_type", "decode.instance_type", "router.replicas"),
        *("prefill.capacity.placement_group", "decode.tensor_parallel_size"),
        "model.accept_unproven",
    }
    count = re.search(r"(\d+) setting\(s\) cannot be used", done.stderr)
    assert count is not None
    for part in ("got:", "allowed:", "fix:"):
        assert done.stderr.count(part) == int(count[1])


@pytest.mark.parametrize("folder", ["/proc/templates", "file/templates"])
def test_folder_that_cannot_be_written_is_told_at_once(tmp_path: Path, folder: str) -> None:
    """The CDK itself would try for ever, on a core of its own."""
    (tmp_path / "file").touch()
    done = _app("-o", str(tmp_path / folder))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for part in ("templates cannot be written", "got:", "allowed:", "fix:"):
        assert part in done.stderr
