"""Short soaks; the long ones are `make soak`."""

import asyncio
import logging
import re
from typing import Any

import pytest

from runtime.router.release import Releases
from runtime.router.store import MemoryStore
from tests.router.fleet import Fleet
from tests.soak import play, run
from tests.soak.run import shared_store, soak

TURNS = 800


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The mock engines log each connection that a fault ends."""
    caplog.set_level(logging.CRITICAL, "aiohttp.server")


def nothing(_turns: int) -> None:
    """No progress is shown."""


async def test_clients_strand_nothing() -> None:
    """Whenever they leave: no P dict ends with its lease, D keeps what the store knows."""
    verdict = await soak(TURNS, 11, None, nothing, is_calm=True)
    assert verdict.broken_rules == []
    assert verdict.outcome.counts["left"] > TURNS / 50
    assert verdict.outcome.counts["answered"] > TURNS / 2


async def test_clients_strand_nothing_with_a_shared_store() -> None:
    """The same where handles are in Redis."""
    async with shared_store() as shared:
        verdict = await soak(TURNS, 12, shared, nothing, is_calm=True)
    assert verdict.broken_rules == []
    assert verdict.outcome.paths["warm"] > TURNS / 8


async def test_failing_engines_break_no_rule() -> None:
    """Whatever engines and clients do, nothing is sent twice, mixed up or left behind."""
    verdict = await soak(TURNS, 13, None, nothing)
    assert verdict.broken_rules == []
    assert verdict.outcome.turns >= TURNS
    assert verdict.outcome.paths["warm"] > TURNS / 8
    assert len(verdict.faults) >= 8


async def test_failing_store_breaks_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with a store that stops, dies, comes back and fails over."""
    monkeypatch.setattr(run, "_STORE_FAULT_EVERY_S", 0.3)
    async with shared_store() as shared:
        verdict = await soak(2 * TURNS, 15, shared, nothing)
    assert verdict.broken_rules == []
    assert verdict.outcome.paths["warm"] > 5
    assert sum(verdict.faults[kind] for kind in ("stopped", "killed", "failed_over")) >= 1


async def test_soak_tells_where_a_turn_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn without a reply is found out before the client gives up, with what it waits for."""

    async def never_answered(*_args: Any, **_more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(play, "_HANGS_AFTER_S", 0.05)
    monkeypatch.setattr(Fleet, "post", never_answered)
    verdict = await soak(run.PLAYERS, 18, None, nothing, is_calm=True)
    count, told, *_ = verdict.broken_rules
    assert count.endswith("replies that no client may get")
    assert re.search(r"test_soak\.py:\d+ never_answered > locks\.py:\d+ wait", told)


async def test_soak_sees_a_handle_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives a handle out and keeps it is found out, and nothing hides it."""
    take = MemoryStore.take

    async def take_and_keep(self: MemoryStore, *args: Any) -> Any:
        taken = await take(self, *args)
        if taken is not None:
            await self.put_back(taken, args[1])
        return taken

    monkeypatch.setattr(MemoryStore, "take", take_and_keep)
    verdict = await soak(200, 16, None, nothing, is_calm=True)
    assert any("sent twice" in rule for rule in verdict.broken_rules)


async def test_soak_sees_what_is_never_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that releases nothing strands blocks on both nodes, and is found out."""
    monkeypatch.setattr(Releases, "start", lambda *_args: None)
    verdict = await soak(600, 17, None, nothing, is_calm=True)
    told = " ".join(verdict.broken_rules)
    assert "on prefill nodes" in told
    assert "on decode nodes" in told
