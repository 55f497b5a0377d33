"""Clients that leave, at every stage: nothing stays behind on either node."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runtime.engine_api import NIXL_AFTER_EXPIRY
from runtime.router import decode
from tests.router.fleet import (
    LONG_TEXT,
    MODEL,
    Fleet,
    assert_used_once,
    running_engine,
    running_fleet,
    until,
    url_of,
)


def nothing_is_left(fleet: Fleet) -> bool:
    """Whether the engines keep what the store knows of, and nothing else."""
    kept = sum(node.transfers.kept_count for node in fleet.decodes)
    p_kept = sum(node.transfers.kept_count for node in fleet.prefills)
    return p_kept == 0 and kept == len(fleet.stored)


async def leave_when(fleet: Fleet, condition: Any, **more: Any) -> None:
    """Send the conversation's next turn and drop the connection once the condition holds."""
    messages = [*fleet.history, {"role": "user", "content": LONG_TEXT}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0} | more

    async def send() -> None:
        async with fleet.session.post(f"{fleet.url}/v1/chat/completions", json=body) as reply:
            await reply.read()

    task = asyncio.create_task(send())
    await until(condition)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not fleet.turns.admission.running)


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("stage", ["during_p", "during_d", "mid_stream"])
async def test_client_that_leaves_strands_nothing(model: Path, stage: str, is_warm: bool) -> None:
    """Neither P's blocks nor D's stay without a reader, and the next turn is served."""
    async with running_fleet(model, engine={"token_ms": 20.0}) as fleet:
        if is_warm:
            await fleet.turn(key=None)
        p, d = fleet.prefills[0], fleet.decodes[0]
        before_p, before_d = len(p.requests), len(d.requests)
        if stage == "during_p":
            p.faults.slow_next = [30.0]
            await leave_when(fleet, lambda: len(p.requests) > before_p)
        elif stage == "during_d":
            d.faults.slow_next = [30.0]
            await leave_when(fleet, lambda: len(d.requests) > before_d)
        else:
            await leave_when(fleet, lambda: len(d.requests) > before_d, stream=True)
        await until(lambda: nothing_is_left(fleet))
        assert fleet.router.client.busy_count == 0
        assert (await fleet.turn(key=None)).status == 200
        for engine in (p, d):
            assert engine.transfers.counters[NIXL_AFTER_EXPIRY] == 0
        assert_used_once(fleet)


async def test_handle_of_a_turn_that_was_never_sent_stays(model: Path) -> None:
    """The client leaves while its turn waits in the queue: the conversation loses nothing."""
    async with running_fleet(model, max_running_turns=1, queue_timeout_s=5) as fleet:
        await fleet.turn(key=None)
        fleet.prefills[0].faults.slow_next = [0.5]
        other = asyncio.create_task(
            fleet.post({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
        )
        await until(lambda: fleet.turns.admission.running == 1)
        messages = [*fleet.history, {"role": "user", "content": "more"}]
        waiting = asyncio.create_task(fleet.post({"model": MODEL, "messages": messages}))
        await until(lambda: fleet.turns.admission.waiting == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await other).status == 200
        assert (await fleet.turn(key=None)).path == "warm"


@pytest.mark.parametrize("status", [400, 422])
async def test_p_dict_of_a_refused_decode_leg_is_given_back(model: Path, status: int) -> None:
    """D's API refuses what P took: P's blocks do not wait for the lease."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.fail_next = [status]
        assert (await fleet.turn()).status == status
        await until(lambda: fleet.prefills[0].transfers.kept_count == 0)


async def test_p_dict_that_reaches_no_decode_node_is_given_back(model: Path) -> None:
    """Every D refuses the connection: P's blocks are freed at once."""
    async with running_fleet(model, decodes=0, dead_decodes=2, health_interval_s=60) as fleet:
        assert (await fleet.turn()).status == 503
        assert len(fleet.prefills[0].requests) == 1
        await until(lambda: fleet.prefills[0].transfers.kept_count == 0)


async def test_handle_of_an_answer_that_cannot_be_told_is_given_back(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No next turn could find it by its history: D need not keep it."""
    monkeypatch.setattr(decode, "whole_answer", lambda _body, _answer_of: None)
    async with running_fleet(model) as fleet:
        assert (await fleet.turn(key=None)).status == 200
        assert fleet.stored == []
        await until(lambda: fleet.decodes[0].transfers.kept_count == 0)


async def test_handle_without_a_peer_to_pull_it_is_given_back(model: Path) -> None:
    """Every P of its generation is down: the turn runs cold elsewhere, and D keeps nothing."""
    async with (
        running_engine(model, "prefill", version="0.33.0") as other_p,
        running_engine(model, "decode", version="0.33.0") as other_d,
        running_fleet(
            model,
            extra_prefills=(url_of(other_p),),
            extra_decodes=(url_of(other_d),),
            health_interval_s=0.05,
        ) as fleet,
    ):
        await until(lambda: len(fleet.turns.fleet.usable("prefill")) == 2)
        other_p.faults.is_sick = True
        await until(lambda: len(fleet.turns.fleet.usable("prefill")) == 1)
        await fleet.turn(key=None)
        other_p.faults.is_sick, fleet.prefills[0].faults.is_sick = False, True
        await until(
            lambda: [n.url for n in fleet.turns.fleet.usable("prefill")] == [url_of(other_p)]
        )
        assert (await fleet.turn(key=None)).path == "cold"
        assert len(other_d.requests) == 1
        await until(lambda: fleet.decodes[0].transfers.kept_count == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_turn_that_ends_just_after_its_client_left_is_known(
    model: Path, stream: bool
) -> None:
    """D had all but finished: what it keeps is in the store, not lost until its TTL."""
    async with running_fleet(model) as fleet:
        d = fleet.decodes[0]
        d.faults.slow_next = [0.1]
        await leave_when(fleet, lambda: d.requests, stream=stream)
        await until(lambda: nothing_is_left(fleet))
        assert len(fleet.stored) == 1
        labels = 'api="/v1/chat/completions",outcome="left",path="cold"'
        assert await fleet.metric(f"turnback_turns_total{{{labels}}} 1.0")


async def test_client_that_leaves_in_the_prefill_leg_is_no_failure_of_the_router(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P finishes just after it: no D leg is sent, and the log tells of no error."""
    async with running_fleet(model) as fleet:
        p = fleet.prefills[0]
        p.faults.slow_next = [0.1]
        await leave_when(fleet, lambda: p.requests, stream=True)
        await until(lambda: not fleet.turns.admission.running)
        await until(lambda: nothing_is_left(fleet))
        assert not fleet.decodes[0].requests
        assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_stream_that_ends_just_after_its_client_left_is_known(model: Path) -> None:
    """The same in the middle of an answer; its end is read for the handle."""
    async with running_fleet(model, engine={"token_ms": 15.0}) as fleet:
        body = {"model": MODEL, "messages": [{"role": "user", "content": LONG_TEXT}]}
        more = {"max_tokens": 8, "stream": True}
        async with fleet.session.post(
            f"{fleet.url}/v1/chat/completions", json=body | more
        ) as reply:
            await reply.content.readany()
        await until(lambda: len(fleet.stored) == 1)
        await until(lambda: nothing_is_left(fleet))
        await until(lambda: not fleet.turns.admission.running)
