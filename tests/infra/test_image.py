"""The image stack: what builds images, with and without an AMI id."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk
import pytest
from aws_cdk.assertions import Template
from cdk_nag import AwsSolutionsChecks
from cfnlint.api import lint
from cfnlint.config import ManualArgs

from ami.documents import KINDS, MOST_CHARACTERS, Kind
from ami.versions import read_versions
from cdk.app import build, build_image, committed_context, main
from runtime.contract.deployment import RoleSettings
from runtime.contract.instances import P5EN_REGIONS
from runtime.contract.load import load_deployment
from runtime.errors import BadInput, BadSettings
from stacks.router import ROOT_VOLUME_GIB
from tests.infra.conftest import Changed
from tests.infra.synth import AMI, NOW, ROOT, Synth, raw_settings, text_of, wheel
from tests.infra.test_rules import IGNORED

Made = dict[str, Any]


def unsynthesized(folder: Path, **changes: Any) -> tuple[aws_cdk.App, aws_cdk.Stack]:
    """The image stack without an AMI id, by itself."""
    raw = raw_settings(changes)
    del raw["image"]["ami_id"]
    app = aws_cdk.App(outdir=str(folder / "out"), context=committed_context(ROOT))
    settings = load_deployment(raw, "deployment.toml")
    return app, build_image(app, settings, kit_wheel=wheel(folder))


def alone(folder: Path, **changes: Any) -> tuple[aws_cdk.App, Template]:
    """The same, with its template."""
    app, stack = unsynthesized(folder, **changes)
    return app, Template.from_stack(stack)


def only(template: Template, kind: str, mark: str) -> Made:
    """Properties of the one resource of a type of an image's kind."""
    found = template.find_resources(f"AWS::{kind}")
    (one,) = (each for key, each in found.items() if key.startswith(mark.capitalize()))
    properties: Made = one["Properties"]
    return properties


def test_stack_stands_alone_without_an_image(tmp_path: Path) -> None:
    """It is what builds the first one: no parameter of an id, all else as ever."""
    app, template = alone(tmp_path)
    stacks = [each for each in app.node.children if isinstance(each, aws_cdk.Stack)]
    assert [each.stack_name for each in stacks] == ["turnback-demo-image"]
    template.resource_count_is("AWS::SSM::Parameter", 0)
    for kind in ("Component", "ImageRecipe", "InfrastructureConfiguration", "ImagePipeline"):
        template.resource_count_is(f"AWS::ImageBuilder::{kind}", len(KINDS))
    for kind in ("DistributionConfiguration", "LifecyclePolicy"):
        template.resource_count_is(f"AWS::ImageBuilder::{kind}", len(KINDS))
    found = lint(
        json.dumps(template.to_json()),
        config=ManualArgs(regions=[*P5EN_REGIONS], ignore_checks=IGNORED),
    )
    assert [str(each) for each in found] == []


def test_stack_alone_keeps_the_security_rules(tmp_path: Path) -> None:
    """cdk-nag fails a synth by itself."""
    app, _ = unsynthesized(tmp_path)
    aws_cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    app.synth()
    report = json.loads((tmp_path / "out" / "validation-report.json").read_text("utf-8"))
    (ours,) = [each for each in report["pluginReports"] if each["pluginName"] == "AwsSolutions"]
    assert ours["conclusion"] == "success"


def test_fleet_without_an_image_is_refused_in_code_too(tmp_path: Path) -> None:
    """Whoever builds the app without the settings file hears the same command."""
    raw = raw_settings()
    del raw["image"]["ami_id"]
    with pytest.raises(BadInput) as failure:
        build(
            aws_cdk.App(outdir=str(tmp_path / "out")),
            load_deployment(raw, "deployment.toml"),
            kit_wheel=wheel(tmp_path),
            now=NOW,
        )
    assert "turnback image build demo --wait" in failure.value.fix


