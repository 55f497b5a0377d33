"""Leg bodies and node order."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, PIN, RECEIPT
from runtime.router import legs
from runtime.router.apis import CHAT
from runtime.router.failure import RequestFailed
from runtime.router.legs import (
    handle_problem,
    p_dict_problem,
    parse_request,
)

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 64,
    "max_completion_tokens": 64,
    "min_tokens": 3,
    "stop": ["."],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "return_token_ids": True,
    "temperature": 0.5,
    "cache_salt": "s",
    KV_PARAMS: {"remote_host": "evil"},
}
DICT: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_num_tokens": 40,
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
}
HANDLE = DICT | {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_blocks_expiry_time": 500.25,
}


def prefill_body(body: dict[str, Any], handle: dict[str, Any] | None) -> Any:
    """The parsed body of a chat's prefill leg."""
    return orjson.loads(legs.prefill_body(CHAT, body, handle))


def decode_body(body: dict[str, Any], p_dict: dict[str, Any], *, pin: bool) -> Any:
    """The parsed body of a decode leg."""
    return orjson.loads(legs.decode_body(body, p_dict, pin=pin))


def test_prefill_body_asks_for_one_token_of_the_same_prompt() -> None:
    """P gets the client's request less what concerns the answer."""
    assert prefill_body(BODY, None) == {
        "model": "m",
        "messages": BODY["messages"],
        "temperature": 0.5,
        "cache_salt": "s",
        "stream": False,
        "max_tokens": 1,
        KV_PARAMS: dict(COLD_PREFILL),
    }


def test_prefill_body_carries_the_handle_as_stored() -> None:
    """The handle goes to P unchanged."""
    assert prefill_body(BODY, HANDLE)[KV_PARAMS] == HANDLE


def test_decode_body_carries_the_p_dict_less_the_receipt() -> None:
    """D gets the client's request with P's dict in place of the client's."""
    body = decode_body(BODY, DICT | {RECEIPT: {}}, pin=True)
    assert body == BODY | {KV_PARAMS: DICT}


def test_decode_body_says_when_to_pin_nothing() -> None:
    """The pin key is there, and false, exactly when no handle is wanted."""
    assert decode_body(BODY, DICT, pin=False)[KV_PARAMS] == DICT | {PIN: False}


def test_bodies_leave_the_request_alone() -> None:
    """A second attempt starts from the same request and dict."""
    body, params = dict(BODY), DICT | {RECEIPT: {}}
    prefill_body(body, HANDLE)
    decode_body(body, params, pin=False)
    assert body == BODY
    assert params == DICT | {RECEIPT: {}}


@pytest.mark.parametrize(
    ("count", "expected"), [(2, True), (1, False), (None, False), ("2", True), (2.0, True)]
)
def test_several_answers(count: Any, expected: bool) -> None:
    """Only an n of 1 makes one child, however another is written; beams are many."""
    assert CHAT.why_direct(BODY | {"use_beam_search": True})
    assert (CHAT.why_direct(BODY | {"n": count}) is not None) is expected


def test_client_params_are_dropped() -> None:
    """What a client says of KV transfers goes to no engine."""
    raw = b'{"messages": [{}], "kv_transfer_params": {"remote_host": "evil"}}'
    assert KV_PARAMS not in parse_request(CHAT, raw)


def test_params_hidden_in_xargs_are_dropped() -> None:
    """vLLM would take them for its own; what else is in there goes on."""
    raw = b'{"messages": [{}], "vllm_xargs": {"kv_transfer_params": "x", "mine": 1}}'
    assert parse_request(CHAT, raw)["vllm_xargs"] == {"mine": 1}


def test_p_dict_must_ask_to_be_pulled() -> None:
    """A P dict passes, a handle in its place does not, nor does nothing."""
    assert p_dict_problem(DICT, 32) is None
    assert "do_remote_prefill" in str(p_dict_problem(HANDLE, 32))
    assert "no kv_transfer_params" in str(p_dict_problem(None, 32))


def test_handle_must_be_meant_for_a_prefill_node() -> None:
    """A handle passes, a P dict in its place does not."""
    assert handle_problem(HANDLE, 32) is None
    assert "do_remote_decode" in str(handle_problem(DICT, 32))


def test_block_count_must_fit_the_block_size() -> None:
    """40 tokens are two blocks of 32, not of 64."""
    assert p_dict_problem(DICT, 64) is not None
    assert handle_problem(HANDLE, 64) is not None


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"{}", b'{"messages": "hi"}', b'{"messages": []}', b"\xff"]
)
def test_bad_request_bodies_are_refused(raw: bytes) -> None:
    """Not JSON, not an object, or without messages: a 400 in four parts."""
    with pytest.raises(RequestFailed) as caught:
        parse_request(CHAT, raw)
    assert caught.value.status == 400
    assert caught.value.got


def of_ids(ids: list[Any]) -> dict[str, Any]:
    """A P dict of these blocks, each full."""
    return DICT | {"remote_block_ids": [ids], "remote_num_tokens": 32 * len(ids)}


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
def test_block_ids_in_range_pass(ids: list[int]) -> None:
    """Every id that an engine can have passes."""
    assert p_dict_problem(of_ids(ids), 32) is None


@pytest.mark.parametrize(
    "bad",
    [-1, 2**31, 2**32 - 1, 2**32, 2**70, -(2**70), True, False, 1.0, "1", None, [1], {}],
    ids=repr,
)
@given(st.lists(st.integers(0, 2**31 - 1), max_size=5), st.lists(st.integers(0, 9), max_size=5))
def test_one_bad_block_id_is_refused(bad: Any, before: list[int], after: list[int]) -> None:
    """One that no engine has, wherever it stands among others, ends a stock engine."""
    problem = p_dict_problem(of_ids([*before, bad, *after]), 32)
    assert problem == "remote_block_ids must hold integers in 0..2147483647"
