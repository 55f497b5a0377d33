"""A deployment in a pretended account."""

import pytest

from tests.aws.rollout.account import Account


@pytest.fixture
def ours(account: None) -> Account:
    """Two prefill and two decode nodes and a router, of generation aa and a TTL of 480 s."""
    made = Account()
    made.deploy(480, "aa")
    for role, count in (("prefill", 2), ("decode", 2), ("router", 1)):
        made.group(role, count)
    return made
