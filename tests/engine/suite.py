"""What the router and the benchmark rely on, asked of any pair of servers.

Run against the mock engines and against vLLM, so that the mocks cannot drift away
from what they stand for.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from runtime.engine_api import (
    COLD_PREFILL,
    EXTERNAL_HIT_TOKENS,
    KV_PARAMS,
    PIN,
    RECEIPT,
    RECORD,
    RELEASE_PATH,
    Receipt,
    parse_metrics,
    transfer_params_problem,
)
from runtime.verification.record import Record

Reply = dict[str, Any]
Message = dict[str, str]

BLOCK_SIZE_TOKENS = 32
THRESHOLD_TOKENS = 64
_TIMEOUT = aiohttp.ClientTimeout(total=60)
_COUNTER_LIMIT_S = 5.0
_TEXT = " ".join(f"ship {number} left the harbour" for number in range(60))
"""A few hundred tokens under any tokenizer: more than the threshold."""


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode server with block size 32 and threshold 64.

    Attributes:
        given: handles and P dicts that the servers gave out, as (owner's URL, dict).
    """

    prefill_url: str
    decode_url: str
    model: str
    given: list[tuple[str, Reply]] = field(default_factory=list)


Check = Callable[[Pair], Awaitable[None]]


@dataclass(frozen=True)
class _Played:
    """One turn: P's reply, D's reply."""

    prefilled: Reply
    answered: Reply

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self.answered["choices"][0]["token_ids"]
        return ids

    @property
    def text(self) -> str:
        return str(self.answered["choices"][0]["message"]["content"])


class _Client:
    """Plays legs of one conversation with a salt of its own."""

    def __init__(self, pair: Pair, session: aiohttp.ClientSession) -> None:
        self._pair, self._session = pair, session
        self._salt = uuid.uuid4().hex

    def body(self, messages: list[Message], **more: Any) -> Reply:
        return {
            "model": self._pair.model,
            "messages": messages,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": self._salt,
        } | more

    async def raw(self, url: str, body: Mapping[str, Any]) -> bytes:
        async with self._session.post(
            f"{url}/v1/chat/completions", json=body, headers={"X-Request-Id": uuid.uuid4().hex}
        ) as reply:
            raw = await reply.read()
            assert reply.status == 200, raw
        for line in raw.splitlines():
            data = line.removeprefix(b"data: ")
            if data.startswith(b"{") and (params := orjson.loads(data).get(KV_PARAMS)):
                self._pair.given.append((url, params))
        return raw

    async def prefill(
        self, messages: list[Message], handle: Mapping[str, Any] | None = None
    ) -> Reply:
        body = self.body(messages, max_tokens=1) | {KV_PARAMS: dict(handle or COLD_PREFILL)}
        reply: Reply = orjson.loads(await self.raw(self._pair.prefill_url, body))
        return reply

    def decode_body(self, messages: list[Message], params: Mapping[str, Any], **more: Any) -> Reply:
        sent = {name: value for name, value in params.items() if name != RECEIPT}
        return self.body(messages, **({"max_tokens": 8, "return_token_ids": True} | more)) | {
            KV_PARAMS: sent
        }

    async def turn(
        self, messages: list[Message], handle: Mapping[str, Any] | None = None, **more: Any
    ) -> _Played:
        prefilled = await self.prefill(messages, handle)
        body = self.decode_body(messages, prefilled[KV_PARAMS], **more)
        return _Played(prefilled, orjson.loads(await self.raw(self._pair.decode_url, body)))

    async def stream(self, messages: list[Message], **more: Any) -> list[Reply]:
        """Chunks of a streamed turn; checks that `[DONE]` ends it."""
        prefilled = await self.prefill(messages)
        body = self.decode_body(messages, prefilled[KV_PARAMS], stream=True, **more)
        raw = await self.raw(self._pair.decode_url, body)
        data = [frame.removeprefix(b"data: ") for frame in raw.strip().split(b"\n\n")]
        assert data[-1] == b"[DONE]"
        return [orjson.loads(item) for item in data[:-1]]

    async def hit_tokens(self) -> float:
        async with self._session.get(f"{self._pair.prefill_url}/metrics") as reply:
            return parse_metrics(await reply.text(), [EXTERNAL_HIT_TOKENS])[EXTERNAL_HIT_TOKENS]


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=_TIMEOUT)


