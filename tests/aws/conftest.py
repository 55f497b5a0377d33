"""A pretended AWS account: no call leaves this process."""

from collections.abc import Iterator

import boto3
import botocore.session
import pytest
from moto import mock_aws

from tests.aws.fleet import add_group

_LOADED = botocore.session.Session()
"""Keeps what boto3 reads of its service files, megabytes per service, from test to test."""


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty account with credentials that mean nothing elsewhere."""
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # moto takes any AMI then; making 500 of them takes half a second a test.
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        boto3.setup_default_session(botocore_session=_LOADED)
        yield


@pytest.fixture
def groups(account: None) -> tuple[str, str]:
    """A prefill group of at most 2 and a decode group of at most 3."""
    return add_group("prefill", maximum=2), add_group("decode", maximum=3)
