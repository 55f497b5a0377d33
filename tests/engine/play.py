"""Plays turns leg by leg against the engines themselves, and compares answers.

Handles and P dicts go to the engines as they are, so that only the connector stands
between a wrong one and a wrong answer.
"""

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from runtime.engine_api import (
    COLD_PREFILL,
    KV_PARAMS,
    RECEIPT,
    RELEASE_PATH,
    Receipt,
    parse_metrics,
)

ANSWER_TOKENS = 48
LOGPROB_TOLERANCE = 1e-3
KV_USAGE = "vllm:kv_cache_usage_perc"

_SILENT = Receipt(0, 0, 0, 0, "none_offered")

Message = dict[str, Any]
Params = dict[str, Any]
Asked = Sequence[Message] | Sequence[int]
"""A chat's messages, or the token ids of a completion's prompt."""


class LegRefused(Exception):
    """An engine answered with another status than 200.

    Args:
        status: its status.
        body: its reply.
    """

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status, self.body = status, body


@dataclass(frozen=True)
class Prefilled:
    """What P did.

    Attributes:
        prompt_ids: the prompt's tokens.
        params: the P dict, without its receipt.
    """

    prompt_ids: list[int]
    params: Params
    receipt: Receipt


@dataclass(frozen=True)
class Answer:
    """What D generated.

    Attributes:
        prompt_ids: the prompt's tokens.
        token_ids: of the answer, length n.
        logprobs: of the chosen tokens, length n.
        top_two: the two best logprobs at each position, length n.
        handle: without its receipt; None when D gave none.
        receipt: what D did with the P dict; None on a plain request.
    """

    text: str
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    top_two: list[tuple[float, float]]
    handle: Params | None
    receipt: Receipt | None

    @property
    def held_ids(self) -> list[int]:
        """Tokens whose KV D holds: all but the last."""
        return (self.prompt_ids + self.token_ids)[:-1]


@dataclass
class PairClient:
    """A client of one prefill and one decode server.

    Attributes:
        given: handles and P dicts that the engines gave out, as (owner's URL, dict).
    """

    session: aiohttp.ClientSession
    prefill_url: str
    decode_url: str
    model: str
    given: list[tuple[str, Params]] = field(default_factory=list)

    async def post(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One request: a completion when the body has a prompt, else a chat turn.

        Raises:
            LegRefused: the status is not 200.
        """
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        headers = {"X-Request-Id": uuid.uuid4().hex, "Content-Type": "application/json"}
        data = io.BytesIO(json.dumps(body).encode())
        async with self.session.post(f"{url}{path}", data=data, headers=headers) as reply:
            read: dict[str, Any] = await reply.json(content_type=None)
            if reply.status != 200:
                raise LegRefused(reply.status, read)
            return read

    def _body(self, asked: Asked, salt: str, **more: Any) -> dict[str, Any]:
        field_name = "prompt" if isinstance(asked[0], int) else "messages"
        body = {"model": self.model, field_name: list(asked), "temperature": 0}
        return body | {"cache_salt": salt, "ignore_eos": True, "return_token_ids": True} | more

    async def prefill(
        self, asked: Asked, *, salt: str, handle: Mapping[str, Any] | None = None, **more: Any
    ) -> Prefilled:
        """The P leg, with the handle as it is, if any."""
        body = self._body(asked, salt, max_tokens=1, **more)
        reply = await self.post(self.prefill_url, body | {KV_PARAMS: dict(handle or COLD_PREFILL)})
        params = reply[KV_PARAMS]
        # A stock engine says nothing of what it did.
        receipt = Receipt.from_dict(params.pop(RECEIPT, None)) or _SILENT
        self.given.append((self.prefill_url, params))
        return Prefilled(_prompt_ids(reply), params, receipt)

    async def decode(
        self,
        asked: Asked,
        *,
        salt: str,
        params: Mapping[str, Any] | None,
        max_tokens: int = ANSWER_TOKENS,
        **more: Any,
    ) -> Answer:
        """The D leg; without params D computes the prompt itself and keeps nothing."""
        body = self._body(asked, salt, max_tokens=max_tokens, **more)
        body |= {"logprobs": 2} if "prompt" in body else {"logprobs": True, "top_logprobs": 2}
        if params is not None:
            body[KV_PARAMS] = dict(params)
        reply = await self.post(self.decode_url, body)
        handle: Params = reply.get(KV_PARAMS) or {}
        receipt = Receipt.from_dict(handle.pop(RECEIPT, None))
        if handle:
            self.given.append((self.decode_url, handle))
        return _answer(reply, handle or None, receipt)

    async def turn(
        self,
        asked: Asked,
        *,
        salt: str,
        handle: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> tuple[Prefilled, Answer]:
        """Both legs."""
        prefilled = await self.prefill(asked, salt=salt, handle=handle)
        answer = await self.decode(asked, salt=salt, params=prefilled.params, **more)
        return prefilled, answer

    async def cold(self, asked: Asked, **more: Any) -> Answer:
        """The answer that owes nothing to anyone: D alone, under a salt of its own."""
        return await self.decode(asked, salt=uuid.uuid4().hex, params=None, **more)

    async def release(self, url: str, params: Mapping[str, Any]) -> int:
        """Give a handle or P dict back to its owner; returns the status."""
        async with self.session.post(f"{url}{RELEASE_PATH}", json={KV_PARAMS: params}) as reply:
            return reply.status

    async def release_all(self) -> None:
        """Give back everything that was given; what was read already is not touched."""
        while self.given:
            assert await self.release(*self.given.pop()) == 202

    async def metric(self, url: str, name: str) -> float:
        """One value of an engine's /metrics."""
        async with self.session.get(f"{url}/metrics") as reply:
            return parse_metrics(await reply.text(), [name])[name]


def _prompt_ids(reply: Mapping[str, Any]) -> list[int]:
    ids: list[int] = reply.get("prompt_token_ids") or reply["choices"][0]["prompt_token_ids"]
    return ids


def _answer(reply: Mapping[str, Any], handle: Params | None, receipt: Receipt | None) -> Answer:
    choice = reply["choices"][0]
    told = choice["logprobs"]
    if "content" in told:
        text = choice["message"]["content"] or ""
        logprobs = [entry["logprob"] for entry in told["content"]]
        tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in told["content"]]
    else:
        text, logprobs = choice["text"], told["token_logprobs"]
        tops = [list(entry.values()) for entry in told["top_logprobs"]]
    best = [sorted(top, reverse=True) for top in tops]
    return Answer(
        text=text,
        prompt_ids=_prompt_ids(reply),
        token_ids=choice["token_ids"],
        logprobs=logprobs,
        top_two=[(top[0], top[1]) for top in best],
        handle=handle,
        receipt=receipt,
    )


def difference(answer: Answer, cold: Answer) -> int | None:
    """Position of the first token or logprob that a cold run would not give; None if none.

    A position where the cold run's best two are within the tolerance is a tie: the
    comparison ends there.
    """
    at, is_tie = first_difference(answer, cold)
    return None if is_tie else at


def first_difference(answer: Answer, cold: Answer) -> tuple[int | None, bool]:
    """(position of the first difference or None, whether it is a tie)."""
    for at, (mine, theirs) in enumerate(zip(answer.token_ids, cold.token_ids, strict=True)):
        if mine != theirs:
            best, second = cold.top_two[at]
            return at, best - second <= LOGPROB_TOLERANCE
        if abs(answer.logprobs[at] - cold.logprobs[at]) > LOGPROB_TOLERANCE:
            return at, False
    return None, False