def _first() -> list[Message]:
    return [{"role": "system", "content": _TEXT}, {"role": "user", "content": _TEXT}]


def _next(played: _Played) -> list[Message]:
    return [
        *_first(),
        {"role": "assistant", "content": played.text},
        {"role": "user", "content": "and then"},
    ]


def _receipt(reply: Reply) -> Receipt:
    receipt = Receipt.from_dict(reply[KV_PARAMS][RECEIPT])
    assert receipt is not None
    return receipt


def _assert_sendable(params: Any) -> None:
    assert transfer_params_problem(params, block_size_tokens=BLOCK_SIZE_TOKENS) is None


async def check_health_and_models(pair: Pair) -> None:
    """Both servers answer /health with 200 and list the model."""
    async with _session() as session:
        for url in (pair.prefill_url, pair.decode_url):
            async with session.get(f"{url}/health") as reply:
                assert reply.status == 200
            async with session.get(f"{url}/v1/models") as reply:
                listed = await reply.json()
                assert pair.model in [card["id"] for card in listed["data"]]


async def check_prefill_leg_returns_a_p_dict(pair: Pair) -> None:
    """A cold P leg returns a sendable dict with a record; its receipt says that it was cold."""
    async with _session() as session:
        reply = await _Client(pair, session).prefill(_first())
        params = reply[KV_PARAMS]
        _assert_sendable(params)
        assert params["do_remote_prefill"] is True
        assert params["remote_num_tokens"] == reply["usage"]["prompt_tokens"]
        record = Record.from_dict(params[RECORD])
        assert record is not None
        assert record.tokens == params["remote_num_tokens"]
        receipt = _receipt(reply)
        assert (receipt.reason, receipt.offered_tokens) == ("none_offered", 0)
        assert receipt.scheduled_ms is not None
        assert receipt.finished_ms is not None
        assert 0 <= receipt.scheduled_ms <= receipt.finished_ms
        assert receipt.pull_started_ms is receipt.pull_ended_ms is None


async def check_decode_leg_returns_a_handle_with_record(pair: Pair) -> None:
    """A D reply has a sendable handle whose record covers the whole blocks to L-1."""
    async with _session() as session:
        reply = (await _Client(pair, session).turn(_first())).answered
        handle = reply[KV_PARAMS]
        _assert_sendable(handle)
        assert handle["do_remote_decode"] is True
        record = Record.from_dict(handle[RECORD])
        assert record is not None
        assert record.scheme.block_size_tokens == BLOCK_SIZE_TOKENS
        assert record.tokens == handle["remote_num_tokens"] == reply["usage"]["total_tokens"] - 1
        receipt = _receipt(reply)
        assert (receipt.reason, receipt.verified_tokens) == (
            "pulled",
            reply["usage"]["prompt_tokens"],
        )


async def check_stream_has_the_handle_in_its_finish_chunk_only(pair: Pair) -> None:
    """One chunk of a stream has the handle: the one with the finish reason."""
    async with _session() as session:
        chunks = await _Client(pair, session).stream(_first())
        with_handle = [chunk for chunk in chunks if chunk.get(KV_PARAMS)]
        assert len(with_handle) == 1
        assert with_handle[0]["choices"][0]["finish_reason"] == "length"
        _assert_sendable(with_handle[0][KV_PARAMS])
        assert RECORD in with_handle[0][KV_PARAMS]


async def check_pin_false_leaves_no_handle(pair: Pair) -> None:
    """A D leg that asks not to pin returns no handle, streamed or not."""
    async with _session() as session:
        client = _Client(pair, session)
        for is_streamed in (False, True):
            prefilled = await client.prefill(_first())
            params = prefilled[KV_PARAMS] | {PIN: False}
            body = client.decode_body(_first(), params, stream=is_streamed)
            raw = await client.raw(pair.decode_url, body)
            assert b"remote_engine_id" not in raw
            assert b'"reason"' in raw


