"""The documentation names each permission that a rollout needs, and no other."""

import re
from pathlib import Path

from tests.aws.rollout.account import Account, with_targets

PAGE = (Path(__file__).parents[3] / "docs" / "aws-commands.md").read_text("utf-8")
SERVICES = {"elasticloadbalancingv2": "elasticloadbalancing", "elbv2": "elasticloadbalancing"}


def test_every_call_is_in_the_list_of_permissions(account: None) -> None:
    """By rollouts of a TTL and of an image, with two routers behind a load balancer."""
    ours = Account()
    ours.deploy(480, "aa")
    for role, count in (("prefill", 1), ("decode", 1), ("router", 2)):
        ours.group(role, count)
    ours.overrides["DescribeAutoScalingGroups"] = with_targets(ours)
    ours.deploy(300, "bb")
    ours.roll()
    ours.deploy(300, "cc", pairing="image-2")
    report, _ = ours.roll()
    assert report.failure is None
    needed = {f"{SERVICES.get(service, service)}:{call}" for service, call in ours.called}
    needed -= {"ssm:GetParameter"}  # a played machine's, which reads its own parameter
    section = PAGE.split("### `turnback rollout`", 1)[1].split("\n### ", 1)[0]
    listed = set(re.findall(r"`(\w+:[A-Z]\w+)`", section))
    assert listed == needed
