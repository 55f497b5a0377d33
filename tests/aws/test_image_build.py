"""`turnback image build` against scripted answers of Image Builder."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import botocore.client
import pytest
from botocore.exceptions import NoCredentialsError
from typer.testing import CliRunner, Result

from runtime.aws.image_build import ImageBuild, Pace, build_image
from runtime.cli import app
from runtime.contract.image import ImageKind
from runtime.errors import BadInput
from tests.aws.fleet import Clock, answering_too
from tests.aws.stubs import AMI, Answer, answering

PIPELINE = "arn:aws:imagebuilder:us-west-2:111122223333:image-pipeline/turnback-ours-node"
IMAGE = "arn:aws:imagebuilder:us-west-2:111122223333:image/turnback-ours-node/1.0.0/7"
WORKFLOW = "wf-12345678-1234-1234-1234-123456789012"
PIPELINES = Answer(
    "list_image_pipelines",
    {"imagePipelineList": [{"name": "turnback-ours-node", "arn": PIPELINE}]},
    {"filters": [{"name": "name", "values": ["turnback-ours-node"]}]},
)
NO_BUILDS = Answer(
    "list_image_pipeline_images", {"imageSummaryList": []}, {"imagePipelineArn": PIPELINE}
)
STARTED = Answer("start_image_pipeline_execution", {"imageBuildVersionArn": IMAGE})
FIRST = (PIPELINES, NO_BUILDS, STARTED)
NO_WORKFLOWS = Answer("list_workflow_executions", {"workflowExecutions": []})


def image(status: str, **more: Any) -> Answer:
    """Answer of GetImage; `state` adds to the state."""
    state = {"status": status} | more.pop("state", {})
    return Answer("get_image", {"image": {"state": state, **more}}, {"imageBuildVersionArn": IMAGE})


def available(region: str = "us-west-2") -> Answer:
    """The end of a good build."""
    return image("AVAILABLE", outputResources={"amis": [{"region": region, "image": AMI}]})


def step(name: str) -> tuple[Answer, Answer]:
    """A workflow of which one step runs."""
    workflows = [{"workflowExecutionId": WORKFLOW, "status": "RUNNING"}]
    steps = [{"name": "LaunchBuildInstance", "status": "COMPLETED"}]
    return (
        Answer("list_workflow_executions", {"workflowExecutions": workflows}),
        Answer(
            "list_workflow_step_executions",
            {"steps": [*steps, {"name": name, "status": "RUNNING"}]},
            {"workflowExecutionId": WORKFLOW},
        ),
    )


def build(
    *answers: Answer, wait_s: float | None = 3600, kind: ImageKind = "node"
) -> tuple[ImageBuild, list[str], Clock]:
    """Build `ours`; the report, the lines told, and the clock."""
    clock, lines = Clock(), list[str]()
    pace = None if wait_s is None else Pace(wait_s, sleep=clock.sleep, clock=clock)
    with answering("imagebuilder", *answers) as client:
        report = build_image("ours", kind, client, lines.append, pace)
    return report, lines, clock


def test_build_is_followed_to_the_ami() -> None:
    """Each state and step is told once; the end is what goes into the settings."""
    report, lines, _ = build(
        *FIRST,
        *(image("PENDING"), NO_WORKFLOWS),
        *(image("BUILDING"), *step("ExecuteComponents")),
        *(image("BUILDING"), *step("ExecuteComponents")),
        *(image("TESTING"), *step("LaunchTestInstance")),
        available(),
    )
    assert report.failure is None
    assert report.ami_id == AMI
    assert report.settings_lines() == f'[image]\nami_id = "{AMI}"'
    assert lines == [
        f"building {IMAGE}",
        "0 min: pending",
        "0 min: building (ExecuteComponents)",
        "1 min: testing (LaunchTestInstance)",
    ]


def test_without_wait_it_is_started_alone() -> None:
    """The ARN is what a later look needs."""
    report, lines, _ = build(*FIRST, wait_s=None)
    assert (report.arn, report.ami_id, report.failure) == (IMAGE, "", None)
    assert lines == [f"building {IMAGE}"]


def test_a_build_that_runs_is_followed_and_none_is_started() -> None:
    """After Ctrl-C or a timeout the same command goes on; a second build would cost."""
    summaries = [
        {"arn": IMAGE.replace("/7", "/6"), "state": {"status": "FAILED"}},
        {"arn": IMAGE, "state": {"status": "TESTING"}},
    ]
    running = Answer("list_image_pipeline_images", {"imageSummaryList": summaries})
    report, lines, _ = build(PIPELINES, running, available())
    assert report.ami_id == AMI
    assert lines == [f"a build runs already: {IMAGE}"]


def test_pages_are_read_to_the_end() -> None:
    """The pipeline may be on the second one."""
    other = {"name": "turnback-ours-node-2", "arn": PIPELINE + "-2"}
    first = PIPELINES._replace(reply={"imagePipelineList": [other], "nextToken": "more"})
    second = PIPELINES._replace(asked=PIPELINES.asked | {"nextToken": "more"})  # type: ignore[operator]
    report, _, _ = build(first, second, NO_BUILDS, STARTED, wait_s=None)
    assert report.arn == IMAGE


FAILED = {
    "reason": "Workflow failed",
    "failureContext": {
        "imageStatus": "BUILDING",
        "failedStep": "ExecuteComponents",
        "componentFailure": {
            "phaseName": "build",
            "stepName": "Efa",
            "errorMessage": "x" * 5000 + "EFA: no kernel module for 6.8.0-1021-aws",
        },
    },
}


def test_failed_build_tells_step_reason_and_log() -> None:
    """The end of a long message is what counts."""
    log = {"logGroupName": "/aws/imagebuilder/turnback-ours-node"}
    report, _, _ = build(*FIRST, image("FAILED", state=FAILED, loggingConfiguration=log))
    assert report.failure is not None
    assert report.failure.exit_code == 3
    for part in ("Workflow failed", "build/Efa", "no kernel module for 6.8.0-1021-aws"):
        assert part in report.failure.got
    assert len(report.failure.got) < 1200
    assert "aws logs tail /aws/imagebuilder/turnback-ours-node" in report.failure.fix


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ({"failedStep": "CreateImage"}, "step CreateImage"),
        (
            {"distributionFailure": {"errorMessage": "AccessDenied: ssm:PutParameter"}},
            "ssm:PutParameter",
        ),
        ({}, "gives no reason"),
    ],
)
def test_other_failures_are_told_too(context: dict[str, Any], told: str) -> None:
    """Of a workflow's own step, of distribution, or of nothing that is known."""
    state = {"failureContext": {"imageStatus": "DISTRIBUTING"} | context}
    report, _, _ = build(*FIRST, image("FAILED", state=state))
    assert report.failure is not None
    assert told in report.failure.got
    assert "/aws/imagebuilder/turnback-ours-node" in report.failure.fix