async def check_second_turn_pulls(pair: Pair) -> None:
    """With a handle P says `pulled`, and its counter agrees with the receipt."""
    async with _session() as session:
        client = _Client(pair, session)
        first = await client.turn(_first())
        before = await client.hit_tokens()
        prefilled = await client.prefill(_next(first), first.answered[KV_PARAMS])
        receipt = _receipt(prefilled)
        assert receipt.reason == "pulled"
        assert receipt.offered_tokens == first.answered[KV_PARAMS]["remote_num_tokens"]
        assert THRESHOLD_TOKENS <= receipt.pulled_tokens <= receipt.verified_tokens
        assert receipt.pull_started_ms is not None
        assert receipt.pull_ended_ms is not None
        assert receipt.scheduled_ms is not None
        assert receipt.pull_started_ms <= receipt.pull_ended_ms <= receipt.scheduled_ms
        # The pulled blocks and the local ones together are the verified prefix.
        assert receipt.local_tokens + receipt.pulled_tokens == receipt.verified_tokens
        # vLLM publishes its counters a little late.
        async with asyncio.timeout(_COUNTER_LIMIT_S):
            while await client.hit_tokens() - before != receipt.pulled_tokens:
                await asyncio.sleep(0.05)


async def check_other_history_is_not_pulled(pair: Pair) -> None:
    """A handle of another history is refused with `no_match`, and the turn is served."""
    async with _session() as session:
        client = _Client(pair, session)
        first = await client.turn(_first())
        other = [{"role": "user", "content": f"no {_TEXT}"}]
        played = await client.turn(other, first.answered[KV_PARAMS])
        receipt = _receipt(played.prefilled)
        assert (receipt.reason, receipt.pulled_tokens) == ("no_match", 0)


async def check_handle_does_not_change_the_answer(pair: Pair) -> None:
    """At temperature 0 a turn gives the same tokens with and without the handle."""
    async with _session() as session:
        client = _Client(pair, session)
        first = await client.turn(_first())
        warm = await client.turn(_next(first), first.answered[KV_PARAMS])
        cold = await _Client(pair, session).turn(_next(first))
        assert warm.token_ids == cold.token_ids


async def check_token_ids_of_a_whole_reply(pair: Pair) -> None:
    """return_token_ids: the prompt's at the top, the answer's in its choice."""
    async with _session() as session:
        reply = (await _Client(pair, session).turn(_first())).answered
        assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"]
        assert len(reply["choices"][0]["token_ids"]) == reply["usage"]["completion_tokens"] == 8


async def check_token_ids_of_a_stream(pair: Pair) -> None:
    """return_token_ids: the prompt's in the role chunk, the answer's chunk by chunk."""
    async with _session() as session:
        chunks = await _Client(pair, session).stream(
            _first(), stream_options={"include_usage": True}
        )
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        usage = chunks[-1]
        assert usage["choices"] == []
        assert len(chunks[0]["prompt_token_ids"]) == usage["usage"]["prompt_tokens"]
        ids = [
            token_id
            for chunk in chunks[1:-1]
            for token_id in chunk["choices"][0].get("token_ids") or []
        ]
        assert len(ids) == usage["usage"]["completion_tokens"] == 8


async def check_stream_and_whole_reply_say_the_same(pair: Pair) -> None:
    """A stream's text joined is the text of the reply that is not streamed."""
    async with _session() as session:
        whole = await _Client(pair, session).turn(_first())
        chunks = await _Client(pair, session).stream(_first())
        deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "".join(deltas) == whole.text


