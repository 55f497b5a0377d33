"""Nodes that fail, queues that fill, routers that stop."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.router.fleet import (
    HI,
    LONG_TEXT,
    MODEL,
    Fleet,
    assert_used_once,
    legs_of,
    running_engine,
    running_fleet,
    until,
    url_of,
)

OPENAI = {"message", "type", "param", "code", "what", "got", "allowed", "fix"}


async def many(fleet: Fleet, count: int, **body: Any) -> list[int]:
    """Statuses of so many turns, one after another."""
    numbers = itertools.count()
    bodies = [HI | {"seed": next(numbers)} | body for _ in range(count)]
    return [(await fleet.post(one)).status for one in bodies]


async def test_breaker_leaves_a_failing_node_alone_and_tries_it_again(model: Path) -> None:
    """After failures in a row nothing is sent; later one request tries, and it serves again."""
    async with running_fleet(model, decodes=2, breaker_failures=2, breaker_open_s=0.3) as fleet:
        bad = fleet.decodes[0]
        bad.faults.fail_next = [500] * 3
        await many(fleet, 8)
        node = fleet.turns.fleet.find("decode", url_of(bad))
        assert node is not None
        assert node.breaker.is_open
        seen = len(bad.requests)
        assert seen == 2
        assert await many(fleet, 4) == [200] * 4
        assert len(bad.requests) == seen
        await asyncio.sleep(0.3)
        assert await many(fleet, 1) == [200]  # the trial fails, another D serves
        assert len(bad.requests) == seen + 1
        await asyncio.sleep(0.3)
        await many(fleet, 4)
        assert not node.breaker.is_open
        assert len(bad.requests) > seen + 2


async def test_one_request_sent_again_and_again_trips_no_breaker(model: Path) -> None:
    """An engine that fails on one body may be well: only different ones count."""
    async with running_fleet(model, breaker_failures=3) as fleet:
        fleet.prefills[0].faults.fail_next = [500] * 8
        assert [(await fleet.post(HI)).status for _ in range(8)] == [500] * 8
        assert not any(node.breaker.is_open for node in fleet.turns.fleet.nodes)
        fleet.prefills[0].faults.fail_next = [500] * 3
        await many(fleet, 3)
        assert any(node.breaker.is_open for node in fleet.turns.fleet.nodes)


async def test_client_errors_trip_no_breaker(model: Path) -> None:
    """However many 4xx a node answers, it is as healthy as before."""
    async with running_fleet(model, breaker_failures=2) as fleet:
        assert await many(fleet, 6, model="other") == [404] * 6
        fleet.decodes[0].faults.fail_next = [422] * 6
        assert await many(fleet, 6) == [422] * 6
        assert not any(node.breaker.is_open for node in fleet.turns.fleet.nodes)
        assert await many(fleet, 1) == [200]


async def test_no_prefill_leg_is_sent_that_no_decode_node_can_follow(model: Path) -> None:
    """With every D's breaker open, P is not asked: 503 with Retry-After."""
    async with running_fleet(model, breaker_failures=1, breaker_open_s=60) as fleet:
        fleet.decodes[0].faults.fail_next = [500, 500]
        await many(fleet, 1)
        seen = len(fleet.prefills[0].requests)
        reply = await fleet.post(HI)
        assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
        assert len(fleet.prefills[0].requests) == seen


async def test_dead_decode_of_a_handle_does_not_trip_the_prefill_nodes(model: Path) -> None:
    """P fails because the handle's owner has died: P is not to blame."""
    async with running_fleet(model, decodes=2, breaker_failures=1) as fleet:
        await fleet.turn()
        (owner,) = [node for node in fleet.decodes if node.requests]
        owner.restart()
        reply = await fleet.turn()
        assert (reply.status, reply.path) == (200, "cold_retry")
        node = fleet.turns.fleet.find("prefill", url_of(fleet.prefills[0]))
        assert node is not None
        assert not node.breaker.is_open


