"""One turn over HTTP."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp
import orjson

from runtime.bench.sse import EventSplitter
from runtime.bench.turn import Outcome, TurnRequest, TurnResult
from runtime.contract.http import (
    CONVERSATION_HEADER,
    DEBUG_HEADER,
    DECODE_RECEIPT_HEADER,
    PATH_HEADER,
    RECEIPT_HEADER,
    REUSE_HEADER,
)
from runtime.engine_api import Receipt

_ERROR_CHARS = 500
_DONE = b"[DONE]"


class _TurnFailed(Exception):
    """The reply says that the turn failed."""


@dataclass
class _Reply:
    """What has arrived of one reply."""

    receipt: Receipt | None = None
    decode_receipt: Receipt | None = None
    path: str | None = None
    first_token_s: float | None = None
    done_s: float | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top2: list[tuple[float, ...]] = field(default_factory=list)

    def take(self, data: bytes, arrived_s: float) -> None:
        """Add one event; raises _TurnFailed for an error event or an unknown shape."""
        if data == _DONE:
            self.done_s = arrived_s
            return
        try:
            self._add(orjson.loads(data), arrived_s)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            shown = data[:_ERROR_CHARS].decode("utf-8", "replace")
            raise _TurnFailed(f"unexpected event ({error!r}): {shown}") from error

    def _add(self, event: dict[str, Any], arrived_s: float) -> None:
        if event.get("error") or event.get("object") == "error":
            shown = orjson.dumps(event)[:_ERROR_CHARS].decode("utf-8", "replace")
            raise _TurnFailed(f"error event: {shown}")
        if usage := event.get("usage"):
            self.prompt_tokens = int(usage["prompt_tokens"])
        for choice in event.get("choices") or ():
            ids = choice.get("token_ids") or ()
            content = (choice.get("delta") or {}).get("content") or ""
            if self.first_token_s is None and (ids or content):
                self.first_token_s = arrived_s
            self.text.append(content)
            self.token_ids.extend(ids)
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                self.logprobs.append(float(entry["logprob"]))
                tops = sorted(
                    (float(top["logprob"]) for top in entry["top_logprobs"]), reverse=True
                )
                self.top2.append(tuple(tops[:2]))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def gap(self, answer_tokens: int) -> str | None:
        """What a stream that ended without an error still lacks; None when whole."""
        if self.done_s is None or self.finish_reason is None:
            lacks = "[DONE]" if self.done_s is None else "a finish_reason"
            return f"stream ended without {lacks} after {len(self.token_ids)} tokens"
        if len(self.token_ids) < answer_tokens:
            return f"{len(self.token_ids)} of {answer_tokens} tokens came ({self.finish_reason})"
        return None


def request_body(request: TurnRequest) -> dict[str, Any]:
    """The chat request of a turn, as JSON."""
    return {
        "model": request.model,
        "messages": list(request.messages),
        "max_tokens": request.answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logprobs": True,
        "top_logprobs": 2,
        "allowed_token_ids": list(request.allowed_token_ids),
        "ignore_eos": True,
        "cache_salt": request.conversation_key,
    }


def request_headers(request: TurnRequest) -> dict[str, str]:
    """The headers of a turn; the one-way arm switches reuse off."""
    headers = {
        "Content-Type": "application/json",
        CONVERSATION_HEADER: request.conversation_key,
        DEBUG_HEADER: "1",
    }
    return headers | ({REUSE_HEADER: "off"} if request.arm == "one_way" else {})


async def run_turn(session: aiohttp.ClientSession, url: str, request: TurnRequest) -> TurnResult:
    """Send one turn and read its whole answer; failures are results, not exceptions.

    Args:
        session: HTTP session.
        url: the router's address, without a path.
        request: the turn.
    """
    reply = _Reply()
    # Encoded first: a long history's JSON is no part of the TTFT.
    body, headers = orjson.dumps(request_body(request)), request_headers(request)
    outcome: Outcome = "errored"
    start_s = perf_counter()
    try:
        async with session.post(
            f"{url.rstrip('/')}/v1/chat/completions",
            data=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=request.timeout_s),
        ) as response:
            await _read(response, reply)
    except TimeoutError:
        error: str | None = f"timeout after {request.timeout_s:g} s"
    except _TurnFailed as failure:
        error = str(failure)
    except aiohttp.ClientError as failure:
        error = f"connection error: {failure!r}"
    else:
        error = reply.gap(request.answer_tokens)
        outcome = "successful" if error is None else "incomplete"
    return _result(request, reply, outcome, error, start_s)


async def _read(response: aiohttp.ClientResponse, reply: _Reply) -> None:
    if response.status != 200:
        shown = (await response.text(errors="replace"))[:_ERROR_CHARS]
        raise _TurnFailed(f"HTTP {response.status}: {shown}")
    reply.receipt = _receipt(response.headers.get(RECEIPT_HEADER))
    reply.path = response.headers.get(PATH_HEADER)
    splitter = EventSplitter()
    async for chunk in response.content.iter_any():
        arrived_s = perf_counter()
        for data in splitter.feed(chunk):
            reply.take(data, arrived_s)
    # D's comes last, when D has finished.
    name, _, told = splitter.last_comment.partition(b" ")
    if name == DECODE_RECEIPT_HEADER.encode():
        reply.decode_receipt = _receipt(told)


def _receipt(told: str | bytes | None) -> Receipt | None:
    try:
        return Receipt.from_dict(orjson.loads(told)) if told else None
    except ValueError:
        return None


def _result(
    request: TurnRequest, reply: _Reply, outcome: Outcome, error: str | None, start_s: float
) -> TurnResult:
    def since_start_ms(moment_s: float | None) -> float | None:
        # A failed turn has no latency: a number here would flatter or spoil the arm.
        if outcome != "successful" or moment_s is None:
            return None
        return (moment_s - start_s) * 1000

    return TurnResult(
        conversation=request.conversation,
        turn=request.turn,
        arm=request.arm,
        outcome=outcome,
        error=error,
        ttft_ms=since_start_ms(reply.first_token_s),
        e2e_ms=since_start_ms(reply.done_s),
        prompt_tokens=reply.prompt_tokens,
        text="".join(reply.text),
        token_ids=tuple(reply.token_ids),
        logprobs=tuple(reply.logprobs),
        top2=tuple(reply.top2),
        receipt=reply.receipt,
        path=reply.path,
        decode_receipt=reply.decode_receipt,
    )
