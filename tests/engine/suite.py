"""What the router and the benchmark rely on, asked of any pair of servers.

Run against the mock engines and against vLLM, so that the mocks cannot drift away
from what they stand for.
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, PIN, RECEIPT, RECORD, RELEASE_PATH
from runtime.verification.record import Record
from tests.engine.suite_client import (
    BLOCK_SIZE_TOKENS,
    KV_USAGE,
    TEXT,
    THRESHOLD_TOKENS,
    Client,
    Pair,
    assert_sendable,
    first_messages,
    next_messages,
    open_session,
    receipt_of,
)
from tests.engine.suite_endpoints import ENDPOINT_CHECKS

COUNTER_LIMIT_S = 5.0
FREED_LIMIT_S = 10.0
"""Far below P's lease and D's TTL: what is free by then was freed."""

LEASE_LIMIT_S = 40.0
"""P's lease and some: what a check before left on P is gone after it."""

Check = Callable[[Pair], Awaitable[None]]


async def check_health_and_models(pair: Pair) -> None:
    """Both servers answer /health with 200 and list the model."""
    async with open_session() as session:
        for url in (pair.prefill_url, pair.decode_url):
            async with session.get(f"{url}/health") as reply:
                assert reply.status == 200
            async with session.get(f"{url}/v1/models") as reply:
                listed = await reply.json()
                assert pair.model in [card["id"] for card in listed["data"]]


async def check_prefill_leg_returns_a_p_dict(pair: Pair) -> None:
    """A cold P leg returns a sendable dict with a record; its receipt says that it was cold."""
    async with open_session() as session:
        reply = await Client(pair, session).prefill(first_messages())
        params = reply[KV_PARAMS]
        assert_sendable(params)
        assert params["do_remote_prefill"] is True
        assert params["remote_num_tokens"] == reply["usage"]["prompt_tokens"]
        record = Record.from_dict(params[RECORD])
        assert record is not None
        assert record.tokens == params["remote_num_tokens"]
        receipt = receipt_of(reply)
        assert (receipt.reason, receipt.offered_tokens) == ("none_offered", 0)
        assert receipt.scheduled_ms is not None
        assert receipt.finished_ms is not None
        assert 0 <= receipt.scheduled_ms <= receipt.finished_ms
        assert receipt.pull_started_ms is receipt.pull_ended_ms is None


async def check_decode_leg_returns_a_handle_with_record(pair: Pair) -> None:
    """A D reply has a sendable handle whose record covers the whole blocks to L-1."""
    async with open_session() as session:
        reply = (await Client(pair, session).turn(first_messages())).answered
        handle = reply[KV_PARAMS]
        assert_sendable(handle)
        assert handle["do_remote_decode"] is True
        record = Record.from_dict(handle[RECORD])
        assert record is not None
        assert record.scheme.block_size_tokens == BLOCK_SIZE_TOKENS
        assert record.tokens == handle["remote_num_tokens"] == reply["usage"]["total_tokens"] - 1
        receipt = receipt_of(reply)
        assert (receipt.reason, receipt.verified_tokens) == (
            "pulled",
            reply["usage"]["prompt_tokens"],
        )


async def check_stream_has_the_handle_in_its_finish_chunk_only(pair: Pair) -> None:
    """One chunk of a stream has the handle: the one with the finish reason."""
    async with open_session() as session:
        chunks = await Client(pair, session).stream(first_messages())
        with_handle = [chunk for chunk in chunks if chunk.get(KV_PARAMS)]
        assert len(with_handle) == 1
        assert with_handle[0]["choices"][0]["finish_reason"] == "length"
        assert_sendable(with_handle[0][KV_PARAMS])
        assert RECORD in with_handle[0][KV_PARAMS]


async def check_pin_false_leaves_no_handle(pair: Pair) -> None:
    """A D leg that asks not to pin returns no handle, streamed or not."""
    async with open_session() as session:
        client = Client(pair, session)
        for is_streamed in (False, True):
            prefilled = await client.prefill(first_messages())
            params = prefilled[KV_PARAMS] | {PIN: False}
            body = client.decode_body(first_messages(), params, stream=is_streamed)
            raw = await client.raw(pair.decode_url, body)
            assert b"remote_engine_id" not in raw
            assert b'"reason"' in raw


async def check_second_turn_pulls(pair: Pair) -> None:
    """With a handle P says `pulled`, and its counter agrees with the receipt."""
    async with open_session() as session:
        client = Client(pair, session)
        first = await client.turn(first_messages())
        before = await client.hit_tokens()
        prefilled = await client.prefill(next_messages(first), first.answered[KV_PARAMS])
        receipt = receipt_of(prefilled)
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
        async with asyncio.timeout(COUNTER_LIMIT_S):
            while await client.hit_tokens() - before != receipt.pulled_tokens:
                await asyncio.sleep(0.05)


async def check_other_history_is_not_pulled(pair: Pair) -> None:
    """A handle of another history is refused with `no_match`, and the turn is served."""
    async with open_session() as session:
        client = Client(pair, session)
        first = await client.turn(first_messages())
        other = [{"role": "user", "content": f"no {TEXT}"}]
        played = await client.turn(other, first.answered[KV_PARAMS])
        receipt = receipt_of(played.prefilled)
        assert (receipt.reason, receipt.pulled_tokens) == ("no_match", 0)


async def check_handle_does_not_change_the_answer(pair: Pair) -> None:
    """At temperature 0 a turn gives the same tokens with and without the handle."""
    async with open_session() as session:
        client = Client(pair, session)
        first = await client.turn(first_messages())
        warm = await client.turn(next_messages(first), first.answered[KV_PARAMS])
        cold = await Client(pair, session).turn(next_messages(first))
        assert warm.token_ids == cold.token_ids


