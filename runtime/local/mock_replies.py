"""What the mock engine answers, in the shapes of vLLM's chat completions."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.engine_api import KV_PARAMS
from runtime.local.mock_tokens import Choice, MockTokens


@dataclass
class Job:
    """One request being served."""

    body: Mapping[str, Any]
    id: str
    internal_id: str
    prompt: list[int]
    choices: list[Choice]

    @property
    def params(self) -> dict[str, Any]:
        """The request's kv_transfer_params; empty when it has none."""
        return self.body.get(KV_PARAMS) or {}

    @property
    def usage(self) -> dict[str, int]:
        """Token counts; those of all n answers together."""
        answer_tokens = len(self.choices) * self.answer_count
        prompt_tokens = len(self.prompt)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + answer_tokens,
            "completion_tokens": answer_tokens,
        }

    @property
    def wants_ids(self) -> bool:
        """Whether token ids were asked for."""
        return bool(self.body.get("return_token_ids"))

    @property
    def answer_count(self) -> int:
        """n."""
        return int(self.body.get("n") or 1)

    def frame(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The fields that all replies and chunks share."""
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.body.get("model"),
            "choices": choices,
            **more,
        }


def whole_reply(job: Job, tokens: MockTokens, result: dict[str, Any] | None) -> dict[str, Any]:
    """A reply that is not streamed.

    Args:
        job: the request.
        tokens: names the tokens.
        result: the kv_transfer_params to return.
    """
    ids = [choice.token_id for choice in job.choices]
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": tokens.text(ids)},
            "logprobs": _logprobs(job, tokens, job.choices),
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": ids if job.wants_ids else None,
        }
        for index in range(job.answer_count)
    ]
    return job.frame(
        "chat.completion",
        choices,
        usage=job.usage,
        prompt_token_ids=job.prompt if job.wants_ids else None,
        **{KV_PARAMS: result},
    )


def stream_chunks(
    job: Job, tokens: MockTokens, result: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """Role chunk, one chunk per token, usage; the last token's has the result."""
    kind = "chat.completion.chunk"
    starts = [
        {"index": at, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        for at in range(job.answer_count)
    ]
    ids = {"prompt_token_ids": job.prompt} if job.wants_ids else {}
    yield job.frame(kind, starts, **{KV_PARAMS: None}, **ids)
    for index in range(job.answer_count):
        for entry in _token_entries(job, tokens, index):
            is_last = entry["finish_reason"] is not None
            yield job.frame(kind, [entry], **{KV_PARAMS: result if is_last else None})
    if (job.body.get("stream_options") or {}).get("include_usage"):
        yield job.frame(kind, [], usage=job.usage)


def _token_entries(job: Job, tokens: MockTokens, index: int) -> Iterator[dict[str, Any]]:
    ids: list[int] = []
    text = ""
    for choice in job.choices:
        ids.append(choice.token_id)
        is_last = len(ids) == len(job.choices)
        whole = tokens.text(ids)
        # A token may end inside a character, which is shown with the next one.
        shown = text if whole.endswith("\ufffd") and not is_last else whole
        yield {
            "index": index,
            "delta": {"content": shown[len(text) :]},
            "logprobs": _logprobs(job, tokens, [choice]),
            "finish_reason": "length" if is_last else None,
            "token_ids": [choice.token_id] if job.wants_ids else None,
        }
        text = shown


def _logprobs(job: Job, tokens: MockTokens, choices: list[Choice]) -> dict[str, Any] | None:
    if not job.body.get("logprobs"):
        return None
    return {"content": [tokens.logprob_entry(choice) for choice in choices]}
