"""A deployment's Auto Scaling groups in moto's account, with answers that moto lacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import boto3
import botocore.client
from botocore.exceptions import ConnectTimeoutError

from runtime.aws.clients import scale_clients
from runtime.aws.scale import Pace, ScaleReport, scale
from tests.aws.stubs import product

Override = Callable[[dict[str, Any], Callable[[], Any]], Any]
"""Takes a call's parameters and a way to ask moto; gives the reply."""

NO_ACTIVITIES: dict[str, Any] = {"Activities": []}


def add_group(role: str, *, deployment: str = "ours", maximum: int = 2, **tags: str) -> str:
    """An empty group with a launch template; its name."""
    name = f"{deployment}-{role}-{tags.get('generation', 'a')}"
    ec2 = boto3.client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName=name,
        LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "p5en.48xlarge"},
    )
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    named = {"turnback:deployment": deployment, "turnback:role": role}
    named |= {f"turnback:{key}": value for key, value in tags.items()}
    boto3.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchTemplate={"LaunchTemplateName": name, "Version": "1"},
        MinSize=0,
        MaxSize=maximum,
        DesiredCapacity=0,
        VPCZoneIdentifier=subnet,
        Tags=[
            {
                "Key": key,
                "Value": value,
                "ResourceId": name,
                "ResourceType": "auto-scaling-group",
                "PropagateAtLaunch": True,
            }
            for key, value in named.items()
        ],
    )
    return name


def desired() -> dict[str, int]:
    """Desired capacity of every group of the account."""
    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in groups}


def activity(number: int, status: str, message: str) -> dict[str, Any]:
    """As DescribeScalingActivities tells one."""
    return {"ActivityId": f"a-{number}", "StatusCode": status, "StatusMessage": message}


@contextmanager
def answering_too(**overrides: Override) -> Iterator[list[str]]:
    """Calls of these operations are answered by the overrides; lists every call's name."""
    real_call = botocore.client.BaseClient._make_api_call
    overrides = {"DescribeScalingActivities": lambda _asked, _real: NO_ACTIVITIES} | overrides
    called = []

    def call(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        called.append(operation)
        ask = overrides.get(operation)
        if ask is None:
            return real_call(self, operation, arguments)
        return ask(arguments, lambda: real_call(self, operation, arguments))

    with patch.object(botocore.client.BaseClient, "_make_api_call", call):
        yield called


@dataclass
class Clock:
    """Time that passes only in sleeps."""

    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        self.slept.append(duration_s)
        self.now_s += duration_s

    def __call__(self) -> float:
        return self.now_s


def run(
    action: Any = "up",
    *,
    wait_s: float | None = None,
    clock: Clock | None = None,
    prefill: int | None = None,
    decode: int | None = None,
) -> tuple[ScaleReport, list[str]]:
    """Scale `ours`; the report and the lines told."""
    clock = clock or Clock()
    lines: list[str] = []
    report = scale(
        "ours",
        action,
        scale_clients(),
        lines.append,
        counts={"prefill": prefill, "decode": decode},
        pace=None if wait_s is None else Pace(wait_s, clock.sleep, clock),
    )
    return report, lines


def priced(*rates: str) -> Override:
    """A price list with one product per rate."""
    return lambda _asked, _real: {"PriceList": [product(rate) for rate in rates]}


def no_price(_asked: dict[str, Any], _real: Any) -> Any:
    raise ConnectTimeoutError(endpoint_url="https://pricing.invalid")
