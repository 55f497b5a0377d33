"""Run a deployment's image pipeline and follow it to an AMI id."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from runtime.aws.patience import ask
from runtime.contract.image import ImageKind
from runtime.contract.names import image_log_group, resource_name
from runtime.errors import BadInput, StartFailed

_RUNNING = ("PENDING", "CREATING", "BUILDING", "TESTING", "DISTRIBUTING", "INTEGRATING")
_POLL_S = 20.0
_HEARTBEAT_S = 300.0
_MESSAGE_CHARACTERS = 1000
"""Of a step's error, from its end; Image Builder gives up to 384,000."""
_SETTINGS: Mapping[ImageKind, str] = {"node": "ami_id", "router": "router_ami_id"}


@dataclass(frozen=True, slots=True)
class Pace:
    """How a build is waited for."""

    timeout_s: float
    poll_s: float = _POLL_S
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """What came of it.

    Attributes:
        deployment, kind: as asked.
        arn: of Image Builder's image.
        status: Image Builder's word, as last seen.
        ami_id: empty until the image is available.
        failure: the error of a build that was waited for and did not end well.
        waited_s: how long.
    """

    deployment: str
    kind: ImageKind
    arn: str
    status: str
    ami_id: str = ""
    failure: StartFailed | None = None
    waited_s: float = 0.0

    def settings_lines(self) -> str:
        """What goes into deployment.toml."""
        return f'[image]\n{_SETTINGS[self.kind]} = "{self.ami_id}"'


def build_image(
    deployment: str,
    kind: ImageKind,
    imagebuilder: Any,
    say: Callable[[str], None],
    pace: Pace | None = None,
) -> ImageBuild:
    """Start the pipeline, or take the build that runs already.

    Args:
        deployment: its name.
        kind: of the image.
        imagebuilder: boto3's client.
        say: gets a line for everything that changes.
        pace: of the wait; None: do not wait.

    Raises:
        BadInput: there is no such pipeline, or AWS refuses.
    """
    pipeline = _pipeline(deployment, kind, imagebuilder)
    build = _Build(imagebuilder, say, ImageBuild(deployment, kind, "", "PENDING"))
    running = build.running(pipeline)
    if running:
        say(f"a build runs already: {running}")
    arn = running or build.start(pipeline)
    build.report = replace(build.report, arn=arn)
    return build.report if pace is None else build.follow(pace)


def _pipeline(deployment: str, kind: ImageKind, imagebuilder: Any) -> str:
    name = resource_name(deployment, kind)
    wanted = [{"name": "name", "values": [name]}]
    pages = _all(imagebuilder, "list_image_pipelines", "imagePipelineList", filters=wanted)
    for pipeline in pages:
        if pipeline["name"] == name:
            return str(pipeline["arn"])
    region = imagebuilder.meta.region_name
    raise BadInput(
        f"{deployment} has no pipeline for images of {kind}s",
        got=f"no image pipeline {name} in {region}",
        allowed="a deployment whose image stack is deployed",
        fix=f"cdk deploy {resource_name(deployment, 'image')} -c turnback:only=image "
        f"-c turnback:name={deployment} -c turnback:availability_zone=ZONE (docs/image.md), "
        "or give the region",
    )


def _all(client: Any, method: str, key: str, **asked: Any) -> Sequence[Mapping[str, Any]]:
    """Every entry of a call that tells the next page's token."""
    found: list[Mapping[str, Any]] = []
    more: dict[str, Any] = {}
    while True:
        call = partial(getattr(client, method), **asked, **more)
        reply = ask(f"{method} is not answered", f"imagebuilder:{_action(method)}", call)
        found.extend(reply.get(key, ()))
        if not reply.get("nextToken"):
            return found
        more = {"nextToken": reply["nextToken"]}


def _action(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))


