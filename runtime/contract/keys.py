"""API keys of the router's clients."""

from typing import Self

from pydantic import Field, SecretStr, model_validator

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

    @model_validator(mode="after")
    def _each_key_is_one_tenants(self) -> Self:
        values = [item.key.get_secret_value() for item in self.keys]
        if len(set(values)) != len(values):
            raise ValueError("a key stands twice: each key belongs to one tenant")
        return self
