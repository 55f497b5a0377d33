"""Who sends a request: API keys, tenants, administrators."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from runtime.contract.keys import ApiKeys
from runtime.errors import BadInput
from runtime.router.failure import RequestFailed

_FIELDS = frozenset({"keys", "key", "tenant", "admin"})

ReadKeys = Callable[[], str]
"""Reads the JSON of the keys; may block. Raises OSError or TurnbackError."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is.

    Attributes:
        tenant: conversations of two tenants never meet.
        is_admin: may switch reuse.
    """

    tenant: str
    is_admin: bool


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request: OpenAI's Authorization, or Anthropic's x-api-key."""
    authorization = headers.get("Authorization", "")
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return headers.get("X-Api-Key")


class Gate:
    """Tells callers by their keys.

    Args:
        read: gives the keys; None lets everyone in.

    Raises:
        BadInput: the keys cannot be used.
    """

    def __init__(self, read: ReadKeys | None) -> None:
        self._read = read
        self._text: str | None = None
        self._callers: list[tuple[bytes, Caller]] = []
        if read is not None:
            self.reload()

    def reload(self) -> bool:
        """Read the keys again; True when they have changed.

        Raises:
            BadInput: they cannot be used; the last ones stay.
            OSError: they cannot be read; the last ones stay.
        """
        if self._read is None:
            return False
        text = self._read()
        if text == self._text:
            return False
        try:
            keys = ApiKeys.model_validate_json(text)
        except ValidationError as error:
            raise _unusable(error) from None
        self._callers = [
            (_digest(item.key.get_secret_value()), Caller(item.tenant, item.admin))
            for item in keys.keys
        ]
        self._text = text
        return True

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sends a request.

        Raises:
            RequestFailed: 401; without a key, or with one that is not known.
        """
        if self._read is None:
            shown = presented_key(headers) or headers.get("Authorization")
            return Caller(_digest(shown).hex() if shown else "", is_admin=True)
        key = presented_key(headers)
        presented = _digest(key or "")
        found = None
        for known, caller in self._callers:  # all of them: the time tells nothing
            if hmac.compare_digest(known, presented):
                found = caller
        if found is None or key is None:
            raise RequestFailed(
                "the API key is not known" if key else "the request has no API key",
                status=401,
                got="another key" if key else "no Authorization: Bearer and no x-api-key header",
                allowed="a key that this router's operator has given out",
                fix="send Authorization: Bearer KEY",
            )
        return found

    def admin(self, headers: Mapping[str, str]) -> Caller:
        """Who sends a request that only administrators may.

        Raises:
            RequestFailed: 401 or 403.
        """
        caller = self.caller(headers)
        if not caller.is_admin:
            raise RequestFailed(
                "the API key may not do this",
                status=403,
                got=f"a key of tenant {caller.tenant}",
                allowed="a key with admin: true",
                fix="use an administrator's key",
            )
        return caller


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _unusable(error: ValidationError) -> BadInput:
    """What is wrong, and where; no key stands in it, not even one in the place of a name."""
    problems = []
    for entry in error.errors():
        known = (part if part in _FIELDS or type(part) is int else "?" for part in entry["loc"])
        problems.append(f"{'.'.join(map(str, known)) or '(whole)'}: {entry['msg']}")
    return BadInput(
        f"the API keys: {len(problems)} value(s) cannot be used",
        got="(not shown)",
        allowed="; ".join(problems),
        fix='write {"keys": [{"key": "...", "tenant": "..."}]}',
    )


def authorization_of(key_text: str | None) -> str | None:
    """The Authorization header for engines, from the text of their key file.

    Raises:
        BadInput: it is no single key.
    """
    if key_text is None:
        return None
    key = key_text.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise BadInput(
            "the engines' API key cannot be used",
            got=f"{len(key)} characters (not shown)",
            allowed="one key of printable ASCII characters on one line",
            fix="correct the file of --engine-api-key-file",
        )
    return f"Bearer {key}"
