"""The rehearsal sees the emulated account and no other."""

import os

import pytest

from runtime.local.rehearsal.account import only_this_account


def test_the_users_account_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profile, session and endpoints of the user are gone meanwhile, and back after."""
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", "https://elsewhere.example")
    before = dict(os.environ)
    with only_this_account(12_345):
        assert "AWS_PROFILE" not in os.environ
        assert "AWS_SESSION_TOKEN" not in os.environ
        told = {name: text for name, text in os.environ.items() if "ENDPOINT" in name}
        assert {*told} == {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}
        assert {*told.values()} == {"http://localhost:12345"}
        assert os.environ["AWS_SHARED_CREDENTIALS_FILE"] == os.devnull
    assert dict(os.environ) == before


def test_the_users_account_is_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the rehearsal."""
    monkeypatch.setenv("AWS_PROFILE", "production")
    with pytest.raises(KeyboardInterrupt), only_this_account(12_345):
        raise KeyboardInterrupt
    assert os.environ["AWS_PROFILE"] == "production"
    assert "AWS_ENDPOINT_URL" not in os.environ
