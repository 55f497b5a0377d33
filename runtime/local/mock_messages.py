"""POST /v1/messages of the mock engine: Anthropic's shapes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime.engine_api import KV_PARAMS
from runtime.local.mock_replies import Body, Dialect, Event, Finish, Job, Result, bad_request
from runtime.local.mock_tokens import MockTokens

_MAX_TOKENS = {"stop_reason": "max_tokens", "stop_sequence": None}


class Messages(Dialect):
    """Whole and streamed messages."""

    path = "/v1/messages"
    id_prefix = "chatcmpl-"  # vLLM hands on the chat reply's

    def check(self, body: Body) -> None:
        for name in ("messages", "max_tokens", "model"):
            if not body.get(name):
                raise bad_request(f"{name}: Field required")
        if not isinstance(body["max_tokens"], int) or body["max_tokens"] <= 0:
            raise bad_request("max_tokens must be positive")
        thinking = body.get("thinking") or {}
        is_prefill = (body.get(KV_PARAMS) or {}).get("do_remote_decode")
        if not is_prefill and (thinking.get("budget_tokens") or 0) >= body["max_tokens"]:
            raise bad_request("thinking.budget_tokens must be less than max_tokens")

    def prompts(self, body: Body, tokens: MockTokens) -> list[list[int]]:
        messages: list[dict[str, Any]] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _joined(body["system"])})
        for message in body["messages"]:
            messages += _as_chat(message)
        return [tokens.prompt_ids(messages)]

    def answer_tokens(self, body: Body) -> int:
        return int(body["max_tokens"])

    def whole(
        self, jobs: Sequence[Job], tokens: MockTokens, results: Sequence[Result]
    ) -> dict[str, Any]:
        (job,), (result,) = jobs, results
        reply = {
            **_head(job),
            "content": [{"type": "text", "text": tokens.text(job.ids)}],
            "stop_reason": "max_tokens",
            "usage": _usage(job, len(job.choices)),
        }
        # vLLM leaves out what is null.
        return reply if result is None else reply | {KV_PARAMS: result}

    def events(self, jobs: Sequence[Job], tokens: MockTokens, finish: Finish) -> Iterator[Event]:
        """One text block between start and stop; `message_delta` has the result."""
        (job,) = jobs
        start = {**_head(job), "content": [], **_MAX_TOKENS, "stop_reason": None}
        yield _event("message_start", message=start | {"usage": _usage(job, 0)})
        yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        result: Result = None
        for at, piece in enumerate(tokens.pieces(job.ids), start=1):
            if at == len(job.choices):
                result = finish(job)
            if piece:
                delta = {"type": "text_delta", "text": piece}
                yield _event("content_block_delta", index=0, delta=delta)
        yield _event("content_block_stop", index=0)
        more = {KV_PARAMS: result} if result else {}
        yield _event("message_delta", delta=_MAX_TOKENS, usage=_usage(job, len(job.ids)), **more)
        yield _event("message_stop")

    def error(self, status: int, kind: str, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}


def _event(name: str, **fields: Any) -> Event:
    return name, {"type": name, **fields}


def _head(job: Job) -> dict[str, Any]:
    return {"id": job.id, "type": "message", "role": "assistant", "model": job.body["model"]}


def _usage(job: Job, answered: int) -> dict[str, int]:
    return {"input_tokens": len(job.prompt), "output_tokens": answered}


def _as_chat(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message as chat messages: results of tools come before its own text."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results = [
        {"role": "tool", "content": _joined(block.get("content") or "")}
        for block in content
        if block["type"] == "tool_result"
    ]
    calls = [
        {"function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
        for block in content
        if block["type"] == "tool_use"
    ]
    text = _joined([block for block in content if block["type"] == "text"])
    own = {"role": role, "content": text, "tool_calls": calls}
    return [*results, own] if text or calls or not results else results


def _joined(content: Any) -> str:
    """Text of a string or of a list of text blocks."""
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)
