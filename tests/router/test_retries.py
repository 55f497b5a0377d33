"""What is tried again when a leg fails, and what the client sees when nothing helps."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runtime.engine_api import COLD_PREFILL
from runtime.router import decode
from tests.router.fleet import (
    MODEL,
    assert_used_once,
    legs_of,
    params_of,
    running_fleet,
    until,
)

SHORT = {"prefill_timeout_s": 0.5, "silence_timeout_s": 0.5}
OTHER_TALK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("fault", ["status", "reset", "bad_dict", "stall"])
async def test_failed_warm_prefill_is_retried_cold_once(model: Path, fault: str) -> None:
    """However P fails with a handle, the turn runs cold on another P under a new id."""
    async with running_fleet(
        model, prefills=2, prefill_timeout_s=0.5, silence_timeout_s=0.5
    ) as fleet:
        await fleet.turn()
        warm_p, other_p = fleet.prefills
        match fault:
            case "status":
                warm_p.faults.fail_next = [500]
            case "reset":
                warm_p.faults.reset_next = 1
            case "bad_dict":
                warm_p.faults.spoil_next = [{"remote_port": 0}]
            case "stall":
                warm_p.faults.stall_next = 1
        reply = await fleet.turn()
        assert (reply.status, reply.path) == (200, "cold_retry")
        assert len(warm_p.requests) == 2
        assert params_of(warm_p)["do_remote_decode"] is True
        assert "remote_engine_id" in params_of(warm_p)
        assert params_of(other_p) == dict(COLD_PREFILL)
        ids = [leg.headers["X-Request-Id"] for leg in legs_of(fleet.prefills)]
        assert len(ids) == len(set(ids))
        assert_used_once(fleet)


async def test_cold_retry_avoids_the_failed_prefill_under_other_traffic(model: Path) -> None:
    """Another turn that moves the rotation on does not send the retry to the failed P."""
    async with running_fleet(
        model, prefills=2, prefill_timeout_s=0.5, silence_timeout_s=0.5
    ) as fleet:
        await fleet.turn()
        stalled, other_p = fleet.prefills
        stalled.faults.stall_next = 1
        warm = asyncio.create_task(fleet.turn())
        await until(lambda: len(stalled.requests) == 2)
        await fleet.post(OTHER_TALK)
        assert (await warm).path == "cold_retry"
        assert (len(stalled.requests), len(other_p.requests)) == (2, 2)


async def test_second_try_avoids_the_failed_decode_under_other_traffic(model: Path) -> None:
    """Another turn that moves the rotation on does not send the second try to the failed D."""
    async with running_fleet(
        model, decodes=2, prefill_timeout_s=0.5, silence_timeout_s=0.5
    ) as fleet:
        stalled, other_d = fleet.decodes
        stalled.faults.stall_next = 1
        failing = asyncio.create_task(fleet.turn())
        await until(lambda: stalled.requests)
        await fleet.post(OTHER_TALK)
        assert (await failing).status == 200
        assert (len(stalled.requests), len(other_d.requests)) == (1, 2)


async def test_cold_retry_uses_the_same_prefill_when_alone(model: Path) -> None:
    """With one P the cold retry goes to it."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        fleet.prefills[0].faults.fail_next = [503]
        assert (await fleet.turn()).path == "cold_retry"


async def test_second_prefill_failure_reaches_the_client(model: Path) -> None:
    """A cold retry that fails too is the end: P's own 5xx."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        fleet.prefills[0].faults.fail_next = [500, 503]
        reply = await fleet.turn()
        assert (reply.status, reply.body["error"]["message"]) == (503, "told to fail")
        assert len(fleet.prefills[0].requests) == 3


async def test_prefill_refusal_reaches_the_client_unchanged(model: Path) -> None:
    """P's 4xx is the answer: nothing is retried and D is not asked."""
    async with running_fleet(model) as fleet:
        reply = await fleet.turn(model="other")
        assert reply.status == 404
        assert reply.body["error"]["message"] == "The model `other` does not exist."
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert len(fleet.prefills[0].requests) == 1
        assert fleet.decodes[0].requests == []


async def test_cold_prefill_server_error_reaches_the_client(model: Path) -> None:
    """A cold P's 5xx is passed on, without a retry."""
    async with running_fleet(model) as fleet:
        fleet.prefills[0].faults.fail_next = [507]
        assert (await fleet.turn()).status == 507
        assert len(fleet.prefills[0].requests) == 1


async def test_refused_prefill_connection_moves_on(model: Path) -> None:
    """A P that does not listen is skipped."""
    async with running_fleet(model, dead_prefills=1) as fleet:
        reply = await fleet.turn()
        assert (reply.status, reply.path) == (200, "cold")


async def test_no_prefill_node_is_503(model: Path) -> None:
    """With no P left the client gets a 503 that says so."""
    async with running_fleet(model, prefills=0, dead_prefills=2) as fleet:
        reply = await fleet.turn()
        assert reply.status == 503
        assert reply.body["error"]["what"] == "no prefill node can take the request"