async def check_token_ids_of_a_whole_reply(pair: Pair) -> None:
    """return_token_ids: the prompt's at the top, the answer's in its choice."""
    async with open_session() as session:
        reply = (await Client(pair, session).turn(first_messages())).answered
        assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"]
        assert len(reply["choices"][0]["token_ids"]) == reply["usage"]["completion_tokens"] == 8


async def check_token_ids_of_a_stream(pair: Pair) -> None:
    """return_token_ids: the prompt's in the role chunk, the answer's chunk by chunk."""
    async with open_session() as session:
        chunks = await Client(pair, session).stream(
            first_messages(), stream_options={"include_usage": True}
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
    async with open_session() as session:
        whole = await Client(pair, session).turn(first_messages())
        chunks = await Client(pair, session).stream(first_messages())
        deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "".join(deltas) == whole.text


async def check_logprobs(pair: Pair) -> None:
    """Each position has the chosen token's logprob and the asked number of best ones."""
    async with open_session() as session:
        options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
        whole = await Client(pair, session).turn(first_messages(), **options)
        chunks = await Client(pair, session).stream(first_messages(), **options)
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
    async with open_session() as session:
        client = Client(pair, session)
        known = (await client.turn(first_messages())).answered["prompt_token_ids"]
        allowed = sorted(set(known[20:40]))
        played = await client.turn(first_messages(), allowed_token_ids=allowed)
        assert set(played.token_ids) <= set(allowed)


async def check_release_is_idempotent(pair: Pair) -> None:
    """202 for a handle that is pinned, was released, was read, or is of another engine."""
    async with open_session() as session:
        client = Client(pair, session)
        handle = (await client.turn(first_messages())).answered[KV_PARAMS]
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
    async with open_session() as session:
        client = Client(pair, session)
        first = await client.turn(first_messages())
        handle = first.answered[KV_PARAMS]
        assert receipt_of(await client.prefill(next_messages(first), handle)).reason == "pulled"
        assert receipt_of(await client.prefill(next_messages(first), handle)).reason == "spent"


async def check_malformed_dict_is_served_cold(pair: Pair) -> None:
    """A dict with a broken field costs the reuse, not the turn, on either leg."""
    async with open_session() as session:
        client = Client(pair, session)
        first = await client.turn(first_messages())
        broken = first.answered[KV_PARAMS] | {"remote_num_tokens": "many"}
        prefilled = await client.prefill(next_messages(first), broken)
        assert receipt_of(prefilled).reason == "malformed"
        body = client.decode_body(
            next_messages(first), prefilled[KV_PARAMS] | {"remote_block_ids": [1, 2, 3]}
        )
        reply = orjson.loads(await client.raw(pair.decode_url, body))
        assert set(reply[KV_PARAMS]) == {RECEIPT}
        assert receipt_of(reply).reason == "malformed"


async def check_version_and_capacity(pair: Pair) -> None:
    """/version has numbers, and /metrics says how many blocks of which size there are."""
    async with open_session() as session:
        for url in (pair.prefill_url, pair.decode_url):
            async with session.get(f"{url}/version") as reply:
                assert re.match(r"\d+\.\d+", (await reply.json())["version"])
            async with session.get(f"{url}/metrics") as reply:
                lines = (await reply.text()).splitlines()
            (line,) = [one for one in lines if one.startswith("vllm:cache_config_info{")]
            # Other labels end in the same words.
            size = re.search(r'[{,]block_size="(\d+)"', line)
            blocks = re.search(r'[{,]num_gpu_blocks="(\d+)"', line)
            assert size is not None
            assert int(size[1]) == BLOCK_SIZE_TOKENS
            assert blocks is not None
            assert int(blocks[1]) > 0
            assert line.endswith(" 1.0")


async def check_release_frees_a_p_dict(pair: Pair) -> None:
    """P frees a P dict that is released long before its lease ends."""
    async with open_session() as session:
        client = Client(pair, session)
        await client.wait_idle(LEASE_LIMIT_S)
        params = (await client.prefill(first_messages()))[KV_PARAMS]
        async with asyncio.timeout(COUNTER_LIMIT_S):
            while not await client.metric(pair.prefill_url, KV_USAGE):
                await asyncio.sleep(0.05)
        async with session.post(
            f"{pair.prefill_url}{RELEASE_PATH}", json={KV_PARAMS: params}
        ) as reply:
            assert reply.status == 202
        await client.wait_idle(FREED_LIMIT_S)


async def check_aborted_decode_leg_leaves_nothing(pair: Pair) -> None:
    """A D leg whose client leaves pins nothing, and P's blocks were freed by its read."""
    async with open_session() as session:
        client = Client(pair, session)
        await client.wait_idle(LEASE_LIMIT_S)
        params = (await client.prefill(first_messages()))[KV_PARAMS]
        await client.begin_and_leave(pair.decode_url, params)
        await client.wait_idle(FREED_LIMIT_S)


async def check_aborted_prefill_leg_leaves_nothing(pair: Pair) -> None:
    """A P leg whose client leaves keeps nothing, cold or with a handle, which is freed."""
    async with open_session() as session:
        client = Client(pair, session)
        await client.wait_idle(LEASE_LIMIT_S)
        handle = (await client.turn(first_messages())).answered[KV_PARAMS]
        for params in (handle, COLD_PREFILL):
            await client.begin_and_leave(pair.prefill_url, params)
            await client.wait_idle(FREED_LIMIT_S)


CHECKS: tuple[Check, ...] = (
    check_version_and_capacity,
    check_release_frees_a_p_dict,
    check_aborted_decode_leg_leaves_nothing,
    check_aborted_prefill_leg_leaves_nothing,
    *ENDPOINT_CHECKS,
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
