"""POST /v1/chat/completions of the mock engine."""

from collections.abc import Iterator, Sequence
from typing import Any

from runtime.engine_api import KV_PARAMS
from runtime.local.mock_replies import (
    Body,
    Dialect,
    Event,
    Finish,
    Job,
    Result,
    bad_request,
    check_lengths,
    wants_usage,
)
from runtime.local.mock_tokens import Choice, MockTokens


class Chat(Dialect):
    """Whole and streamed chat completions."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"

    def check(self, body: Body) -> None:
        if not body.get("messages"):
            raise bad_request("messages: Field required")
        check_lengths(body, "max_completion_tokens" if _newer(body) else "max_tokens")

    def prompts(self, body: Body, tokens: MockTokens) -> list[list[int]]:
        return [tokens.prompt_ids(body["messages"])]

    def answer_tokens(self, body: Body) -> int:
        return int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)

    def ranked(self, body: Body) -> int:
        return int(body.get("top_logprobs") or 0) if body.get("logprobs") else 0

    def whole(
        self, jobs: Sequence[Job], tokens: MockTokens, results: Sequence[Result]
    ) -> dict[str, Any]:
        (job,), (result,) = jobs, results
        ids = job.ids
        text = tokens.text(ids)
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text},
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

    def events(self, jobs: Sequence[Job], tokens: MockTokens, finish: Finish) -> Iterator[Event]:
        """Role chunk, one chunk per token, usage; the last token's has the result."""
        (job,) = jobs
        kind = "chat.completion.chunk"
        starts = [
            {"index": at, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            for at in range(job.answer_count)
        ]
        ids = {"prompt_token_ids": job.prompt} if job.wants_ids else {}
        yield None, job.frame(kind, starts, **{KV_PARAMS: None}, **ids)
        for index in range(job.answer_count):
            for entry in _token_entries(job, tokens, index):
                result: Result = None
                if entry["finish_reason"] is not None and index + 1 == job.answer_count:
                    result = finish(job)
                    # Of several answers nobody could tell whose it is.
                    result = result if job.answer_count == 1 else None
                yield None, job.frame(kind, [entry], **{KV_PARAMS: result})
        if wants_usage(job.body):
            yield None, job.frame(kind, [], usage=job.usage)
        yield None, None


def _newer(body: Body) -> bool:
    return body.get("max_completion_tokens") is not None


def _token_entries(job: Job, tokens: MockTokens, index: int) -> Iterator[dict[str, Any]]:
    pairs = zip(job.choices, tokens.pieces(job.ids), strict=True)
    for at, (choice, piece) in enumerate(pairs, start=1):
        yield {
            "index": index,
            "delta": {"content": piece},
            "logprobs": _logprobs(job, tokens, [choice]),
            "finish_reason": "length" if at == len(job.choices) else None,
            "token_ids": [choice.token_id] if job.wants_ids else None,
        }


def _logprobs(job: Job, tokens: MockTokens, choices: list[Choice]) -> dict[str, Any] | None:
    if not job.body.get("logprobs"):
        return None
    return {"content": [tokens.logprob_entry(choice) for choice in choices]}
