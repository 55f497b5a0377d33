"""Turns through a router and mock engines."""

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.contract.http import DEBUG_HEADER, DECODE_RECEIPT_HEADER, PIN_HEADER, TIMING_HEADER
from runtime.contract.node import KvTransferSpec
from runtime.engine_api import (
    COLD_PREFILL,
    KV_PARAMS,
    NIXL_AFTER_EXPIRY,
    PIN,
    RECEIPT,
    Receipt,
)
from runtime.router.answer import Answer, Turn
from runtime.router.apis import CHAT
from runtime.router.engines import Reply
from runtime.router.store import MemoryStore
from tests.router.fleet import (
    LONG_TEXT,
    MODEL,
    assert_used_once,
    fresh_id,
    legs_of,
    params_of,
    running_fleet,
    until,
    url_of,
)


async def test_first_turn_is_cold_and_second_returns_kv(model: Path) -> None:
    """A conversation's second turn makes P pull what D kept of the first."""
    async with running_fleet(model) as fleet:
        first = await fleet.turn()
        second = await fleet.turn("tell me more of it")
        assert (first.status, first.path) == (200, "cold")
        assert first.receipt is not None
        assert first.receipt.reason == "none_offered"
        assert (second.status, second.path) == (200, "warm")
        assert second.receipt is not None
        assert second.receipt.reason == "pulled"
        assert second.receipt.pulled_tokens >= 64
        assert_used_once(fleet)


async def test_both_receipts_reach_metrics_and_debug_headers(model: Path) -> None:
    """What P and D did is counted, and told to a client that asks; a stream tells D's last."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        warm = await fleet.turn("and then")
        assert warm.receipt is not None
        told = json.loads(warm.headers[DECODE_RECEIPT_HEADER])
        decoded = Receipt.from_dict(told)
        assert decoded is not None
        assert (decoded.reason, decoded.pulled_tokens) == ("pulled", decoded.offered_tokens)
        streamed = await fleet.turn("more", stream=True, reuse=False)
        comment = streamed.raw.split(b"\n\n")[-2]
        name, _, value = comment.removeprefix(b": ").partition(b" ")
        assert name.decode() == DECODE_RECEIPT_HEADER
        assert Receipt.from_dict(json.loads(value)) is not None
        async with fleet.session.get(f"{fleet.url}/metrics") as reply:
            page = await reply.text()
        pulled = 'turnback_leg_tokens_total{kind="pulled",role="prefill"} '
        assert f"{pulled}{float(warm.receipt.pulled_tokens)}" in page
        assert 'turnback_legs_total{reason="pulled",role="prefill"} 1.0' in page
        assert 'turnback_legs_total{reason="none_offered",role="prefill"} 2.0' in page
        assert 'turnback_legs_total{reason="pulled",role="decode"} 3.0' in page
        assert 'turnback_leg_stage_seconds_count{role="prefill",stage="pull"} 1.0' in page


async def test_client_that_does_not_ask_is_told_nothing(model: Path) -> None:
    """Without the debug header neither headers nor the stream's end speak of receipts."""
    async with running_fleet(model) as fleet:
        reply = await fleet.post(
            {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True},
            headers={DEBUG_HEADER: "0"},
        )
        assert reply.status == 200
        assert reply.raw.endswith(b"data: [DONE]\n\n")
        assert "Receipt" not in str(reply.headers)


async def test_streamed_turn_returns_kv_too(model: Path) -> None:
    """The handle is captured from a stream, and no frame of it shows engine fields."""
    async with running_fleet(model) as fleet:
        first = await fleet.turn(stream=True, stream_options={"include_usage": True})
        assert first.headers["Content-Type"].startswith("text/event-stream")
        assert first.events[-1] == "[DONE]"
        assert first.events[-2]["choices"] == []
        assert first.events[-3]["choices"][0]["finish_reason"] == "length"
        assert b"kv_transfer_params" not in first.raw
        assert b"turnback_" not in first.raw
        assert (await fleet.turn()).path == "warm"


async def test_reply_body_shows_no_engine_fields(model: Path) -> None:
    """kv_transfer_params and the kit's keys never reach a client."""
    async with running_fleet(model) as fleet:
        reply = await fleet.turn()
        assert KV_PARAMS not in reply.body
        assert b"turnback_" not in reply.raw
        assert len(fleet.stored) == 1