def test_cancelled_build_is_a_failure() -> None:
    """Someone else has ended it."""
    report, _, _ = build(*FIRST, image("CANCELLED", state={"reason": "cancelled by a user"}))
    assert report.failure is not None
    assert "cancelled: cancelled by a user" in report.failure.got


def test_image_of_another_region_is_none() -> None:
    """Its id means nothing where the fleet runs."""
    report, _, _ = build(*FIRST, available("eu-west-1"))
    assert report.ami_id == ""
    assert report.failure is not None
    assert "without an AMI" in report.failure.got


def test_time_that_is_up_leaves_the_build_going() -> None:
    """And says how to follow it."""
    building = (image("BUILDING"), NO_WORKFLOWS)
    report, _, clock = build(*FIRST, *building, *building, wait_s=30)
    assert report.failure is not None
    assert "building" in report.failure.got
    assert "run the same command again" in report.failure.fix
    assert clock.now_s <= 30


def test_long_silence_is_broken() -> None:
    """Nobody shall believe that it hangs."""
    building = (image("BUILDING"), NO_WORKFLOWS)
    _, lines, _ = build(*FIRST, *building * 16, available())
    assert lines[1:] == ["0 min: building", "5 min: building"]


def test_unknown_pipeline_names_the_deploy() -> None:
    """With the region that was looked at."""
    with pytest.raises(BadInput, match="has no pipeline") as failure:
        build(PIPELINES._replace(reply={"imagePipelineList": []}))
    assert "us-west-2" in failure.value.got
    assert "cdk deploy turnback-ours-image -c turnback:only=image" in failure.value.fix


