"""The bodies of both legs, and whether what an engine returned may be sent on. Pure."""

from collections.abc import Mapping
from typing import Any

import orjson

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, PIN, RECEIPT, transfer_params_problem
from runtime.router.apis import Api, Body
from runtime.router.failure import RequestFailed, bad_request

_MOST_PARTS, _LARGE_BYTES = 100_000, 256 * 1024


def parse_request(api: Api, raw: bytes) -> Body:
    """Read a client's request.

    Raises:
        RequestFailed: 400; not JSON, not an object, or no leg can be made of it.
    """
    # Millions of them would hold up everyone for seconds.
    parts = raw.count(b"{") + raw.count(b"[") if len(raw) > _LARGE_BYTES else 0
    if parts > _MOST_PARTS:
        raise bad_request(
            "the request body has too many parts",
            got=f"{parts} objects and lists",
            allowed=f"at most {_MOST_PARTS}",
        )
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(
            "the request body is not JSON", got=str(error), allowed="one JSON object"
        ) from error
    if not isinstance(body, dict):
        raise bad_request(
            "the request body is not an object", got=type(body).__name__, allowed="one JSON object"
        )
    api.check(body)
    for field in api.length_fields:
        value = body.get(field)
        if value is not None and (type(value) is not int or value < 0):
            raise bad_request(
                f"{field} is no count of tokens",
                got=repr(value)[:100],
                allowed=f"{field}: an integer >= 0",
                param=field,
            )
    _drop_smuggled(body)
    return body


def _drop_smuggled(body: Body) -> None:
    """vLLM merges `vllm_xargs` into the place where it keeps kv_transfer_params."""
    body.pop(KV_PARAMS, None)
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and KV_PARAMS in extra:
        body["vllm_xargs"] = {name: extra[name] for name in extra if name != KV_PARAMS}


def prefill_body(api: Api, body: Mapping[str, Any], handle: Mapping[str, Any] | None) -> bytes:
    """The request that makes P compute the prompt and nothing more.

    Args:
        api: the client's.
        body: the client's request.
        handle: what D left of the last turn; None for a cold prefill.
    """
    leg = {name: value for name, value in body.items() if name not in api.not_for_prefill}
    leg |= api.one_token
    api.adjust_prefill(leg)
    leg[KV_PARAMS] = COLD_PREFILL if handle is None else handle
    return _dumped(leg)


def decode_body(body: Mapping[str, Any], p_dict: Mapping[str, Any], *, pin: bool) -> bytes:
    """The request that makes D read P's blocks and generate.

    Args:
        body: the client's request.
        p_dict: P's kv_transfer_params; all but the receipt goes on as it is.
        pin: whether D may keep the blocks for a next turn.
    """
    params = {name: value for name, value in p_dict.items() if name != RECEIPT}
    if not pin:
        params[PIN] = False
    return _dumped({**body, KV_PARAMS: params})


def direct_body(body: Mapping[str, Any]) -> bytes:
    """The client's request for a D that computes the prompt itself."""
    return _dumped(body)


def _dumped(leg: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(leg)
    except TypeError as error:  # orjson reads deeper nesting than it writes
        raise _not_writable(error) from error


def _not_writable(error: Exception) -> RequestFailed:
    return bad_request(
        "the request body cannot be passed on", got=str(error), allowed="at most 250 levels"
    )


def p_dict_problem(params: Any, block_size_tokens: int) -> str | None:
    """Say why D must not see this P dict; None when it may."""
    if params is None:
        return "the reply carries no kv_transfer_params"
    problem = transfer_params_problem(params, block_size_tokens=block_size_tokens)
    if problem is None and params["do_remote_prefill"] is not True:
        return "do_remote_prefill must be true in a prefill node's reply"
    return problem


def handle_problem(params: Any, block_size_tokens: int) -> str | None:
    """Say why this handle must not be stored; None when it may."""
    problem = transfer_params_problem(params, block_size_tokens=block_size_tokens)
    if problem is None and params["do_remote_decode"] is not True:
        return "do_remote_decode must be true in a decode node's reply"
    return problem
