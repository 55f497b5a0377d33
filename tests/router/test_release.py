"""Handles that nobody will use are given back to their decode node."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from runtime.contract.http import PIN_HEADER
from runtime.engine_api import NIXL_AFTER_EXPIRY
from tests.router.fleet import (
    assert_used_once,
    running_engine,
    running_fleet,
    until,
    unused_port,
    url_of,
)


async def test_handle_that_a_newer_one_replaces_is_given_back(model: Path) -> None:
    """Two turns of one conversation at once: one handle is kept, the other's blocks are free."""
    async with running_fleet(model) as fleet:
        await asyncio.gather(fleet.turn(), fleet.turn())
        await until(lambda: fleet.decodes[0].transfers.kept_count == 1)
        assert len(fleet.stored) == 1
        assert await fleet.metric('turnback_releases_total{outcome="done"} 1.0')
        assert (await fleet.turn("and then")).path == "warm"
        assert_used_once(fleet)


async def test_handle_of_a_refused_turn_is_given_back(model: Path) -> None:
    """P's API refuses the request: its engine has not seen the handle, nor will another."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        fleet.prefills[0].faults.fail_next = [400]
        assert (await fleet.turn()).status == 400
        await until(lambda: fleet.decodes[0].transfers.kept_count == 0)
        assert fleet.decodes[0].transfers.counters[NIXL_AFTER_EXPIRY] == 0
        assert (await fleet.turn()).path == "cold"


async def test_stopping_router_gives_everything_back(model: Path) -> None:
    """Its store ends with it; what it held would be pinned for nothing."""
    async with running_fleet(model) as fleet:
        for key in ("one", "two", "three"):
            await fleet.turn(key=key)
        kept = fleet.decodes[0].transfers
        assert kept.kept_count == 3
        await fleet.turns.close()
        assert kept.kept_count == 0
        assert len(fleet.stored) == 0


async def test_handle_goes_on_to_a_prefill_node_that_can_be_reached(model: Path) -> None:
    """A refused connection has sent nothing: the handle is as good as before."""
    async with running_fleet(model, dead_prefills=1) as fleet:
        paths = [(await fleet.turn()).path for _ in range(4)]
        assert paths == ["cold", "warm", "warm", "warm"]
        assert_used_once(fleet)


async def test_handle_outlives_a_turn_that_reached_nobody(model: Path) -> None:
    """No P can be reached: 503 for the turn, and the next one still has its handle."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        (node,) = fleet.turns.fleet.usable("prefill")
        reachable, node.url = node.url, f"http://127.0.0.1:{unused_port()}"
        assert (await fleet.turn()).status == 503
        node.url = reachable
        assert (await fleet.turn()).path == "warm"


async def test_last_turn_takes_a_handle_and_leaves_none(model: Path) -> None:
    """The client says that it will not come back: nothing is pinned for it."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        last = await fleet.turn(headers={PIN_HEADER: "off"})
        assert last.path == "warm"
        assert fleet.decodes[0].transfers.kept_count == 0
        assert len(fleet.stored) == 0


async def test_ended_conversation_is_given_back(model: Path) -> None:
    """POST /conversations/{id}/end: once, whatever the id holds; others keep theirs."""
    async with running_fleet(model) as fleet:
        await fleet.turn(key="a talk/1")
        await fleet.turn(key="other")
        for released in (1, 0):
            url = f"{fleet.url}/conversations/a%20talk%2F1/end"
            async with fleet.session.post(url) as reply:
                assert await reply.json() == {"released": released}
        await until(lambda: fleet.decodes[0].transfers.kept_count == 1)
        assert (await fleet.turn(key="other")).path == "warm"


@pytest.mark.parametrize("fault", ["gone", "refuses"])
async def test_release_that_fails_is_counted(model: Path, fault: str) -> None:
    """D frees the blocks at its TTL; nothing else depends on it."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        (stored,) = await fleet.turns.store.close()
        if fault == "gone":
            (node,) = fleet.turns.fleet.usable("decode")
            lost = dataclasses.replace(stored, decode_url=f"http://127.0.0.1:{unused_port()}")
            fleet.turns.fleet._nodes["decode", lost.decode_url] = node
        else:
            lost = dataclasses.replace(stored, handle={"remote_host": 7, "remote_engine_id": "e"})
        await fleet.turns.store.put(lost, 0.0, None)
        await fleet.turns.close()
        assert await fleet.metric('turnback_releases_total{outcome="failed"} 1.0')


async def test_blocks_go_back_to_no_other_address(model: Path) -> None:
    """A stored URL that is no node of the configuration gets neither handle nor key."""
    async with running_fleet(model) as fleet, running_engine(model, "decode") as foreign:
        await fleet.turn()
        (stored,) = await fleet.turns.store.close()
        moved = dataclasses.replace(stored, decode_url=url_of(foreign))
        await fleet.turns.store.put(moved, 0.0, None)
        async with fleet.session.post(f"{fleet.url}/conversations/talk/end") as reply:
            assert (await reply.json())["released"] == 1
        await fleet.turns.releases.finish()
        assert not await fleet.metric('turnback_releases_total{outcome="done"} 1.0')
        await fleet.turns.store.put(moved, 0.0, None)
        assert (await fleet.turn()).path == "cold"