def test_refusal_names_the_permission() -> None:
    """Not a traceback of boto3."""
    with pytest.raises(BadInput, match="cannot be built") as failure:
        build(PIPELINES, NO_BUILDS, STARTED._replace(error="AccessDeniedException"))
    assert "imagebuilder:StartImagePipelineExecution" in failure.value.allowed


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["image", "build", "ours", "--region", "us-west-2", *words])


@contextmanager
def ended(status: str, **state: Any) -> Iterator[list[str]]:
    """An account whose build has ended."""
    made = {"amis": [{"region": "us-west-2", "image": AMI}]}
    shown = {"state": {"status": status} | state, "outputResources": made}
    with answering_too(
        ListImagePipelines=lambda asked, _: {
            "imagePipelineList": [{"name": asked["filters"][0]["values"][0], "arn": PIPELINE}]
        },
        ListImagePipelineImages=lambda *_: {"imageSummaryList": []},
        StartImagePipelineExecution=lambda *_: {"imageBuildVersionArn": IMAGE},
        GetImage=lambda *_: {"image": shown},
    ) as called:
        yield called


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(("kind", "key"), [("node", "ami_id"), ("router", "router_ami_id")])
def test_command_ends_with_the_settings_line(kind: str, key: str) -> None:
    """To be pasted into deployment.toml."""
    with ended("AVAILABLE"):
        result = run("--wait", "--kind", kind)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f'\n[image]\n{key} = "{AMI}"\n')


@pytest.mark.usefixtures("account")
def test_json_stands_alone_on_stdout() -> None:
    """Progress goes to stderr."""
    with ended("AVAILABLE"):
        result = run("--wait", "--json")
    told = json.loads(result.stdout)
    assert (told["status"], told["ami_id"], told["failure"]) == ("AVAILABLE", AMI, None)
    assert f"building {IMAGE}" in result.stderr


@pytest.mark.usefixtures("account")
def test_failed_build_exits_3_with_json_all_the_same() -> None:
    """A program reads why, a person too."""
    with ended("FAILED", reason="no space left"):
        result = run("--wait", "--json")
    assert result.exit_code == 3
    assert "no space left" in json.loads(result.stdout)["failure"]["got"]
    assert "no space left" in result.stderr


@pytest.mark.usefixtures("account")
def test_without_wait_the_command_says_how_to_follow() -> None:
    """It must not look as if there were an image."""
    with ended("PENDING"):
        result = run()
    assert result.exit_code == 0
    assert "turnback image build ours --wait" in result.stdout
    assert "ami-" not in result.stdout


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (NoCredentialsError(), 2, "set credentials"),
        (KeyboardInterrupt(), 130, "turnback image build ours --wait"),
    ],
)
def test_what_keeps_the_command_from_asking(error: BaseException, code: int, told: str) -> None:
    """No credentials: bad input. Ctrl-C: the build goes on, and how to find it."""
    with patch.object(botocore.client.BaseClient, "_make_api_call", side_effect=error):
        result = run("--wait")
    assert result.exit_code == code
    assert told in result.stderr
    assert "Traceback" not in result.output
