"""Texts out of Secrets Manager."""

from unittest.mock import patch

import boto3
import pytest

from runtime.aws.secrets import secret_text
from runtime.errors import BadInput


@pytest.mark.usefixtures("account")
def test_text_is_read_each_time() -> None:
    """A new version is seen by the next reading; the client is made once."""
    client = boto3.client("secretsmanager")
    arn = client.create_secret(Name="keys", SecretString="one")["ARN"]
    by_name, by_arn = secret_text("keys"), secret_text(arn)
    assert (by_name(), by_arn()) == ("one", "one")
    client.put_secret_value(SecretId="keys", SecretString="two")
    with patch("runtime.aws.secrets.client", side_effect=AssertionError("a second client")):
        assert (by_name(), by_arn()) == ("two", "two")


@pytest.mark.usefixtures("account")
def test_missing_secret_is_told() -> None:
    """With its id, what is needed and what to do."""
    with pytest.raises(BadInput, match="cannot be read") as refusal:
        secret_text("nowhere")()
    assert "nowhere" in refusal.value.got
    assert "GetSecretValue" in refusal.value.allowed
    assert refusal.value.fix


@pytest.mark.usefixtures("account")
def test_binary_secret_is_refused_without_its_value() -> None:
    """API keys are text; what it holds instead is not shown."""
    boto3.client("secretsmanager").create_secret(Name="bytes", SecretBinary=b"private")
    with pytest.raises(BadInput, match="cannot be read") as refusal:
        secret_text("bytes")()
    assert "bytes, no text" in refusal.value.got
    assert "private" not in str(refusal.value)


@pytest.mark.usefixtures("account")
def test_missing_region_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other reason not to read it."""
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(BadInput, match="cannot be read"):
        secret_text("keys")()