@dataclass(slots=True)
class _Build:
    """One build, as it goes on."""

    client: Any
    say: Callable[[str], None]
    report: ImageBuild
    log_group: str = ""

    def running(self, pipeline: str) -> str:
        """ARN of the pipeline's build that has not ended; empty: none."""
        images = _all(
            *(self.client, "list_image_pipeline_images", "imageSummaryList"),
            imagePipelineArn=pipeline,
        )
        running = [each["arn"] for each in images if each["state"]["status"] in _RUNNING]
        return str(running[0]) if running else ""

    def start(self, pipeline: str) -> str:
        """Start a build; the token makes that harmless to repeat."""
        reply = ask(
            f"the image of {self.report.deployment} cannot be built",
            "imagebuilder:StartImagePipelineExecution",
            partial(
                self.client.start_image_pipeline_execution,
                imagePipelineArn=pipeline,
                clientToken=str(uuid.uuid4()),
            ),
        )
        arn = str(reply["imageBuildVersionArn"])
        self.say(f"building {arn}")
        return arn

    def follow(self, pace: Pace) -> ImageBuild:
        """Tell states and steps until the build ends, or time is up."""
        began = told_at = pace.clock()
        told = ""
        while True:
            image = self._image()
            state = image["state"]
            waited_s = pace.clock() - began
            self.report = replace(self.report, status=state["status"], waited_s=waited_s)
            if state["status"] not in _RUNNING:
                return self._ended(image)
            line = " ".join(filter(None, (state["status"].lower(), self._step())))
            if line != told or pace.clock() - told_at >= _HEARTBEAT_S:
                self.say(f"{waited_s / 60:.0f} min: {line}")
                told, told_at = line, pace.clock()
            if waited_s + pace.poll_s > pace.timeout_s:
                return replace(self.report, failure=self._late(line))
            pace.sleep(pace.poll_s)

    def _image(self) -> Mapping[str, Any]:
        reply = ask(
            f"the build of {self.report.deployment}'s image cannot be followed",
            "imagebuilder:GetImage",
            partial(self.client.get_image, imageBuildVersionArn=self.report.arn),
        )
        image: Mapping[str, Any] = reply["image"]
        self.log_group = image.get("loggingConfiguration", {}).get("logGroupName", "")
        return image

    def _step(self) -> str:
        """What runs within the state, such as `(ExecuteComponents)`; empty: not known."""
        workflows = _all(
            *(self.client, "list_workflow_executions", "workflowExecutions"),
            imageBuildVersionArn=self.report.arn,
        )
        names = [
            step["name"]
            for workflow in workflows
            if workflow.get("status") == "RUNNING"
            for step in _all(
                *(self.client, "list_workflow_step_executions", "steps"),
                workflowExecutionId=workflow["workflowExecutionId"],
            )
            if step.get("status") == "RUNNING"
        ]
        return f"({', '.join(sorted(names))})" if names else ""

    def _ended(self, image: Mapping[str, Any]) -> ImageBuild:
        state = image["state"]
        region = self.client.meta.region_name
        ids = [
            each["image"]
            for each in image.get("outputResources", {}).get("amis", ())
            if each.get("region") == region and each.get("image")
        ]
        if state["status"] == "AVAILABLE" and ids:
            return replace(self.report, ami_id=ids[0])
        if state["status"] == "AVAILABLE":
            return replace(self.report, failure=self._failed("it is available, without an AMI"))
        return replace(self.report, failure=self._failed(_why(state)))

    def _failed(self, why: str) -> StartFailed:
        kind, word = self.report.kind, self.report.status.lower()
        return StartFailed(
            f"the image of {self.report.deployment}'s {kind}s was not built",
            got=f"{word}: {why}",
            allowed="an image that is available",
            fix=f"read the log: aws logs tail {self._log()} --since 1d; mend it, then run it again",
        )

    def _late(self, line: str) -> StartFailed:
        name = self.report.deployment
        return StartFailed(
            f"the image of {name}'s {self.report.kind}s is still being built",
            got=f"after {self.report.waited_s / 60:.0f} min: {line}",
            allowed="a build that ends in time",
            fix=f"the build goes on: run the same command again to follow it, with a longer "
            f"--timeout-s; log: aws logs tail {self._log()} --since 1d",
        )

    def _log(self) -> str:
        report = self.report
        return self.log_group or image_log_group(resource_name(report.deployment, report.kind))


def _why(state: Mapping[str, Any]) -> str:
    """Reason, step and what it said."""
    context = state.get("failureContext", {})
    component = context.get("componentFailure", {})
    distribution = context.get("distributionFailure", {})
    parts = [state.get("reason", "")]
    if component:
        parts.append(f"step {component.get('phaseName')}/{component.get('stepName')}")
    elif context.get("failedStep"):
        parts.append(f"step {context['failedStep']}")
    for failure in (component, distribution):
        parts.append(failure.get("errorMessage", "")[-_MESSAGE_CHARACTERS:].strip())
    return "; ".join(filter(None, parts)) or "Image Builder gives no reason"