def test_app_synthesizes_the_image_stack_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the commands of docs/image.md do; without the word for it, it ends with 2."""
    words = ["-c", "turnback:name=demo", "-c", "turnback:availability_zone=us-west-2b"]
    assert main([*words, "-c", "turnback:only=image", "-o", str(tmp_path)]) == 0
    assert [each.name for each in tmp_path.glob("*.template.json")] == [
        "turnback-demo-image.template.json"
    ]
    assert main([*words, "-o", str(tmp_path / "all")]) == 2
    assert "turnback image build demo --wait" in capsys.readouterr().err


def test_routers_boot_the_nodes_image_unless_they_have_their_own(changed: Changed) -> None:
    """A light image is a choice."""
    assert changed({}).launch_template("router")["ImageId"] == AMI


@pytest.mark.parametrize("kind", KINDS)
def test_document_names_what_lies_in_the_bucket(kind: Kind, tmp_path: Path) -> None:
    """Digests of the document are those of the assets, and it is short enough as filled in."""
    app, template = alone(tmp_path)
    assembly = app.synth()
    document = text_of(only(template, "ImageBuilder::Component", kind)["Data"])
    assert len(document) < MOST_CHARACTERS - 1000
    (phase, *_) = json.loads(document)["phases"]
    downloads = {step["name"]: step["inputs"] for step in phase["steps"] if "inputs" in step}
    told = {line for line in downloads["Unpack"]["commands"] if line.startswith("echo")}
    for each in downloads["Fetch"]:
        key = each["source"].rpartition("/")[2].split(".")[0]
        (asset,) = Path(assembly.directory).glob(f"asset.{key}*")
        digest = hashlib.sha256(asset.read_bytes()).hexdigest()
        name = each["destination"].rpartition("/")[2]
        assert f"echo '{digest}  {name}' | sha256sum --check" in told


def name_of(template: Template, kind: Kind) -> str:
    recipe = only(template, "ImageBuilder::ImageRecipe", kind)["Name"]
    assert recipe == only(template, "ImageBuilder::Component", kind)["Name"]
    return str(recipe)


def _pins(**changes: str) -> Callable[[], Any]:
    """The committed versions but for `table.key`."""
    versions = {name: dict(table) for name, table in read_versions().items()}
    for path, value in changes.items():
        table, _, key = path.partition(".")
        versions[table][key] = value
    return lambda: versions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"tags.team": "ml"},
        {"pin": "efa.installer"},
        {"pin": "base.KIND_parameter"},
        {"pin": "image_builder.component_version"},
    ],
)
def test_names_follow_what_is_in_them(
    changes: dict[str, str], kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Components and recipes cannot be changed: another content under one name is refused."""
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    before = name_of(alone(tmp_path / "a")[1], kind)
    assert name_of(alone(tmp_path / "b")[1], kind) == before
    rest = dict(changes)
    if pin := rest.pop("pin", "").replace("KIND", kind):
        monkeypatch.setattr("stacks.image.read_versions", _pins(**{pin: "1.1.1"}))
    assert name_of(alone(tmp_path / "c", **rest)[1], kind) != before


@pytest.mark.parametrize("kind", KINDS)
def test_pipeline_tests_tags_and_tells(kind: Kind, tmp_path: Path) -> None:
    """Images carry the tag that the lifecycle looks for; their id goes where it may be written."""
    _, template = alone(tmp_path)
    pipeline = only(template, "ImageBuilder::ImagePipeline", kind)
    assert pipeline["Name"] == f"turnback-demo-{kind}"
    assert pipeline["ImageTestsConfiguration"]["ImageTestsEnabled"] is True
    lifecycle = only(template, "ImageBuilder::LifecyclePolicy", kind)
    assert pipeline["ImageTags"] == lifecycle["ResourceSelection"]["TagMap"]
    distribution = only(template, "ImageBuilder::DistributionConfiguration", kind)
    # AMI names are unique in an account; builds of one second have numbers of their own.
    name = distribution["Distributions"][0]["AmiDistributionConfiguration"]["Name"]
    variables = ("{{ imagebuilder:buildDate }}", "{{ imagebuilder:buildVersion }}")
    assert name == f"turnback-demo-{kind} {' '.join(variables)}"
    (parameter,) = distribution["Distributions"][0]["SsmParameterConfigurations"]
    # AWSServiceRoleForImageBuilder may write below /imagebuilder/ alone.
    assert parameter["ParameterName"] == f"/imagebuilder/turnback/demo/{kind}/ami-id"
    log = only(template, "Logs::LogGroup", kind)["LogGroupName"]
    assert log == f"/aws/imagebuilder/turnback-demo-{kind}"


