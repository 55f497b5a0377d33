"""What all of the mock engine's endpoints share: the request, how a reply is made."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from runtime.engine_api import KV_PARAMS
from runtime.local.mock_tokens import Choice, MockTokens

Body = Mapping[str, Any]
Result = dict[str, Any] | None
"""The kv_transfer_params of a reply."""

Finish = Callable[["Job"], Result]
"""Called when a job's last token is there."""

Event = tuple[str | None, dict[str, Any] | None]
"""Name of a server-sent event and its data; None instead of data is `[DONE]`."""


class Refused(Exception):
    """A request that the engine does not serve.

    Args:
        status: HTTP status.
        kind: vLLM's error type.
        message: says why.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class Job:
    """One prompt being served."""

    body: Body
    id: str
    internal_id: str
    prompt: list[int]
    choices: list[Choice]

    @property
    def params(self) -> dict[str, Any]:
        """The request's kv_transfer_params; empty when it has none."""
        return self.body.get(KV_PARAMS) or {}

    @property
    def ids(self) -> list[int]:
        """Token ids of the answer."""
        return [choice.token_id for choice in self.choices]

    @property
    def usage(self) -> dict[str, int]:
        """Token counts; those of all n answers together."""
        return usage_of([self])

    @property
    def wants_ids(self) -> bool:
        """Whether token ids were asked for."""
        return bool(self.body.get("return_token_ids"))

    @property
    def answer_count(self) -> int:
        """n."""
        return int(self.body.get("n") or 1)

    def frame(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The fields that replies and chunks of chat and completions share."""
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.body.get("model"),
            "choices": choices,
            **more,
        }


class Dialect(ABC):
    """One endpoint that makes tokens: how it is asked, and how it answers.

    Attributes:
        path: where requests are posted.
        id_prefix: of a reply's id.
    """

    path: ClassVar[str]
    id_prefix: ClassVar[str]

    @abstractmethod
    def check(self, body: Body) -> None:
        """Refuse what vLLM refuses.

        Raises:
            Refused: with vLLM's status and words, or near them.
        """

    @abstractmethod
    def prompts(self, body: Body, tokens: MockTokens) -> list[list[int]]:
        """Token ids of each prompt; all endpoints but completions have one."""

    @abstractmethod
    def answer_tokens(self, body: Body) -> int:
        """How many tokens to generate."""

    def ranked(self, body: Body) -> int:
        """How many of the best tokens to name at each position."""
        return 0

    def reply_id(self, request_id: str) -> str:
        """Id of the reply, made from the header X-Request-Id."""
        return f"{self.id_prefix}{request_id}"

    @abstractmethod
    def whole(
        self, jobs: Sequence[Job], tokens: MockTokens, results: Sequence[Result]
    ) -> dict[str, Any]:
        """A reply that is not streamed.

        Args:
            jobs: one for each prompt.
            tokens: names the tokens.
            results: kv_transfer_params, one for each job.
        """

    @abstractmethod
    def events(self, jobs: Sequence[Job], tokens: MockTokens, finish: Finish) -> Iterator[Event]:
        """A streamed reply; calls `finish` for each job just before its last token."""

    def error(self, status: int, kind: str, message: str) -> dict[str, Any]:
        """Body of an error."""
        return error_body(status, kind, message)


def error_body(status: int, kind: str, message: str) -> dict[str, Any]:
    """An error in vLLM's OpenAI shape."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def bad_request(message: str) -> Refused:
    """HTTP 400 in vLLM's words."""
    return Refused(400, "BadRequestError", message)


def encoded(event: Event) -> bytes:
    """An event as it is sent."""
    name, data = event
    first = f"event: {name}\n".encode() if name else b""
    return first + b"data: " + (b"[DONE]" if data is None else orjson.dumps(data)) + b"\n\n"


def usage_of(jobs: Sequence[Job]) -> dict[str, int]:
    """Token counts of all prompts and all their answers."""
    prompt_tokens = sum(len(job.prompt) for job in jobs)
    answer_tokens = sum(len(job.choices) * job.answer_count for job in jobs)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
        "completion_tokens": answer_tokens,
    }


def carries_result(event: Event) -> bool:
    """Whether a client that has got this event has the kv_transfer_params."""
    data = event[1] or {}
    return bool(data.get(KV_PARAMS) or (data.get("response") or {}).get(KV_PARAMS))


def wants_usage(body: Body) -> bool:
    """Whether a stream of chat or completions ends with the token counts."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def check_lengths(body: Body, limit: str) -> None:
    """Refuse the combinations of length fields that vLLM refuses.

    Raises:
        Refused: they cannot be meant.
    """
    count = body.get(limit)
    if count is not None and (not isinstance(count, int) or count < 0):
        raise bad_request(f"{limit} must be at least 1, got {count!r}.")
    least = body.get("min_tokens") or 0
    if count is not None and least > count:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={count}, got {least}."
        )
    if body.get("stream_options") and not body.get("stream"):
        raise bad_request("Stream options can only be defined when `stream=True`.")
