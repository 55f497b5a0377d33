"""One turn over HTTP."""

import re
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
    TIMING_HEADER,
)
from runtime.engine_api import Receipt

_ERROR_CHARS = 500
_KEEP_S = 4.0
_READ_BYTES = 2**20
_DONE = b"[DONE]"
_TOKENS = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Where a delta holds what the model has said; any of them ends TTFT."""
_TIMING = re.compile(r"([\w-]+);dur=(\d+(?:\.\d+)?)")


class _TurnFailed(Exception):
    """The reply says that the turn failed."""


class _Left(Exception):
    """The client has left in mid-answer, as planned."""


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
    cached_tokens: int | None = None
    router_ms: dict[str, float] = field(default_factory=dict)
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
            # vLLM leaves the details out when it is not started to tell them.
            if (details := usage.get("prompt_tokens_details")) is not None:
                self.cached_tokens = int(details.get("cached_tokens") or 0)
        for choice in event.get("choices") or ():
            ids = choice.get("token_ids") or ()
            delta = choice.get("delta") or {}
            content = delta.get("content") or ""
            if self.first_token_s is None and (ids or any(map(delta.get, _TOKENS))):
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
    """The chat request of a turn, as JSON.

    Tools are sent with the choice `none`: they are in the prompt, and the answer stays the
    text that it is, on servers with and without a parser of tool calls.
    Source: vLLM 0.32 and 0.33, openai/chat_completion; `auto` is refused without a parser.
    """
    body: dict[str, Any] = {
        "model": request.model,
        "messages": list(request.messages),
        "max_tokens": request.answer_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
        "cache_salt": request.conversation_key,
    }
    if request.allowed_token_ids:
        body["allowed_token_ids"] = list(request.allowed_token_ids)
    if request.tools:
        body |= {"tools": list(request.tools), "tool_choice": "none"}
    return body


def request_headers(request: TurnRequest) -> dict[str, str]:
    """The headers of a turn; the one-way arm switches reuse off."""
    headers = {
        "Content-Type": "application/json",
        CONVERSATION_HEADER: request.conversation_key,
        DEBUG_HEADER: "1",
    }
    return headers | ({REUSE_HEADER: "off"} if request.arm == "one_way" else {})


def open_session(api_key: str | None = None) -> aiohttp.ClientSession:
    """A session for as many turns at a time as are started.

    Connections are kept less long than routers and load balancers keep them, so that no
    turn is sent into one that is being closed.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S)
    return aiohttp.ClientSession(headers=headers, connector=connector, read_bufsize=_READ_BYTES)


async def run_turn(
    session: aiohttp.ClientSession, url: str, request: TurnRequest, began_s: float = 0.0
) -> TurnResult:
    """Send one turn and read its whole answer; failures are results, not exceptions.

    Args:
        session: see `open_session`.
        url: the router's address, without a path.
        request: the turn.
        began_s: `perf_counter()` when the pass began; its moments count from there.
    """
    reply = _Reply()
    # Encoded first: a long history's JSON is no part of the TTFT.
    body, headers = orjson.dumps(request_body(request)), request_headers(request)
    outcome: Outcome = "errored"
    error: str | None
    start_s = perf_counter()
    try:
        async with session.post(
            f"{url.rstrip('/')}/v1/chat/completions",
            data=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=request.timeout_s),
        ) as response:
            await _read(response, reply, request.abort_after_tokens)
    except _Left:
        outcome, error = "aborted", None
    except TimeoutError:
        error = f"timeout after {request.timeout_s:g} s"
    except _TurnFailed as failure:
        error = str(failure)
    except aiohttp.ClientError as failure:
        error = f"connection error: {failure!r}"
    else:
        error = reply.gap(request.answer_tokens)
        outcome = "successful" if error is None else "incomplete"
    return _result(request, reply, outcome, error, start_s, began_s)


async def _read(
    response: aiohttp.ClientResponse, reply: _Reply, leave_after_tokens: int | None
) -> None:
    if response.status != 200:
        shown = (await response.text(errors="replace"))[:_ERROR_CHARS]
        raise _TurnFailed(f"HTTP {response.status}: {shown}")
    reply.receipt = _receipt(response.headers.get(RECEIPT_HEADER))
    reply.path = response.headers.get(PATH_HEADER)
    timing = _TIMING.findall(response.headers.get(TIMING_HEADER, ""))
    reply.router_ms = {name: float(told_ms) for name, told_ms in timing}
    splitter = EventSplitter()
    async for chunk in response.content.iter_any():
        arrived_s = perf_counter()
        for data in splitter.feed(chunk):
            reply.take(data, arrived_s)
            if leave_after_tokens and len(reply.token_ids) >= leave_after_tokens:
                raise _Left  # a reply left unread closes its connection: the router sees it
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
    request: TurnRequest,
    reply: _Reply,
    outcome: Outcome,
    error: str | None,
    start_s: float,
    began_s: float,
) -> TurnResult:
    ended_s = perf_counter()

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
        is_again=request.is_again,
        is_edited=request.is_edited,
        point=request.point,
        repeat=request.repeat,
        block=request.block,
        think_s=request.think_s,
        started_s=start_s - began_s,
        ended_s=ended_s - began_s,
        cached_tokens=reply.cached_tokens,
        router_ms=reply.router_ms,
    )
