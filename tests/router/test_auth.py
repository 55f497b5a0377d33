"""Keys, tenants, administrators; and no key in any message."""

import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest

from runtime.errors import BadInput
from runtime.router import auth
from runtime.router.auth import Caller, Gate, authorization_of, presented_key
from runtime.router.failure import RequestFailed, error_body

USER_KEY, ADMIN_KEY, OTHER_KEY = "sk-user-0123456789", "sk-admin-0123456789", "sk-other-0123456789"
KEYS = {
    "keys": [
        {"key": USER_KEY, "tenant": "blue"},
        {"key": ADMIN_KEY, "tenant": "ops", "admin": True},
        {"key": OTHER_KEY, "tenant": "blue"},
    ]
}


class Source:
    """Keys that can be changed."""

    def __init__(self, keys: Any = KEYS) -> None:
        self.text = json.dumps(keys)

    def __call__(self) -> str:
        return self.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"Authorization": "Bearer k"}, "k"),
        ({"Authorization": "bearer  k "}, "k"),
        ({"X-Api-Key": "k"}, "k"),
        ({"Authorization": "Basic abc", "X-Api-Key": "k"}, "k"),
        ({"Authorization": "Bearer k", "X-Api-Key": "other"}, "k"),
        ({"Authorization": "Basic abc"}, None),
        ({"Authorization": "Bearer"}, None),
        ({}, None),
    ],
)
def test_presented_key(headers: Mapping[str, str], key: str | None) -> None:
    """OpenAI's header, and Anthropic's where that has no key."""
    assert presented_key(headers) == key


@pytest.mark.parametrize("headers", [bearer(USER_KEY), {"X-Api-Key": USER_KEY}])
def test_known_key_names_its_tenant(headers: Mapping[str, str]) -> None:
    """Both APIs' clients are told by their key."""
    assert Gate(Source()).caller(headers) == Caller("blue", is_admin=False)


def test_keys_of_one_tenant_are_one_caller() -> None:
    """A key can be replaced without losing conversations."""
    gate = Gate(Source())
    assert gate.caller(bearer(USER_KEY)) == gate.caller(bearer(OTHER_KEY))


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("sk-guess"), bearer(USER_KEY[:-1]), {"X-Api-Key": "sk-guess"}, bearer("\udcff")],
)
def test_unknown_key_is_401_and_stands_in_no_message(headers: Mapping[str, str]) -> None:
    """The refusal says what to send; neither the presented nor a known key is in it."""
    with pytest.raises(RequestFailed) as told:
        Gate(Source()).caller(headers)
    assert told.value.status == 401
    message = error_body(told.value).decode()
    for key in (USER_KEY[:-1], ADMIN_KEY, "sk-guess"):
        assert key not in message


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first key and the last cost the same comparisons, all of digests of one length."""
    seen: list[int] = []

    def compare(known: bytes, presented: bytes) -> bool:
        seen.append(len(known) + len(presented))
        return hmac.compare_digest(known, presented)

    gate = Gate(Source())
    monkeypatch.setattr(
        auth, "hmac", type("Compare", (), {"compare_digest": staticmethod(compare)})
    )
    gate.caller(bearer(USER_KEY))
    assert seen == [64] * len(KEYS["keys"])


def test_admin_needs_an_administrators_key() -> None:
    """A tenant's key is refused by 403, without the key; the administrator's passes."""
    gate = Gate(Source())
    assert gate.admin(bearer(ADMIN_KEY)).tenant == "ops"
    with pytest.raises(RequestFailed) as told:
        gate.admin(bearer(USER_KEY))
    assert told.value.status == 403
    assert USER_KEY not in error_body(told.value).decode()


def test_without_keys_each_authorization_is_a_tenant() -> None:
    """Where the engines look at keys, two clients' conversations still never meet."""
    gate = Gate(None)
    callers = [
        gate.caller(headers) for headers in ({}, bearer("a"), bearer("b"), {"X-Api-Key": "a"})
    ]
    assert len({caller.tenant for caller in callers}) == 3
    assert callers[1] == callers[3]
    assert all(caller.is_admin for caller in callers)
    assert callers[1].tenant != "a"
    assert not gate.reload()


def test_changed_keys_count_at_once() -> None:
    """A reload tells whether anything changed; a key that has gone is refused."""
    source = Source()
    gate = Gate(source)
    assert not gate.reload()
    source.text = json.dumps({"keys": KEYS["keys"][1:]})
    assert gate.reload()
    with pytest.raises(RequestFailed):
        gate.caller(bearer(USER_KEY))


@pytest.mark.parametrize(
    "text", ["", "{", '{"keys": []}', '{"keys": [{"key": "short", "tenant": "t"}]}', "[]"]
)
def test_unusable_keys_leave_the_last_ones(text: str) -> None:
    """A half-written file locks nobody out, and is told each time until it is right."""
    source = Source()
    gate = Gate(source)
    source.text = text
    for _ in range(2):
        with pytest.raises(BadInput, match="the API keys"):
            gate.reload()
    assert gate.caller(bearer(USER_KEY)).tenant == "blue"


def test_unreadable_keys_leave_the_last_ones() -> None:
    """So does a file that has gone."""
    answers: list[str] = [json.dumps(KEYS)]

    def read() -> str:
        if not answers:
            raise FileNotFoundError("keys.json")
        return answers.pop()

    gate = Gate(read)
    with pytest.raises(OSError, match="keys"):
        gate.reload()
    assert gate.caller(bearer(USER_KEY)).tenant == "blue"


@pytest.mark.parametrize(
    "keys",
    [
        {USER_KEY: "blue"},
        {"keys": {USER_KEY: "blue"}},
        {"keys": [{USER_KEY: "blue"}]},
        {"keys": [{"key": USER_KEY, "tenant": "", "admin": USER_KEY}]},
        {"keys": [USER_KEY]},
    ],
    ids=["map", "map of keys", "list of maps", "odd values", "bare"],
)
def test_no_key_stands_in_a_message_about_keys(keys: Any) -> None:
    """The message tells where and what, even of a key in the place of a field's name."""
    with pytest.raises(BadInput) as told:
        Gate(Source(keys))
    assert USER_KEY not in str(told.value)
    assert "keys" in told.value.fix
    assert ":" in told.value.allowed


def test_authorization_for_engines() -> None:
    """The text of a key file, without its line end; none without a file."""
    assert authorization_of("sk-engine\n") == "Bearer sk-engine"
    assert authorization_of(None) is None


@pytest.mark.parametrize("text", ["", "  \n", "abc\r\nX-Evil: 1", "k\u00e9y", "a\x00b"])
def test_engine_key_is_one_line_of_text(text: str) -> None:
    """It goes into a header: nothing else may come with it."""
    with pytest.raises(BadInput) as refused:
        authorization_of(text)
    assert "Evil" not in str(refused.value)
    assert authorization_of(" key\n") == "Bearer key"
    assert authorization_of(None) is None


def test_empty_keys_file_is_refused() -> None:
    """Nobody could ever get in."""
    with pytest.raises(BadInput):
        Gate(lambda: "")


def test_key_of_two_tenants_is_refused() -> None:
    """Whose request it is must be one answer."""
    twice = [{"key": "k" * 16, "tenant": name} for name in ("a", "b")]
    with pytest.raises(BadInput, match="API keys"):
        Gate(lambda: json.dumps({"keys": twice}))