async def test_client_kv_params_reach_no_engine(model: Path) -> None:
    """What a client puts into kv_transfer_params is dropped."""
    async with running_fleet(model) as fleet:
        await fleet.turn(kv_transfer_params={"do_remote_prefill": True, "remote_host": "evil"})
        assert params_of(fleet.prefills[0]) == dict(COLD_PREFILL)
        assert params_of(fleet.decodes[0])["remote_host"] == "127.0.0.1"


async def test_legs_carry_own_request_ids_and_the_authorization(model: Path) -> None:
    """Each leg has a request id of its own; the client's key goes to both."""
    async with running_fleet(model) as fleet:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": "Bearer key", "X-Request-Id": "mine"}
        await fleet.post(body, headers=headers)
        legs = legs_of([*fleet.prefills, *fleet.decodes])
        assert [leg.headers["Authorization"] for leg in legs] == ["Bearer key"] * 2
        assert len({leg.headers["X-Request-Id"] for leg in legs} - {"mine"}) == 2


@pytest.mark.parametrize("options", [{"headers": {PIN_HEADER: "off"}}, {"reuse": False}])
async def test_turn_that_leaves_no_handle_pins_nothing(
    model: Path, options: dict[str, Any]
) -> None:
    """A last turn, or one with reuse off, tells D not to keep the blocks."""
    async with running_fleet(model) as fleet:
        await fleet.turn(**options)
        assert params_of(fleet.decodes[0])[PIN] is False
        assert fleet.decodes[0].transfers.kept_count == 0
        assert (await fleet.turn(**options)).path == "cold"


async def test_reuse_off_takes_no_handle(model: Path) -> None:
    """A one-way turn leaves the conversation's handle where it is."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        assert (await fleet.turn(reuse=False)).path == "cold"
        assert len(fleet.stored) == 1


async def test_conversation_turn_does_not_send_the_pin_key(model: Path) -> None:
    """D keeps blocks by default; the key is sent only to say no."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        assert PIN not in params_of(fleet.decodes[0])


async def test_receipt_is_not_sent_to_decode(model: Path) -> None:
    """P's dict goes to D as it is but for the receipt."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        await fleet.turn()
        assert RECEIPT not in params_of(fleet.decodes[0])
        assert params_of(fleet.decodes[0])["remote_prefill_cached_tokens"] > 0


async def test_several_answers_go_straight_to_decode(model: Path) -> None:
    """n > 1 has no P leg, carries no dict and leaves the stored handle alone."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        reply = await fleet.turn(n=2)
        assert (reply.status, reply.path, len(reply.body["choices"])) == (200, "direct", 2)
        assert len(fleet.prefills[0].requests) == 1
        assert KV_PARAMS not in fleet.decodes[0].requests[-1].body
        assert len(fleet.stored) == 1


async def test_every_reply_tells_path_and_timing(model: Path) -> None:
    """X-Turnback-Path and Server-Timing need no debug header; the receipts do."""
    async with running_fleet(model) as fleet:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        reply = await fleet.post(body, headers={"X-Turnback-Debug": "0"})
        assert (reply.status, reply.path, reply.receipt) == (200, "cold", None)
        names = [entry.partition(";dur=")[0] for entry in reply.headers[TIMING_HEADER].split(", ")]
        assert names == ["queue", "take", "prefill", "first_byte"]
        assert len(reply.headers["X-Request-ID"]) == 32


def test_a_stage_that_comes_again_is_added() -> None:
    """After a failed leg the stages still cover the whole time of the turn."""
    turn = Turn(api=CHAT, body={}, size_bytes=0, authorization=None)
    turn.stage("prefill", since_s=time.perf_counter() - 5)
    turn.stage("prefill", since_s=time.perf_counter() - 2)
    assert turn.stages["prefill"] >= 7


async def test_expired_handle_is_not_used(model: Path) -> None:
    """Past its deadline a handle counts as absent."""
    kv = KvTransferSpec(decoder_kv_blocks_ttl_s=15, handle_deadline_margin_s=10)
    async with running_fleet(model, kv=kv) as fleet:
        await fleet.turn()
        (stored,) = await fleet.turns.store.close()
        assert 0 < kv.handle_lifetime_s == 5
        await fleet.turns.store.put(dataclasses.replace(stored, deadline_s=0.0), 0.0, None)
        assert (await fleet.turn()).path == "cold"