async def test_node_that_fails_its_checks_gets_nothing_until_it_is_well(model: Path) -> None:
    """Two failed health checks take a node out, one good one takes it back."""
    async with running_fleet(model, prefills=2, health_interval_s=0.05) as fleet:
        sick = fleet.prefills[0]
        sick.faults.is_sick = True
        await until(lambda: len(fleet.turns.fleet.usable("prefill")) == 1)
        seen = len(sick.requests)
        assert await many(fleet, 4) == [200] * 4
        assert len(sick.requests) == seen
        sick.faults.is_sick = False
        await until(lambda: len(fleet.turns.fleet.usable("prefill")) == 2)
        await many(fleet, 4)
        assert len(sick.requests) > seen


async def test_turn_waits_for_a_node_before_it_gives_up(model: Path) -> None:
    """No P for a moment: the turn waits and is served."""
    async with running_fleet(model, health_interval_s=0.05, queue_timeout_s=5) as fleet:
        fleet.prefills[0].faults.is_sick = True
        await until(lambda: not fleet.turns.fleet.usable("prefill"))
        waiting = asyncio.create_task(fleet.post(HI))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        fleet.prefills[0].faults.is_sick = False
        assert (await waiting).status == 200


async def test_versions_never_mix(model: Path) -> None:
    """P and D of two engine versions are two fleets: no dict passes between them."""
    async with (
        running_engine(model, "prefill", version="0.33.0") as new_p,
        running_engine(model, "decode", version="0.33.0") as new_d,
        running_fleet(
            model,
            decodes=2,
            extra_prefills=(url_of(new_p),),
            extra_decodes=(url_of(new_d),),
        ) as fleet,
    ):
        bodies = [
            {"model": MODEL, "messages": [{"role": "user", "content": f"{at} {LONG_TEXT}"}]}
            for at in range(24)
        ]
        replies = await asyncio.gather(*(fleet.post(body) for body in bodies))
        assert [reply.status for reply in replies] == [200] * 24
        for p, ds in ((new_p, [new_d]), (fleet.prefills[0], fleet.decodes)):
            d_legs = legs_of(ds)
            assert len(p.requests) == len(d_legs) > 0
            sources = {leg.body["kv_transfer_params"]["remote_port"] for leg in d_legs}
            assert sources == {p.transfers.port}
        assert_used_once(fleet)


async def test_nodes_file_is_followed(model: Path, tmp_path: Path) -> None:
    """Nodes join, drain and leave without a restart; a bad file changes nothing."""
    nodes = tmp_path / "nodes.toml"

    def write(*entries: tuple[str, str, bool]) -> None:
        nodes.write_text(
            "".join(
                f'[[{role}]]\nurl = "{url}"\ndraining = {str(draining).lower()}\n'
                for role, url, draining in entries
            )
        )

    async with (
        running_engine(model, "decode") as first,
        running_engine(model, "decode") as second,
    ):
        write(("decode", url_of(first), False))
        async with running_fleet(
            model, decodes=0, nodes_file=nodes, health_interval_s=0.05
        ) as fleet:
            await fleet.turn()
            write(("decode", url_of(first), True), ("decode", url_of(second), False))
            await until(lambda: [n.url for n in usable_decodes(fleet)] == [url_of(second)])
            moved = await fleet.turn()
            assert moved.receipt is not None
            assert (moved.path, moved.receipt.reason) == ("warm", "pulled")
            assert [len(first.requests), len(second.requests)] == [1, 1]
            nodes.write_text("nonsense")
            await asyncio.sleep(1.2)
            assert (await fleet.turn()).path == "warm"
            write(("decode", url_of(second), False))
            await until(lambda: len(fleet.turns.fleet.nodes) == 2)


def usable_decodes(fleet: Fleet) -> list[Any]:
    """Ds that may be sent a turn, once their version is known."""
    return [node for node in fleet.turns.fleet.usable("decode") if node.version]


@pytest.mark.parametrize("role", ["prefills", "decodes"])
async def test_back_pressure_of_an_engine_reaches_the_client(model: Path, role: str) -> None:
    """A 429 is passed on as it is, and not tried again."""
    async with running_fleet(model, prefills=2, decodes=2) as fleet:
        for node in getattr(fleet, role):
            node.faults.fail_next = [429]
        reply = await fleet.post(HI)
        assert reply.status == 429
        assert len(legs_of(getattr(fleet, role))) == 1


