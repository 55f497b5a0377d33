"""What clients get wrong: a 4xx that names it, and nobody else is harmed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.contract.http import CONVERSATION_HEADER, SESSION_HEADER
from runtime.router.apis import APIS
from runtime.router.failure import RequestFailed
from runtime.router.legs import parse_request
from tests.router.fleet import MODEL, Fleet, running_fleet

CHAT, COMPLETIONS, RESPONSES, MESSAGES = APIS
OPENAI = {"message", "type", "param", "code", "what", "got", "allowed", "fix"}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
}

# path, body, what the error must name
TABLE: list[tuple[str, Any, str]] = [
    *((path, b"{", "not JSON") for path in APIS),
    *((path, b"[]", "not an object") for path in APIS),
    *((path, b"\xff\xfe", "not JSON") for path in APIS),
    (CHAT, b'{"messages": [{"role": "user", "content": "\xff"}]}', "not JSON"),
    *((path, {}, field) for path, field in zip(APIS, ("messages", "prompt", "input", "messages"))),  # noqa: B905
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [7]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user"}, None]}, "messages[1]"),
    (COMPLETIONS, {"prompt": 7}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": {}}, "prompt"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": ["hi"]}, "input[0]"),
    (MESSAGES, {"messages": ["hi"]}, "messages[0]"),
    (CHAT, GOOD[CHAT] | {"max_tokens": -1}, "max_tokens"),
    (CHAT, GOOD[CHAT] | {"max_tokens": "many"}, "max_tokens"),
    (CHAT, GOOD[CHAT] | {"max_tokens": True}, "max_tokens"),
    (CHAT, GOOD[CHAT] | {"max_completion_tokens": 1.5}, "max_completion_tokens"),
    (COMPLETIONS, GOOD[COMPLETIONS] | {"max_tokens": -5}, "max_tokens"),
    (RESPONSES, GOOD[RESPONSES] | {"max_output_tokens": -1}, "max_output_tokens"),
    (MESSAGES, GOOD[MESSAGES] | {"max_tokens": -1}, "max_tokens"),
    (CHAT, GOOD[CHAT] | {"conversation_id": 7}, "conversation_id"),
    (CHAT, GOOD[CHAT] | {"session_id": "x" * 10_000}, "session_id"),
    (CHAT, GOOD[CHAT] | {"metadata": {"conversation_id": ["x"]}}, "metadata.conversation_id"),
    (CHAT, b'{"messages": [{}], "deep": ' + b"[" * 300 + b"]" * 300 + b"}", "250 levels"),
]


@pytest.mark.parametrize(("path", "body", "named"), TABLE)
async def test_bad_body_is_a_400_that_names_it(
    model: Path, path: str, body: Any, named: str
) -> None:
    """Status, shape and the field; no engine is asked; the next request is served."""
    async with running_fleet(model) as fleet:
        reply = await fleet.post(body, path=path)
        assert reply.status == 400
        error = reply.body["error"]
        assert set(error) == OPENAI
        assert named in error["message"]
        assert fleet.prefills[0].requests == []
        await _is_well(fleet)


async def _is_well(fleet: Fleet) -> None:
    reply = await fleet.post({"model": MODEL, **GOOD[CHAT], "max_tokens": 2})
    assert reply.status == 200


@pytest.mark.parametrize("header", [CONVERSATION_HEADER, SESSION_HEADER])
@pytest.mark.parametrize("size", [257, 10_000])
async def test_long_id_is_a_400(model: Path, header: str, size: int) -> None:
    """Ids have a limit; the error names the header."""
    async with running_fleet(model) as fleet:
        reply = await fleet.post(GOOD[CHAT], headers={header: "x" * size})
        assert (reply.status, reply.body["error"]["param"]) == (400, header)
        await _is_well(fleet)


async def raw(fleet: Fleet, data: bytes) -> bytes:
    """What the router answers to these bytes."""
    host, port = fleet.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


BODY = json.dumps(GOOD[CHAT]).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        HEAD + b"%d\r\nX-Conversation-ID: a\rInjected: 1\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"%d\r\nX-Conversation-ID: a\0b\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"%d\r\nX-Long: %s\r\n\r\n" % (len(BODY), b"x" * 100_000) + BODY,
        HEAD + b"many\r\n\r\n" + BODY,
        b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 100_000),
    ],
    ids=["no_http", "injected", "nul", "long_header", "no_length", "long_path"],
)
async def test_what_is_no_http_request_is_a_400_in_the_same_shape(model: Path, data: bytes) -> None:
    """Broken heads never reach a handler; the answer is JSON all the same."""
    async with running_fleet(model) as fleet:
        head, _, body = (await raw(fleet, data)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4") or head.startswith(b"HTTP/1.0 4")
        assert set(json.loads(body)["error"]) == OPENAI
        await _is_well(fleet)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/conversations//end", 404),
    ],
)
async def test_wrong_route(model: Path, method: str, path: str, status: int) -> None:
    """What there is none of is told with what there is."""
    async with (
        running_fleet(model) as fleet,
        fleet.session.request(method, fleet.url + path) as reply,
    ):
        assert reply.status == status
        assert CHAT in (await reply.json())["error"]["allowed"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [
    *("messages", "prompt", "input", "system", "instructions", "tools", "metadata", "n", "stream"),
    *("max_tokens", "session_id", "vllm_xargs", "kv_transfer_params", "content", "role", "type"),
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(APIS)),
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5),
)
def test_any_json_object_is_parsed_or_refused(path: str, body: dict[str, Any]) -> None:
    """Whatever the fields hold: a refusal, or a history and legs; no other error."""
    api = APIS[path]
    refused = None
    try:
        parsed = parse_request(api, json.dumps(body).encode())
    except RequestFailed as failure:
        refused = failure
    if refused is not None:
        assert refused.status == 400
        return
    api.why_direct(parsed)
    api.shape(parsed)
    if api.history is not None:
        api.history(parsed)


@pytest.mark.parametrize("path", APIS)
async def test_odd_content_is_left_to_the_engine(model: Path, path: str) -> None:
    """Parts, nulls and unknown roles reach the engines as they are."""
    async with running_fleet(model) as fleet:
        odd = [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": None}}]},
            {"role": "tool", "content": "7", "tool_call_id": "x"},
            {"role": "user", "content": "b"},
        ]
        field = {COMPLETIONS: "prompt", RESPONSES: "input"}.get(path, "messages")
        value = [1, 2, 3] if path == COMPLETIONS else odd
        body = {"model": MODEL, field: value, "max_tokens": 2, "max_output_tokens": 2}
        await fleet.post(body, path=path)
        assert fleet.prefills[0].requests[0].body[field] == value
