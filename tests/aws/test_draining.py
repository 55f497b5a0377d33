"""A node tags itself before its capacity ends."""

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from runtime.aws.discovery import instance_listing
from runtime.aws.draining import tag_draining
from runtime.errors import BadInput
from tests.aws.test_discovery import start

pytestmark = pytest.mark.usefixtures("account")


def test_routers_see_the_tag() -> None:
    """The one that a rollout sets."""
    instance = start("decode")
    assert [node.draining for node in instance_listing("ours")()] == [False]
    tag_draining(boto3.client("ec2"), instance)
    assert [node.draining for node in instance_listing("ours")()] == [True]


class Refusing:
    """EC2 that does not let it."""

    def create_tags(self, **_: Any) -> None:
        """As IAM answers."""
        raise ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "CreateTags")


def test_refusal_is_told() -> None:
    """With the right that it takes."""
    with pytest.raises(BadInput, match="i-1 cannot be drained") as failure:
        tag_draining(Refusing(), "i-1")
    assert "ec2:CreateTags" in failure.value.allowed
