"""The bodies of both legs, and the order in which nodes are tried. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, PIN, RECEIPT, transfer_params_problem
from runtime.router.failure import bad_request

Body = dict[str, Any]

_NOT_FOR_PREFILL = frozenset(
    {
        "stop",
        "min_tokens",
        "max_completion_tokens",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "return_token_ids",
        KV_PARAMS,
    }
)
"""Fields that would reject, prolong or fatten a one-token prefill request."""


def parse_request(raw: bytes) -> Body:
    """Read a client's chat request.

    Raises:
        RequestFailed: 400; not JSON, not an object, or without a list of messages.
    """
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
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request(
            "the request has no messages",
            got=f"messages is {'empty' if messages == [] else type(messages).__name__}",
            allowed="messages: a non-empty list",
        )
    _drop_smuggled(body)
    return body


def _drop_smuggled(body: Body) -> None:
    """vLLM merges `vllm_xargs` into the place where it keeps kv_transfer_params."""
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and KV_PARAMS in extra:
        body["vllm_xargs"] = {name: extra[name] for name in extra if name != KV_PARAMS}


def asks_for_several_answers(body: Mapping[str, Any]) -> bool:
    """Whether n is not 1, or beams: the children of one request would read a single P dict."""
    return body.get("n") not in (None, 1) or bool(body.get("use_beam_search"))


def prefill_body(body: Mapping[str, Any], handle: Mapping[str, Any] | None) -> Body:
    """The request that makes P compute the prompt and nothing more.

    Args:
        body: the client's request.
        handle: what D left of the last turn; None for a cold prefill.
    """
    leg = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
    leg |= {"stream": False, "max_tokens": 1}
    if "n" in leg:
        leg["n"] = 1
    leg[KV_PARAMS] = dict(COLD_PREFILL if handle is None else handle)
    return leg


def decode_body(body: Mapping[str, Any], p_dict: Mapping[str, Any], *, pin: bool) -> Body:
    """The request that makes D read P's blocks and generate.

    Args:
        body: the client's request.
        p_dict: P's kv_transfer_params; all but the receipt goes on as it is.
        pin: whether D may keep the blocks for a next turn.
    """
    params = {name: value for name, value in p_dict.items() if name != RECEIPT}
    if not pin:
        params[PIN] = False
    return direct_body(body) | {KV_PARAMS: params}


def direct_body(body: Mapping[str, Any]) -> Body:
    """The client's request for a D that computes the prompt itself."""
    return {name: value for name, value in body.items() if name != KV_PARAMS}


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


class RoundRobin:
    """Nodes of one role; every call starts at the next one."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._next = 0

    def order(self, *, first: str | None = None, last: str | None = None) -> list[str]:
        """All nodes in the order in which to try them.

        Args:
            first: a node to prefer, whatever its turn.
            last: a node to try only after all others.
        """
        at, self._next = self._next, (self._next + 1) % len(self._urls)
        turned = self._urls[at:] + self._urls[:at]
        return sorted(turned, key=lambda url: (url == last) - (url == first))
