"""Races between a turn and what else happens, and the canary beside the turns."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runtime.engine_api import PIN
from tests.router.fleet import (
    HI,
    LONG_TEXT,
    MODEL,
    params_of,
    running_engine,
    running_fleet,
    until,
    url_of,
)


async def test_switch_holds_for_turns_that_run(model: Path) -> None:
    """Thrown during the P leg, it keeps D from pinning."""
    async with running_fleet(model) as fleet:
        fleet.prefills[0].faults.slow_next = [0.2]
        turn = asyncio.create_task(fleet.post(HI))
        await until(lambda: fleet.prefills[0].requests)
        await fleet.turns.switch.switch("a look")
        assert (await turn).status == 200
        assert params_of(fleet.decodes[0])[PIN] is False


async def test_conversation_that_ends_during_its_turn_leaves_nothing(model: Path) -> None:
    """The end holds for the turn that still runs; the next one begins anew."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.slow_next = [0.2]
        turn = asyncio.create_task(fleet.turn())
        await until(lambda: fleet.decodes[0].requests)
        async with fleet.session.post(f"{fleet.url}/conversations/talk/end") as reply:
            assert reply.status == 200
        assert (await turn).status == 200
        assert fleet.stored == []
        await until(lambda: fleet.decodes[0].transfers.kept_count == 0)
        await fleet.turn()
        assert len(fleet.stored) == 1


async def test_client_that_left_the_queue_is_not_served(model: Path) -> None:
    """No leg is sent for a turn that nobody waits for."""
    async with running_fleet(model, max_running_turns=1, queue_timeout_s=5) as fleet:
        fleet.prefills[0].faults.slow_next = [0.15]
        running = asyncio.create_task(fleet.post(HI))
        await until(lambda: fleet.turns.admission.running == 1)
        waiting = asyncio.create_task(fleet.post(HI))
        await until(lambda: fleet.turns.admission.waiting == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await running).status == 200
        await until(lambda: not fleet.turns.admission.running)
        await asyncio.sleep(0.3)
        assert len(fleet.prefills[0].requests) == 1


async def test_handle_waits_for_a_peer_that_is_away_for_a_moment(model: Path) -> None:
    """Its P's breaker is open: the turn runs elsewhere, cold, and the handle is not lost."""
    async with running_fleet(model, breaker_failures=1, breaker_open_s=0.3) as fleet:
        await fleet.turn()
        (node,) = fleet.turns.fleet.usable("prefill")
        fleet.turns.fleet.failed(node)
        assert (await fleet.turn()).status == 503
        await asyncio.sleep(0.35)
        assert (await fleet.turn()).path == "warm"


async def test_taken_handle_is_used_though_the_store_went_down(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another turn has just found the store down: what this one has taken is not thrown away."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        store = fleet.turns.store
        take = store.take

        async def take_and_fail(*args: Any) -> Any:
            taken = await take(*args)
            monkeypatch.setattr(store, "is_up", False)
            return taken

        monkeypatch.setattr(store, "take", take_and_fail)
        monkeypatch.setattr(type(store), "is_up", True, raising=False)
        assert (await fleet.turn()).path == "warm"


async def test_canary_is_beside_the_turns(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the client's key, counts as no turn, and holds up no stopping router."""
    async with running_fleet(model, canary_share=1.0, drain_s=5) as fleet:
        key = {"Authorization": "Bearer ann"}
        await fleet.turn(key=None, headers=key)
        fleet.decodes[0].faults.slow_next = [0.0, 3.0]
        await fleet.turn(key=None, headers=key)
        await until(lambda: len(fleet.decodes[0].requests) == 3)
        assert fleet.decodes[0].requests[-1].headers["Authorization"] == "Bearer ann"
        assert fleet.turns.admission.running == 0
        async with asyncio.timeout(1):
            await fleet.router.stop()
        assert await fleet.metric(
            'turnback_turns_total{api="/v1/chat/completions",outcome="done",path="cold"} 1.0'
        )


async def test_canary_compares_completions(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that differ are different, also without messages."""
    async with running_fleet(model, canary_share=1.0) as fleet:
        decode = fleet.decodes[0]
        right = decode.tokens.answer

        def answer(prompt: Any, count: int, **more: Any) -> Any:
            is_again = bool(decode.requests[-1].body.get("cache_salt"))
            return right(prompt if is_again else [*prompt, 1], count, **more)

        monkeypatch.setattr(decode.tokens, "answer", answer)
        body = {"model": MODEL, "max_tokens": 4, "temperature": 0, "session_id": "t"}
        for text in (LONG_TEXT, f"{LONG_TEXT} and then"):
            await fleet.post(body | {"prompt": text}, path="/v1/completions")
        async with asyncio.timeout(5):
            while not await fleet.metric('turnback_canary_total{outcome="different"} 1.0'):
                await asyncio.sleep(0.01)


async def test_capacity_is_asked_until_it_is_told(model: Path) -> None:
    """A /metrics that failed at first does not leave a D without a budget."""
    async with (
        running_engine(model, "decode") as engine,
        running_fleet(
            model, decodes=0, extra_decodes=(url_of(engine),), health_interval_s=0.05
        ) as fleet,
    ):
        (node,) = fleet.turns.fleet.usable("decode")
        node.capacity_tokens = None
        await until(lambda: node.capacity_tokens)


async def test_refusals_tell_path_and_request_id(model: Path) -> None:
    """Refusals tell a path and timing too, and everything has a request id."""
    async with running_fleet(model) as fleet:
        reply = await fleet.post(b"{")
        assert (reply.status, reply.path) == (400, "refused")
        assert float(reply.headers["Server-Timing"].removeprefix("refused;dur=")) > 0
        for path in ("/v1/models", "/health", "/metrics"):
            async with fleet.session.get(f"{fleet.url}{path}") as other:
                assert other.headers["X-Request-ID"]
