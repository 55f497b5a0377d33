"""A client's request as a turn, and what its reply tells of the turn."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from runtime.contract.http import (
    CONVERSATION_HEADER,
    DECODE_RECEIPT_HEADER,
    PATH_HEADER,
    PIN_HEADER,
    RECEIPT_HEADER,
    REUSE_HEADER,
    SESSION_HEADER,
    TIMING_HEADER,
)
from runtime.router.answer import Turn
from runtime.router.apis import Api
from runtime.router.auth import Caller
from runtime.router.conversation import MAX_ID_CHARACTERS
from runtime.router.exchange import Request
from runtime.router.failure import bad_request


def turn_of(
    api: Api, body: dict[str, Any], size_bytes: int, request: Request, caller: Caller
) -> Turn:
    headers = request.headers
    is_on = headers.get(REUSE_HEADER, "").lower() != "off"
    hint = body.get("prompt_cache_key")
    return Turn(
        api=api,
        body=body,
        size_bytes=size_bytes,
        authorization=headers.get("Authorization"),
        tenant=caller.tenant,
        conversation=_conversation(request, body),
        hint=hint[:MAX_ID_CHARACTERS] if isinstance(hint, str) and hint else None,
        takes=is_on,
        leaves=is_on and headers.get(PIN_HEADER, "").lower() != "off",
    )


def _conversation(request: Request, body: dict[str, Any]) -> str | None:
    """The client's id, from the first place that has one."""
    for name, value in _places(request.headers, body):
        if value in (None, ""):
            continue
        if not isinstance(value, str) or len(value) > MAX_ID_CHARACTERS:
            told = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
            raise bad_request(
                f"{name} is no conversation id",
                got=told,
                allowed=f"{name}: a string of 1..{MAX_ID_CHARACTERS} characters",
                param=name,
            )
        return value
    return None


def _places(headers: Mapping[str, str], body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where an id may stand, and what stands there."""
    for name in (CONVERSATION_HEADER, SESSION_HEADER):
        yield name, headers.get(name)
    for name in ("conversation_id", "session_id"):
        yield name, body.get(name)
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        yield "metadata.conversation_id", metadata.get("conversation_id")


def turn_headers(turn: Turn, *, is_debug: bool) -> dict[str, str]:
    timing = ", ".join(f"{name};dur={taken_s * 1000:.2f}" for name, taken_s in turn.stages.items())
    headers: dict[str, str] = {PATH_HEADER: turn.path, TIMING_HEADER: timing}
    if is_debug:
        for name, receipt in (
            (RECEIPT_HEADER, turn.receipt),
            (DECODE_RECEIPT_HEADER, turn.decode_receipt),
        ):
            if receipt is not None:
                headers[name] = orjson.dumps(receipt.to_dict()).decode()
    return headers