def test_recipes_are_of_their_bases(tmp_path: Path) -> None:
    """GPU nodes on AWS's image with the open driver, routers on plain Ubuntu."""
    _, template = alone(tmp_path)
    parents = {
        kind: only(template, "ImageBuilder::ImageRecipe", kind)["ParentImage"] for kind in KINDS
    }
    assert "base-oss-nvidia-driver-gpu-ubuntu-24.04" in parents["node"]
    assert "canonical/ubuntu/server/24.04" in parents["router"]
    assert all(each.startswith("ssm:/aws/service/") for each in parents.values())


def test_every_root_volume_holds_the_image(tmp_path: Path) -> None:
    """EC2 refuses to start an instance on a volume that is smaller than its image."""
    _, template = alone(tmp_path)
    recipe = only(template, "ImageBuilder::ImageRecipe", "node")
    size_gib = recipe["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
    asked = RoleSettings.model_json_schema()["properties"]["root_volume_gib"]["minimum"]
    assert size_gib == asked
    assert size_gib <= ROOT_VOLUME_GIB


def test_builds_run_where_the_settings_say(tmp_path: Path) -> None:
    """Type, subnet, group and tags; IMDSv2 in any case."""
    given = {
        "image.build_instance_type": "g6e.xlarge",
        "image.build_subnet_id": "subnet-0123456789abcdef0",
        "image.build_security_group_id": "sg-0123456789abcdef0",
        "tags.team": "ml",
    }
    _, template = alone(tmp_path, **given)
    for kind, instance_type in (("node", "g6e.xlarge"), ("router", "c7i.large")):
        made = only(template, "ImageBuilder::InfrastructureConfiguration", kind)
        assert made["InstanceTypes"] == [instance_type]
        assert made["SubnetId"] == "subnet-0123456789abcdef0"
        assert made["SecurityGroupIds"] == ["sg-0123456789abcdef0"]
        assert made["ResourceTags"] == {"team": "ml", "turnback:image": f"demo-{kind}"}
        assert made["InstanceMetadataOptions"]["HttpTokens"] == "required"
        assert made["TerminateInstanceOnFailure"] is True


def test_builds_run_in_the_default_network_unless_told(tmp_path: Path) -> None:
    """Image Builder's own default; an empty list would be refused."""
    made = only(alone(tmp_path)[1], "ImageBuilder::InfrastructureConfiguration", "node")
    assert "SubnetId" not in made
    assert "SecurityGroupIds" not in made


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"image.build_subnet_id": "subnet-0123456789abcdef0"}, "image.build_security_group_id"),
        ({"image.build_security_group_id": "sg-0123456789abcdef0"}, "image.build_subnet_id"),
    ],
)
def test_subnet_and_group_go_together(given: dict[str, str], missing: str) -> None:
    """Image Builder refuses one without the other, once a stack is deployed."""
    with pytest.raises(BadSettings) as failure:
        load_deployment(raw_settings(given), "deployment.toml")
    assert [problem.field for problem in failure.value.problems] == [missing]


def test_build_instances_read_two_objects_and_no_parameter(pair: Synth) -> None:
    """Nothing of the account is theirs."""
    for key, role in pair.resources("image", "IAM::Role").items():
        text = json.dumps(role)
        if "Build" in key:
            assert text.count("s3:GetObject") == 1
            assert "ssm:GetParameter" not in text
            assert "AmazonSSMManagedInstanceCore" not in text