async def test_nodes_take_turns(model: Path) -> None:
    """Conversations are spread over all nodes."""
    async with running_fleet(model, prefills=2, decodes=2) as fleet:
        for _ in range(4):
            fleet.history = []
            await fleet.turn("hi", key=fresh_id())
        assert [len(node.requests) for node in fleet.prefills] == [2, 2]
        assert [len(node.requests) for node in fleet.decodes] == [2, 2]


async def test_owner_of_the_handle_decodes_again(model: Path) -> None:
    """A warm turn goes to the D that served the turn before, whatever the rotation."""
    async with running_fleet(model, decodes=3) as fleet:
        for _ in range(4):
            await fleet.turn("tell me more of it")
        assert [len(node.requests) for node in fleet.decodes] == [4, 0, 0]


async def test_restarted_decode_drops_the_handles_of_its_past(model: Path) -> None:
    """A new engine id at a D's address makes all its older handles worthless."""
    async with running_fleet(model) as fleet:
        for key in ("one", "two", "three"):
            fleet.history = []
            await fleet.turn(key=key)
        assert len(fleet.stored) == 3
        fleet.decodes[0].transfers.engine_id = fresh_id()
        fleet.history = []
        await fleet.turn(key="four")
        assert len(fleet.stored) == 1
        assert (await fleet.turn(key="four")).path == "warm"


async def test_engine_counts_no_read_after_free(model: Path) -> None:
    """Over several turns nothing is read that its owner has freed."""
    async with running_fleet(model) as fleet:
        for _ in range(3):
            await fleet.turn("tell me more of it")
        for engine in (*fleet.prefills, *fleet.decodes):
            assert engine.transfers.counters[NIXL_AFTER_EXPIRY] == 0
        assert fleet.prefills[0].transfers.kept_count == 0
        assert fleet.decodes[0].transfers.kept_count == 1


async def test_client_that_leaves_ends_the_leg(model: Path) -> None:
    """A disconnected client's leg is closed; the router keeps serving."""
    async with running_fleet(model) as fleet:
        fleet.prefills[0].faults.stall_next = 1
        body = {"model": MODEL, "messages": [{"role": "user", "content": LONG_TEXT}]}
        leaving = fleet.session.post(f"{fleet.url}/v1/chat/completions", json=body)
        task = asyncio.ensure_future(_send(leaving))
        await until(lambda: fleet.prefills[0].requests)
        task.cancel()
        await until(lambda: not fleet.router.client.busy_count)
        assert (await fleet.turn()).status == 200


async def _send(request: Any) -> None:
    async with request:
        pass


async def test_stored_handle_names_its_decode_node(model: Path) -> None:
    """The store knows which D holds the blocks."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        (stored,) = fleet.stored
        assert stored.decode_url == url_of(fleet.decodes[0])


def test_engine_error_shows_nothing_internal() -> None:
    """An engine's error keeps its status and loses what no client may see."""
    body = b'{"error":{"message":"no"},"kv_transfer_params":{"remote_host":"10.0.0.1"}}'
    answer = Answer.of_reply(Reply(400, "application/json", body))
    assert (answer.status, answer.body) == (400, b'{"error":{"message":"no"}}')
    broken = Answer.of_reply(Reply(500, "text/plain", b'"kv_transfer_params" in plain text'))
    assert broken.status == 500
    assert json.loads(broken.body)["error"]["what"] == "the engine did not serve the request"
    assert b"kv_transfer_params" not in broken.body


@pytest.mark.parametrize("is_shared", [True, False])
async def test_handle_of_another_router_is_looked_at(model: Path, is_shared: bool) -> None:
    """A shared store holds what others have written: a handle no engine may see is dropped."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        store = fleet.turns.store
        assert isinstance(store, MemoryStore)
        (stored,) = store.handles
        spoiled = dataclasses.replace(stored, handle={**stored.handle, "remote_port": 70_000})
        store._handles[stored.key] = spoiled
        store.never_waits = not is_shared
        reply = await fleet.turn()
        seen = legs_of(fleet.prefills)[-1].body[KV_PARAMS]
        assert (reply.path == "cold") is is_shared
        assert ("remote_port" in seen) is not is_shared
