"""A node says of itself that it takes nothing new, in the words of a rollout."""

from typing import Any

from runtime.aws.discovery import DRAINING_TAG
from runtime.aws.patience import ask


def tag_draining(ec2: Any, instance_id: str) -> None:
    """Put the tag that routers read onto an instance.

    Raises:
        BadInput: AWS refuses, or does not answer.
    """
    tag = {"Key": DRAINING_TAG, "Value": "true"}
    ask(
        f"{instance_id} cannot be drained",
        "ec2:CreateTags",
        lambda: ec2.create_tags(Resources=[instance_id], Tags=[tag]),
    )
