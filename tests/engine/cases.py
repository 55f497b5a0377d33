"""Five follow-up turns whose handle does not, or not wholly, fit the prompt.

Played leg by leg against the engines themselves, with the raw handle attached, so
that only the connector stands between a wrong handle and a wrong answer.
"""

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, RECEIPT, Receipt

ANSWER_TOKENS = 48
LOGPROB_TOLERANCE = 1e-3

Message = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What D generated.

    Attributes:
        token_ids: length n.
        logprobs: of the chosen tokens, length n.
        top_two: the two best logprobs at each position, length n.
        receipt: what P did with the handle; None when it says nothing.
    """

    text: str
    token_ids: list[int]
    logprobs: list[float]
    top_two: list[tuple[float, float]]
    handle: dict[str, Any] | None
    receipt: Receipt | None


@dataclass(frozen=True)
class PairClient:
    """Plays turns against a prefill and a decode server."""

    session: aiohttp.ClientSession
    prefill_url: str
    decode_url: str
    model: str

    async def _post(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"X-Request-Id": uuid.uuid4().hex}
        async with self.session.post(
            f"{url}/v1/chat/completions", json=body, headers=headers
        ) as reply:
            reply_body: dict[str, Any] = await reply.json(content_type=None)
            assert reply.status == 200, reply_body
            return reply_body

    async def turn(
        self, messages: list[Message], *, salt: str, handle: Mapping[str, Any] | None = None
    ) -> Answer:
        """P leg (with the handle as it is, if any), then D leg, neither streamed."""
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "cache_salt": salt,
            "ignore_eos": True,
        }
        prefilled = await self._post(
            self.prefill_url,
            body | {"max_tokens": 1, KV_PARAMS: dict(handle or COLD_PREFILL)},
        )
        receipt = Receipt.from_dict(prefilled[KV_PARAMS].pop(RECEIPT, None))
        answered = await self._post(
            self.decode_url,
            body
            | {
                "max_tokens": ANSWER_TOKENS,
                "logprobs": True,
                "top_logprobs": 2,
                "return_token_ids": True,
                KV_PARAMS: prefilled[KV_PARAMS],
            },
        )
        choice = answered["choices"][0]
        entries = choice["logprobs"]["content"]
        tops = [
            sorted((top["logprob"] for top in e["top_logprobs"]), reverse=True) for e in entries
        ]
        return Answer(
            text=choice["message"]["content"],
            token_ids=choice["token_ids"],
            logprobs=[entry["logprob"] for entry in entries],
            top_two=[(top[0], top[1]) for top in tops],
            handle=answered.get(KV_PARAMS),
            receipt=receipt,
        )


@dataclass(frozen=True)
class Case:
    """One follow-up turn: the history a handle was made from, and what is asked next."""

    name: str
    first: list[Message]
    following: str
    """How `next_messages` builds the second turn."""

    def next_messages(self, answer: str, words: "Words") -> list[Message]:
        """The second turn's messages, given the first turn's answer."""
        system, user = (dict(message) for message in self.first)
        new = {"role": "user", "content": words.text(60)}
        match self.following:
            case "unedited":
                pass
            case "edited_start":
                system["content"] = words.text(3) + system["content"]
            case "edited_middle":
                half = len(user["content"]) // 2
                user["content"] = user["content"][:half] + words.text(2) + user["content"][half:]
            case "truncated":
                user["content"] = user["content"][: len(user["content"]) * 3 // 4]
                return [system, user]
            case "other_conversation":
                system["content"], user["content"] = words.text(300), words.text(400)
            case _:
                raise ValueError(self.following)
        return [system, user, {"role": "assistant", "content": answer}, new]


class Words:
    """Texts of made-up words out of the model's own vocabulary, seeded."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - texts, not secrets
        self._words = sorted(
            word[1:] for word in tokenizer.get_vocab() if word[0] == "Ġ" and word[1:].isalpha()
        )

    def text(self, count: int) -> str:
        """`count` words, each about one token."""
        return "".join(f" {word}" for word in self._rng.choices(self._words, k=count))


FOLLOW_UPS = ("unedited", "edited_start", "edited_middle", "truncated", "other_conversation")


async def play(client: PairClient, words: Words, following: str) -> tuple[Answer, Answer]:
    """Play one case; returns (answer with the raw handle, answer of a cold run)."""
    first = [
        {"role": "system", "content": words.text(300)},
        {"role": "user", "content": words.text(400)},
    ]
    case = Case(following, first, following)
    salt = uuid.uuid4().hex
    turn_1 = await client.turn(first, salt=salt)
    assert turn_1.handle is not None
    messages = case.next_messages(turn_1.text, words)
    warm = await client.turn(messages, salt=salt, handle=turn_1.handle)
    cold = await client.turn(messages, salt=uuid.uuid4().hex)
    return warm, cold


def first_difference(warm: Answer, cold: Answer) -> int | None:
    """Position of the first token or logprob that a verified reuse would not show.

    A position where the cold run's best two are within the tolerance is a tie: the
    comparison ends there.
    """
    for at, (mine, theirs) in enumerate(zip(warm.token_ids, cold.token_ids, strict=True)):
        best, second = cold.top_two[at]
        if mine != theirs:
            return None if best - second <= LOGPROB_TOLERANCE else at
        if abs(warm.logprobs[at] - cold.logprobs[at]) > LOGPROB_TOLERANCE:
            return at
    return None