async def check_logprobs(pair: Pair) -> None:
    """Each position has the chosen token's logprob and the asked number of best ones."""
    async with _session() as session:
        options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
        whole = await _Client(pair, session).turn(_first(), **options)
        chunks = await _Client(pair, session).stream(_first(), **options)
        streamed = [
            entry
            for chunk in chunks
            if chunk["choices"] and chunk["choices"][0].get("logprobs")
            for entry in chunk["choices"][0]["logprobs"]["content"]
        ]
        for entries in (whole.answered["choices"][0]["logprobs"]["content"], streamed):
            assert len(entries) == 8
            for entry in entries:
                best = [top["logprob"] for top in entry["top_logprobs"]]
                assert len(best) == 2
                assert best == sorted(best, reverse=True)
                assert entry["logprob"] == best[0] <= 0


async def check_allowed_token_ids(pair: Pair) -> None:
    """The answer holds allowed ids only."""
    async with _session() as session:
        client = _Client(pair, session)
        known = (await client.turn(_first())).answered["prompt_token_ids"]
        allowed = sorted(set(known[20:40]))
        played = await client.turn(_first(), allowed_token_ids=allowed)
        assert set(played.token_ids) <= set(allowed)


async def release_all(pair: Pair) -> None:
    """Give back everything that the checks were given and did not use."""
    async with _session() as session:
        for url, params in pair.given:
            if "remote_request_id" not in params:
                continue
            async with session.post(f"{url}{RELEASE_PATH}", json={KV_PARAMS: params}) as reply:
                assert reply.status == 202


async def check_release_is_idempotent(pair: Pair) -> None:
    """202 for a handle that is pinned, was released, was read, or is of another engine."""
    async with _session() as session:
        client = _Client(pair, session)
        handle = (await client.turn(_first())).answered[KV_PARAMS]
        other = handle | {"remote_engine_id": uuid.uuid4().hex}
        for released in (other, handle, handle):
            async with session.post(
                f"{pair.decode_url}{RELEASE_PATH}", json={KV_PARAMS: released}
            ) as reply:
                assert reply.status == 202
        bodies: tuple[Any, ...] = ({}, {KV_PARAMS: {}}, [], "x")
        for body in bodies:
            async with session.post(f"{pair.decode_url}{RELEASE_PATH}", json=body) as reply:
                assert reply.status == 400


async def check_second_use_is_spent(pair: Pair) -> None:
    """A handle that P has used is refused the second time, and the turn is served."""
    async with _session() as session:
        client = _Client(pair, session)
        first = await client.turn(_first())
        handle = first.answered[KV_PARAMS]
        assert _receipt(await client.prefill(_next(first), handle)).reason == "pulled"
        assert _receipt(await client.prefill(_next(first), handle)).reason == "spent"


async def check_malformed_dict_is_served_cold(pair: Pair) -> None:
    """A dict with a broken field costs the reuse, not the turn, on either leg."""
    async with _session() as session:
        client = _Client(pair, session)
        first = await client.turn(_first())
        broken = first.answered[KV_PARAMS] | {"remote_num_tokens": "many"}
        prefilled = await client.prefill(_next(first), broken)
        assert _receipt(prefilled).reason == "malformed"
        body = client.decode_body(
            _next(first), prefilled[KV_PARAMS] | {"remote_block_ids": [1, 2, 3]}
        )
        reply = orjson.loads(await client.raw(pair.decode_url, body))
        assert set(reply[KV_PARAMS]) == {RECEIPT}
        assert _receipt(reply).reason == "malformed"


CHECKS: tuple[Check, ...] = (
    check_health_and_models,
    check_prefill_leg_returns_a_p_dict,
    check_decode_leg_returns_a_handle_with_record,
    check_stream_has_the_handle_in_its_finish_chunk_only,
    check_pin_false_leaves_no_handle,
    check_second_turn_pulls,
    check_other_history_is_not_pulled,
    check_handle_does_not_change_the_answer,
    check_release_is_idempotent,
    check_second_use_is_spent,
    check_malformed_dict_is_served_cold,
    check_token_ids_of_a_whole_reply,
    check_token_ids_of_a_stream,
    check_stream_and_whole_reply_say_the_same,
    check_logprobs,
    check_allowed_token_ids,
)