async def test_full_queue_is_429_with_retry_after(model: Path) -> None:
    """Beyond running and waiting turns the router says when to come again, in OpenAI's shape."""
    async with running_fleet(
        model, max_running_turns=1, max_waiting_turns=1, queue_timeout_s=0.3
    ) as fleet:
        fleet.prefills[0].faults.slow_next = [1.0]
        running = asyncio.create_task(fleet.post(HI))
        await until(lambda: fleet.turns.admission.running == 1)
        waiting = asyncio.create_task(fleet.post(HI))
        await until(lambda: fleet.turns.admission.waiting == 1)
        refused = await fleet.post(HI)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert set(refused.body["error"]) == OPENAI
        assert (await waiting).status == 429  # waited too long
        assert (await running).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_silent_decode_node_is_given_up(model: Path, stream: bool) -> None:
    """A D that says nothing for the limit is left, and the turn starts anew elsewhere."""
    async with running_fleet(model, decodes=2, silence_timeout_s=0.4) as fleet:
        fleet.decodes[0].faults.stall_next = 1
        reply = await fleet.turn(stream=stream)
        assert (reply.status, len(fleet.decodes[1].requests)) == (200, 1)


async def test_turn_that_never_begins_is_504(model: Path) -> None:
    """The limit of the whole turn holds, whatever its legs are allowed."""
    async with running_fleet(model, turn_timeout_s=0.3) as fleet:
        fleet.prefills[0].faults.stall_next = 1
        reply = await fleet.post(HI)
        assert (reply.status, reply.body["error"]["type"]) == (504, "timeout_error")
        assert (await fleet.post(HI)).status == 200


async def test_long_prefill_is_waited_for(model: Path) -> None:
    """No short fixed limit ends a prefill that takes its time."""
    async with running_fleet(model) as fleet:
        fleet.prefills[0].faults.slow_next = [2.5]
        assert (await fleet.post(HI)).status == 200
        assert len(fleet.prefills[0].requests) == 1


async def test_restarted_engine_is_met_without_an_error(model: Path) -> None:
    """Kept-alive connections that a restart has closed surface nowhere."""
    async with running_fleet(model) as fleet:
        for _ in range(3):
            assert (await fleet.turn()).status == 200
            for engine in (*fleet.prefills, *fleet.decodes):
                engine.restart()
        assert (await fleet.turn()).status == 200


@pytest.mark.parametrize("fault", ["garbage_next", "early_close_next", "reset_next"])
@pytest.mark.parametrize("role", ["prefills", "decodes"])
@pytest.mark.parametrize("stream", [False, True])
async def test_nonsense_of_one_engine_is_not_the_clients(
    model: Path, fault: str, role: str, stream: bool
) -> None:
    """Not HTTP, not JSON, half a reply: served elsewhere, or told in OpenAI's shape."""
    async with running_fleet(model, prefills=2, decodes=2) as fleet:
        setattr(getattr(fleet, role)[0].faults, fault, 1)
        reply = await fleet.post(HI | {"stream": stream})
        if reply.status == 200 and stream:
            last = reply.events[-1]
            assert last == "[DONE]" or set(last["error"]) == OPENAI
        elif reply.status != 200:
            assert set(reply.body["error"]) == OPENAI
        for _ in range(4):
            assert (await fleet.post(HI | {"stream": stream})).status == 200


async def test_megabyte_event_comes_through(model: Path) -> None:
    """One event of a megabyte, whole and once."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.huge_event_next = 1
        reply = await fleet.turn(stream=True)
        assert reply.status == 200
        assert len(reply.raw) > 1_000_000
        assert reply.events[-1] == "[DONE]"


async def test_stopping_router_ends_its_turns_and_takes_no_more(model: Path) -> None:
    """Running streams end whole; new turns are sent elsewhere by a 503; health says so."""
    async with running_fleet(model, engine={"token_ms": 30.0}, drain_s=5) as fleet:
        streaming = asyncio.create_task(fleet.turn(stream=True, max_tokens=12))
        await until(lambda: fleet.decodes[0].requests)
        stopping = asyncio.create_task(fleet.router.stop())
        await until(lambda: fleet.router.is_draining)
        refused = await fleet.post(HI)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        async with fleet.session.get(f"{fleet.url}/health") as health:
            assert (health.status, (await health.json())["status"]) == (503, "draining")
        reply = await streaming
        assert reply.events[-1] == "[DONE]"
        await asyncio.wait_for(stopping, 5)
