"""POST /v1/completions of the mock engine: text or token ids in, text out."""

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
    usage_of,
    wants_usage,
)
from runtime.local.mock_tokens import Choice, MockTokens

_DEFAULT_TOKENS = 16


class Completions(Dialect):
    """Whole and streamed completions of one or several prompts."""

    path = "/v1/completions"
    id_prefix = "cmpl-"

    def check(self, body: Body) -> None:
        if not body.get("prompt"):
            raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.")
        if not all(map(_is_prompt, _listed(body["prompt"]))):
            raise bad_request("prompt must be a string, token ids, or a list of these.")
        check_lengths(body, "max_tokens")

    def prompts(self, body: Body, tokens: MockTokens) -> list[list[int]]:
        return [
            tokens.encoded(prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in _listed(body["prompt"])
        ]

    def answer_tokens(self, body: Body) -> int:
        count = body.get("max_tokens")
        return _DEFAULT_TOKENS if count is None else int(count)

    def ranked(self, body: Body) -> int:
        return int(body.get("logprobs") or 0)

    def whole(
        self, jobs: Sequence[Job], tokens: MockTokens, results: Sequence[Result]
    ) -> dict[str, Any]:
        choices = [
            _choice(job, tokens, at * job.answer_count + index)
            for at, job in enumerate(jobs)
            for index in range(job.answer_count)
        ]
        # As in vLLM: the first prompt's, whose it is nobody can tell.
        more = {"usage": usage_of(jobs), KV_PARAMS: results[0]}
        return jobs[0].frame("text_completion", choices, **more)

    def events(self, jobs: Sequence[Job], tokens: MockTokens, finish: Finish) -> Iterator[Event]:
        """One chunk per token, usage; the last token's has the result of a single answer."""
        first = jobs[0]
        is_single = len(jobs) == 1 and first.answer_count == 1
        for at, job in enumerate(jobs):
            for index in range(job.answer_count):
                for entry in _entries(job, tokens, at * job.answer_count + index):
                    more = {}
                    if entry["finish_reason"] and index + 1 == job.answer_count:
                        result = finish(job)
                        more = {KV_PARAMS: result} if is_single and result else {}
                    yield None, first.frame("text_completion", [entry], **more)
        if wants_usage(first.body):
            yield None, first.frame("text_completion", [], usage=usage_of(jobs))
        yield None, None


def _listed(prompt: Any) -> list[Any]:
    """The prompts of a request, which may be one."""
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    is_list = isinstance(prompt, list) and bool(prompt)
    return is_list and all(type(token_id) is int and token_id >= 0 for token_id in prompt)


def _choice(job: Job, tokens: MockTokens, index: int) -> dict[str, Any]:
    echoed = tokens.text(job.prompt) if job.body.get("echo") else ""
    return {
        "index": index,
        "text": echoed + tokens.text(job.ids),
        "logprobs": _logprobs(job, tokens, job.choices),
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": job.ids if job.wants_ids else None,
        "prompt_token_ids": job.prompt if job.wants_ids else None,
    }


def _entries(job: Job, tokens: MockTokens, index: int) -> Iterator[dict[str, Any]]:
    echoed = tokens.text(job.prompt) if job.body.get("echo") else ""
    pieces = list(tokens.pieces(job.ids)) or [""]
    for at, piece in enumerate(pieces):
        made = job.choices[at : at + 1]
        is_first = at == 0
        yield {
            "index": index,
            "text": (echoed if is_first else "") + piece,
            "logprobs": _logprobs(job, tokens, made),
            "finish_reason": "length" if at + 1 == len(pieces) else None,
            "stop_reason": None,
            "prompt_token_ids": job.prompt if is_first and job.wants_ids else None,
            "token_ids": [choice.token_id for choice in made] if job.wants_ids else None,
        }


def _logprobs(job: Job, tokens: MockTokens, choices: list[Choice]) -> dict[str, Any] | None:
    if job.body.get("logprobs") is None:
        return None
    entries = [tokens.logprob_entry(choice) for choice in choices]
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries
        ],
        "text_offset": [0 for _ in entries],
    }
