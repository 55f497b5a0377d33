"""POST /v1/responses of the mock engine: OpenAI's Responses shapes, nothing stored."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime.engine_api import KV_PARAMS
from runtime.local.mock_replies import (
    Body,
    Dialect,
    Event,
    Finish,
    Job,
    Refused,
    Result,
    bad_request,
)
from runtime.local.mock_tokens import MockTokens

_DEFAULT_TOKENS = 16


class Responses(Dialect):
    """Whole and streamed responses; each has one output message."""

    path = "/v1/responses"
    id_prefix = "resp_"

    def check(self, body: Body) -> None:
        if not body.get("input"):
            raise bad_request("input: Field required")
        count = body.get("max_output_tokens")
        if count is not None and (not isinstance(count, int) or count < 1):
            raise bad_request(f"max_tokens must be at least 1, got {count!r}.")
        if body.get("background"):
            raise bad_request("background can only be used when `store` is true")
        if previous := body.get("previous_response_id"):
            message = f"Response with id '{previous}' not found."
            raise Refused(404, "invalid_request_error", message)

    def prompts(self, body: Body, tokens: MockTokens) -> list[list[int]]:
        messages: list[dict[str, Any]] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        asked = body["input"]
        if isinstance(asked, str):
            messages.append({"role": "user", "content": asked})
        else:
            messages += [_as_chat(item) for item in asked]
        return [tokens.prompt_ids(messages)]

    def answer_tokens(self, body: Body) -> int:
        return int(body.get("max_output_tokens") or _DEFAULT_TOKENS)

    def reply_id(self, request_id: str) -> str:
        return f"{self.id_prefix}{uuid.uuid4().hex}"  # vLLM does not look at the header

    def whole(
        self, jobs: Sequence[Job], tokens: MockTokens, results: Sequence[Result]
    ) -> dict[str, Any]:
        (job,), (result,) = jobs, results
        message = _message(job, "completed", [_part(tokens.text(job.ids))])
        return _response(job, "incomplete", [message], result)

    def events(self, jobs: Sequence[Job], tokens: MockTokens, finish: Finish) -> Iterator[Event]:
        """Created, one text delta per token, completed; the last has the result nested."""
        (job,) = jobs
        for number, (name, fields) in enumerate(_stream(job, tokens, finish)):
            yield name, {"type": name, "sequence_number": number, **fields}


def _stream(job: Job, tokens: MockTokens, finish: Finish) -> Iterator[tuple[str, dict[str, Any]]]:
    started = _response(job, "in_progress", [], None)
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    item = _message(job, "in_progress", [])
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    yield "response.output_item.added", {"output_index": 0, "item": item}
    yield "response.content_part.added", {**place, "part": _part("")}
    result: Result = None
    for at, piece in enumerate(tokens.pieces(job.ids), start=1):
        if at == len(job.choices):
            result = finish(job)
        if piece:
            yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
    text = tokens.text(job.ids)
    done = _message(job, "completed", [_part(text)]) | {"id": item["id"]}
    yield "response.output_text.done", {**place, "text": text, "logprobs": []}
    yield "response.content_part.done", {**place, "part": _part(text)}
    yield "response.output_item.done", {"output_index": 0, "item": done}
    yield "response.completed", {"response": _response(job, "incomplete", [done], result)}


def _response(
    job: Job, status: str, output: list[dict[str, Any]], result: Result
) -> dict[str, Any]:
    usage = {
        "input_tokens": len(job.prompt),
        "output_tokens": len(job.ids),
        "total_tokens": len(job.prompt) + len(job.ids),
    }
    is_cut = status == "incomplete"
    return {
        "id": job.id,
        "object": "response",
        "created_at": int(time.time()),
        "model": job.body.get("model"),
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": job.body.get("instructions"),
        "output": output,
        "max_output_tokens": len(job.ids),
        "usage": usage if is_cut else None,
        KV_PARAMS: result,
    }


def _message(job: Job, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"id": f"msg_{job.internal_id}", "type": "message", "role": "assistant"}
    return {**head, "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _as_chat(item: Mapping[str, Any]) -> dict[str, Any]:
    """An input item as a chat message."""
    match item.get("type"):
        case "function_call":
            call = {"name": item["name"], "arguments": item["arguments"]}
            return {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
        case "function_call_output":
            return {"role": "tool", "content": item["output"]}
        case _:
            return {"role": item["role"], "content": item["content"]}