@pytest.mark.parametrize(
    "spoiled",
    [{"replace": None}, {"remote_num_tokens": 1_000_000}, {"do_remote_prefill": False}],
)
async def test_bad_p_dict_never_reaches_decode(model: Path, spoiled: dict[str, Any]) -> None:
    """A missing or misshapen P dict is a 502."""
    async with running_fleet(model) as fleet:
        fleet.prefills[0].faults.spoil_next = [spoiled]
        reply = await fleet.turn()
        assert reply.status == 502
        assert reply.body["error"]["what"] == "the prefill node gave no usable answer"
        assert fleet.decodes[0].requests == []


async def test_p_dict_with_both_flags_swapped_is_refused(model: Path) -> None:
    """A dict that asks its reader to be a P is not a P dict."""
    async with running_fleet(model) as fleet:
        fleet.prefills[0].faults.spoil_next = [
            {"do_remote_prefill": False, "do_remote_decode": True}
        ]
        assert (await fleet.turn()).status == 502


@pytest.mark.parametrize(
    "spoiled",
    [{"remote_block_ids": []}, {"do_remote_prefill": True, "do_remote_decode": False}],
)
async def test_bad_handle_is_not_stored(model: Path, spoiled: dict[str, Any]) -> None:
    """A misshapen handle costs nothing but the next turn's reuse."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.spoil_next = [spoiled]
        assert (await fleet.turn()).status == 200
        assert len(fleet.stored) == 0


async def test_refused_decode_connection_moves_on_with_the_same_dict(model: Path) -> None:
    """D was never reached, so its P dict goes to another D."""
    async with running_fleet(model, dead_decodes=1) as fleet:
        assert (await fleet.turn()).status == 200
        assert len(fleet.prefills[0].requests) == 1
        assert len(fleet.decodes[0].requests) == 1


async def test_p_dict_is_not_sent_after_its_lease(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P frees its blocks then, and D would read whatever lies there."""
    monkeypatch.setattr(decode, "LEASE_GUARD_S", 1000)
    async with running_fleet(model) as fleet:
        reply = await fleet.turn()
        assert reply.status == 502
        assert "lease" in reply.raw.decode()
        assert (len(fleet.prefills[0].requests), len(fleet.decodes[0].requests)) == (2, 0)


async def test_no_decode_node_is_503(model: Path) -> None:
    """With no D left the client gets a 503 that says so."""
    async with running_fleet(model, decodes=0, dead_decodes=2) as fleet:
        reply = await fleet.turn()
        assert reply.status == 503
        assert reply.body["error"]["what"] == "no decode node can take the request"
        assert len(fleet.prefills[0].requests) == 1


@pytest.mark.parametrize("fault", ["status", "reset", "die_before_first_chunk"])
async def test_failed_decode_starts_anew_from_a_cold_prefill(model: Path, fault: str) -> None:
    """D failed after it was reached: a new P dict is made for the second try."""
    async with running_fleet(model, decodes=2) as fleet:
        faults = fleet.decodes[0].faults
        match fault:
            case "status":
                faults.fail_next = [500]
            case "reset":
                faults.reset_next = 1
            case "die_before_first_chunk":
                faults.die_after_chunks = 0
        reply = await fleet.turn(stream=True)
        assert (reply.status, reply.path) == (200, "cold")
        assert reply.events[-1] == "[DONE]"
        assert len(fleet.prefills[0].requests) == 2
        assert [len(decode.requests) for decode in fleet.decodes] == [1, 1]
        assert_used_once(fleet)


async def test_decode_failure_after_a_warm_prefill_is_a_cold_retry(model: Path) -> None:
    """The second try of a warm turn has no handle, and says so."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        fleet.decodes[0].faults.fail_next = [500]
        reply = await fleet.turn()
        assert (reply.status, reply.path) == (200, "cold_retry")
        assert reply.receipt is not None
        assert reply.receipt.reason == "none_offered"
        assert_used_once(fleet)


@pytest.mark.parametrize(("fault", "status"), [("status", 507), ("reset", 502)])
async def test_second_decode_failure_ends_the_turn(model: Path, fault: str, status: int) -> None:
    """Two failed D legs: the engine's 5xx as it is, else a 502."""
    async with running_fleet(model) as fleet:
        if fault == "status":
            fleet.decodes[0].faults.fail_next = [500, 507]
        else:
            fleet.decodes[0].faults.reset_next = 2
        reply = await fleet.turn()
        assert reply.status == status
        assert len(fleet.decodes[0].requests) == 2


async def test_direct_turn_is_tried_twice_without_prefill(model: Path) -> None:
    """A failed D leg with n > 1 is sent to another D; P is not involved."""
    async with running_fleet(model, decodes=2) as fleet:
        fleet.decodes[0].faults.fail_next = [500]
        assert (await fleet.turn(n=2)).path == "direct"
        assert fleet.prefills[0].requests == []


async def test_decode_refusal_reaches_the_client_unchanged(model: Path) -> None:
    """D's 4xx is the answer, with D's status and content type."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.fail_next = [422]
        reply = await fleet.turn(stream=True)
        assert reply.status == 422
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert len(fleet.decodes[0].requests) == 1


async def test_stream_that_breaks_off_ends_with_an_error_event(model: Path) -> None:
    """The client of a broken stream gets an error event and no [DONE]."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.die_after_chunks = 2
        reply = await fleet.turn(stream=True)
        assert reply.status == 200
        assert "[DONE]" not in reply.events
        assert reply.events[-1]["error"]["what"] == "the decode node gave no usable answer"
        assert len(fleet.stored) == 0
