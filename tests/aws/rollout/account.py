"""A deployment in moto's account whose machines answer commands, as moto's do not."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import boto3
import botocore.client
from botocore.exceptions import ClientError

from runtime.aws.clients import rollout_clients
from runtime.aws.reports import REPORT_COMMAND
from runtime.aws.rollout.deployment import roll_out_deployment
from runtime.aws.rollout.report import Pace, RolloutReport
from runtime.contract.node import KvTransferSpec, NodeSpec, ServingSpec
from runtime.contract.status import NodeReport, arguments_generation
from tests.aws.fleet import NO_ACTIVITIES, Clock, add_group

ROUTER_ARGUMENTS = "--deployment\nours\n--decoder-kv-blocks-ttl-s\n{ttl_s}"


@dataclass
class Host:
    """A machine as its agent shows it."""

    report: NodeReport
    ready_at_s: float = 0.0
    busy_until_s: float = 0.0
    is_online: bool = True
    is_broken: bool = False


@dataclass
class Account:
    """A deployment `ours`, and everything asked of AWS that changes something.

    Attributes:
        clock: its time.
        hosts: by instance id.
        done: calls and commands that changed something, in order.
        overrides: of further operations.
        health: of load balancer targets, by instance id.
        new_are_broken: whether machines that start from now on do not serve.
        called: service and operation of every call.
    """

    clock: Clock = field(default_factory=Clock)
    hosts: dict[str, Host] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    overrides: dict[str, Callable[..., Any]] = field(default_factory=dict)
    health: dict[str, str] = field(default_factory=dict)
    new_are_broken: bool = False
    called: set[tuple[str, str]] = field(default_factory=set)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def group(self, role: str, count: int, *, maximum: int = 3, pairing: str = "image-1") -> None:
        """A group with running nodes that run what their parameter says."""
        tags = {} if role == "router" else {"generation": pairing}
        name = add_group(role, maximum=maximum, **tags)
        self.scale(name, count)

    def scale(self, group: str, count: int) -> None:
        """Another capacity, by hand."""
        boto3.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=group, DesiredCapacity=count
        )
        self.meet()

    def meet(self) -> None:
        """Give machines that have started an agent."""
        for machine in sorted(self.machines(), key=lambda each: str(each["InstanceId"])):
            if machine["InstanceId"] not in self.hosts:
                role = self._role(machine)
                same = sum(name.startswith(role) for name in self.names.values())
                self.names[machine["InstanceId"]] = f"{role}-{same}"
                report = self._started(role)
                self.hosts[machine["InstanceId"]] = Host(report, is_broken=self.new_are_broken)
                if role == "router":
                    self.health[machine["InstanceId"]] = "healthy"

    def machines(self) -> list[dict[str, Any]]:
        """Running instances."""
        running = {"Name": "instance-state-name", "Values": ["running"]}
        pages = boto3.client("ec2").describe_instances(Filters=[running])["Reservations"]
        return [instance for page in pages for instance in page["Instances"]]

    def deploy(self, ttl_s: int, generation: str, *, pairing: str | None = None) -> None:
        """Other parameters, and for another image another tag of the groups."""
        kv = KvTransferSpec(decoder_kv_blocks_ttl_s=ttl_s)
        for role in ("prefill", "decode"):
            spec = NodeSpec(
                role=role,
                serving=ServingSpec(
                    model="/models/m",
                    served_model_name="m",
                    max_model_len=4096,
                    port=8000,
                ),
                kv=kv,
                generation=generation,
                side_channel_port=5600,
            )
            self._put(role, spec.model_dump_json(exclude_none=True))
        self._put("router", ROUTER_ARGUMENTS.format(ttl_s=ttl_s))
        if pairing is not None:
            self._tag_groups(pairing)

    def _put(self, role: str, value: str) -> None:
        boto3.client("ssm").put_parameter(
            Name=f"/turnback/ours/{role}", Value=value, Type="String", Overwrite=True
        )

    def _tag_groups(self, pairing: str) -> None:
        client = boto3.client("autoscaling")
        for group in client.describe_auto_scaling_groups()["AutoScalingGroups"]:
            if "router" not in group["AutoScalingGroupName"]:
                tag = {
                    "ResourceId": group["AutoScalingGroupName"],
                    "ResourceType": "auto-scaling-group",
                    "Key": "turnback:generation",
                    "Value": pairing,
                    "PropagateAtLaunch": True,
                }
                client.create_or_update_tags(Tags=[tag])

    def _role(self, machine: dict[str, Any]) -> str:
        tags = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}
        return str(tags["turnback:role"])

    def _started(self, role: str, *, is_ready: bool = True) -> NodeReport:
        """What a process says that starts now."""
        value = boto3.client("ssm").get_parameter(Name=f"/turnback/ours/{role}")
        text = str(value["Parameter"]["Value"])
        running = 0 if is_ready else None
        if role == "router":
            generation = arguments_generation(text)
            return NodeReport(generation=generation, is_ready=is_ready, running_requests=running)
        spec = NodeSpec.model_validate_json(text)
        return NodeReport(
            generation=spec.generation,
            ttl_s=spec.kv.decoder_kv_blocks_ttl_s,
            lease_s=spec.kv.kv_lease_duration_s,
            is_ready=is_ready,
            running_requests=running,
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Machines answer commands, and what changes something is written down."""
        real = botocore.client.BaseClient._make_api_call

        def call(client: Any, operation: str, asked: dict[str, Any]) -> Any:
            self.called.add((client.meta.service_model.service_name, operation))
            own = self.overrides.get(operation) or getattr(self, f"_{operation}", None)
            reply = own(asked) if own else None
            return real(client, operation, asked) if reply is None else reply

        with patch.object(botocore.client.BaseClient, "_make_api_call", call):
            yield

    def _note(self, verb: str, instance: str) -> None:
        self.done.append(f"{verb} {self.names.get(instance, instance)}")

    def _DescribeScalingActivities(self, _asked: dict[str, Any]) -> Any:
        return NO_ACTIVITIES

    def _DescribeInstanceInformation(self, asked: dict[str, Any]) -> Any:
        self.meet()
        ids = asked["Filters"][0]["Values"]
        online = [each for each in ids if self.hosts[each].is_online]
        return {"InstanceInformationList": [{"InstanceId": each} for each in online]}

    def _SendCommand(self, asked: dict[str, Any]) -> Any:
        (command,) = asked["Parameters"]["commands"]
        command_id = f"c-{len(self.outputs)}"
        self.outputs[command_id] = {
            instance: self._run(instance, command) for instance in asked["InstanceIds"]
        }
        return {"Command": {"CommandId": command_id}}

    def _GetCommandInvocation(self, asked: dict[str, Any]) -> Any:
        return self.outputs[asked["CommandId"]][asked["InstanceId"]]

    def _run(self, instance: str, command: str) -> dict[str, Any]:
        host = self.hosts[instance]
        if command == REPORT_COMMAND:
            report = host.report
            if self.clock() < host.ready_at_s or host.is_broken:
                report = report.model_copy(update={"is_ready": False, "running_requests": None})
            elif self.clock() < host.busy_until_s:
                report = report.model_copy(update={"running_requests": 2})
            return {"Status": "Success", "StandardOutputContent": report.model_dump_json()}
        if command.startswith("journalctl"):
            return {"Status": "Success", "StandardOutputContent": "out of memory"}
        self._note(command, instance)
        role = self.names[instance].partition("-")[0]
        host.report, host.ready_at_s = self._started(role), self.clock() + 60
        return {"Status": "Success"}

    def _CreateTags(self, asked: dict[str, Any]) -> None:
        (tag,) = asked["Tags"]
        self._note(f"{tag['Key']}={tag['Value']}", asked["Resources"][0])

    def _DeleteTags(self, asked: dict[str, Any]) -> None:
        if "Resources" in asked:  # else tags of a group
            self._note(f"no {asked['Tags'][0]['Key']}", asked["Resources"][0])

    def _TerminateInstanceInAutoScalingGroup(self, asked: dict[str, Any]) -> None:
        assert asked["ShouldDecrementDesiredCapacity"] is True
        self._note("end", asked["InstanceId"])

    def _DescribeTargetHealth(self, _asked: dict[str, Any]) -> Any:
        found = [
            {"Target": {"Id": each}, "TargetHealth": {"State": state}}
            for each, state in self.health.items()
        ]
        for each, state in self.health.items():
            if state == "initial":
                self.health[each] = "healthy"
        return {"TargetHealthDescriptions": found}

    def _DeregisterTargets(self, asked: dict[str, Any]) -> Any:
        self.health[asked["Targets"][0]["Id"]] = "draining"
        self._note("deregister", asked["Targets"][0]["Id"])
        return {}

    def _RegisterTargets(self, asked: dict[str, Any]) -> Any:
        self.health[asked["Targets"][0]["Id"]] = "initial"
        self._note("register", asked["Targets"][0]["Id"])
        return {}

    def roll(self, poll_s: float = 30.0, **pace: float) -> tuple[RolloutReport, list[str]]:
        """Roll `ours` out; the report and the lines told."""
        lines: list[str] = []
        with self.answering():
            paced = Pace(sleep=self.clock.sleep, clock=self.clock, poll_s=poll_s, **pace)
            report = roll_out_deployment("ours", rollout_clients(), lines.append, paced)
        return report, lines

    def id_of(self, name: str) -> str:
        """Instance id of `decode-0`."""
        return next(key for key, each in self.names.items() if each == name)

    def draining(self) -> list[str]:
        """Names of the nodes with the tag that routers read."""
        return [
            self.names[machine["InstanceId"]]
            for machine in self.machines()
            if {"Key": "turnback:draining", "Value": "true"} in machine["Tags"]
        ]


def break_after_restart(ours: Account, name: str) -> Any:
    """The machine's process hangs from its next restart on."""

    def answer(asked: dict[str, Any]) -> Any:
        reply = ours._SendCommand(asked)
        if asked["Parameters"]["commands"][0].startswith("systemctl"):
            ours.hosts[ours.id_of(name)].is_broken = True
        return reply

    return answer


def with_targets(ours: Account) -> Any:
    """Groups with a target group, which moto needs a load balancer for."""
    client = boto3.client("autoscaling")

    def answer(asked: dict[str, Any]) -> Any:
        own = ours.overrides.pop("DescribeAutoScalingGroups")
        reply = client.describe_auto_scaling_groups(**asked)
        ours.overrides["DescribeAutoScalingGroups"] = own
        for group in reply["AutoScalingGroups"]:
            group["TargetGroupARNs"] = ["arn:targets"]
        return reply

    return answer


def denied(_asked: dict[str, Any]) -> Any:
    """An answer without leave."""
    raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "It")


def told(report: RolloutReport) -> str:
    """The failure as a user reads it."""
    assert report.failure is not None
    return json.dumps(str(report.failure))
