"""cdk-nag and cfn-lint find nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import aws_cdk
import pytest
from cdk_nag import AwsSolutionsChecks
from cfnlint.api import lint
from cfnlint.config import ManualArgs

from cdk.app import build, committed_context
from runtime.contract.instances import INSTANCE_TYPES, P5EN_REGIONS
from runtime.contract.load import load_deployment
from tests.infra.conftest import Changed
from tests.infra.synth import NOW, ROOT, TOPOLOGIES, Synth, raw_settings, wheel

IGNORED = [
    "W3005",  # CDK names dependencies that CloudFormation would find by itself
    "W3010",  # the zone is a setting: EFA does not cross zones
]


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_security_rules_pass_with_a_reason_for_each_exception(name: str, tmp_path: Path) -> None:
    """AwsSolutions passes, and what was accepted stands in the report with its reason."""
    app = aws_cdk.App(outdir=str(tmp_path / "out"), context=committed_context(ROOT))
    settings = load_deployment(raw_settings(TOPOLOGIES[name]), "deployment.toml")
    build(app, settings, kit_wheel=wheel(tmp_path), now=NOW)
    aws_cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    app.synth()
    report = json.loads((tmp_path / "out" / "validation-report.json").read_text("utf-8"))
    (ours,) = [each for each in report["pluginReports"] if each["pluginName"] == "AwsSolutions"]
    assert ours["conclusion"] == "success"
    accepted = {each["ruleName"].split("[")[0] for each in ours["suppressedViolations"]}
    may = {"S1", "IAM4", "IAM5", "AS3", "SMG4", "AEC4"}
    assert accepted <= {f"AwsSolutions-{rule}" for rule in may}
    assert all(len(each["reason"]) > 40 for each in ours["suppressedViolations"])


@pytest.mark.parametrize("stack", ["network", "image", "fleet", "router", "operations"])
@pytest.mark.parametrize("name", ["1p1d", "capacity-block", "two-routers", "endpoints"])
def test_templates_lint_in_every_region_with_p5en(
    name: str, stack: str, topology: Callable[[str], Synth]
) -> None:
    """Property names, values, and the instance type's regions."""
    text = json.dumps(topology(name).all[stack])
    found = lint(text, config=ManualArgs(regions=[*P5EN_REGIONS], ignore_checks=IGNORED))
    assert [str(each) for each in found] == []


SERVABLE = [name for name, row in INSTANCE_TYPES.items() if not row.missing]


@pytest.mark.parametrize("name", SERVABLE)
def test_fleet_of_every_type_lints(name: str, changed: Changed) -> None:
    """In a region that lint knows to have it; where others have it, EC2 tells at launch."""
    gpus = INSTANCE_TYPES[name].gpus
    roles = {
        f"{role}.{key}": value
        for role in ("prefill", "decode")
        for key, value in (("instance_type", name), ("tensor_parallel_size", gpus))
    }
    text = json.dumps(changed(roles).all["fleet"])
    region = "us-east-2" if name.startswith("p5e.") else "us-west-2"
    found = lint(text, config=ManualArgs(regions=[region], ignore_checks=IGNORED))
    assert [str(each) for each in found] == []


def test_lint_knows_regions_without_the_type(pair: Synth) -> None:
    """The check above can fail: Ireland has no p5en."""
    text = json.dumps(pair.all["fleet"])
    found = lint(text, config=ManualArgs(regions=["eu-west-1"], ignore_checks=IGNORED))
    assert "E3628" in {each.rule.id for each in found}
