"""API keys of the router's clients."""

from pydantic import Field, SecretStr

from runtime.contract.node import Frozen


class ApiKey(Frozen):
    """One key."""

    key: SecretStr = Field(min_length=16)
    """What clients send as `Authorization: Bearer`."""
    tenant: str = Field(min_length=1, max_length=128)
    """Who they are; several keys of one tenant share conversations."""
    admin: bool = False
    """Whether it may switch reuse off and on."""


class ApiKeys(Frozen):
    """All keys: `{"keys": [{"key": "...", "tenant": "..."}]}`."""

    keys: tuple[ApiKey, ...] = Field(min_length=1)
