"""Short soaks; the long ones are `make soak`."""

import logging
from typing import Any

import pytest

from runtime.router.store import MemoryStore
from tests.router.redis_server import RedisServer
from tests.soak import run
from tests.soak.run import soak

TURNS = 800


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The mock engines log each connection that a fault ends."""
    caplog.set_level(logging.CRITICAL, "aiohttp.server")


def nothing(_turns: int) -> None:
    """No progress is shown."""


async def test_memory_soak_breaks_no_rule() -> None:
    """Whatever engines and clients do, nothing is sent twice, mixed up or left behind."""
    verdict = await soak(TURNS, 11, None, nothing)
    assert verdict.broken_rules == []
    assert verdict.outcome.turns >= TURNS
    assert verdict.outcome.paths["warm"] > TURNS / 8
    assert verdict.outcome.counts["left"] > 0
    assert len(verdict.faults) >= 8


async def test_shared_store_soak_breaks_no_rule(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a store that stops, dies and comes back."""
    monkeypatch.setattr(run, "_STORE_FAULT_EVERY_S", 0.5)
    server = RedisServer(str(tmp_path))
    try:
        verdict = await soak(TURNS, 12, server, nothing)
    finally:
        server.process.kill()
        server.process.wait()
    assert verdict.broken_rules == []
    assert verdict.outcome.paths["warm"] > TURNS / 10
    assert verdict.faults["stopped"] + verdict.faults["killed"] > 0


async def test_soak_sees_a_handle_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives a handle out and keeps it is found out, and nothing hides it."""
    take = MemoryStore.take

    async def take_and_keep(self: MemoryStore, *args: Any) -> Any:
        taken = await take(self, *args)
        if taken is not None:
            await self.put_back(taken, args[1])
        return taken

    monkeypatch.setattr(MemoryStore, "take", take_and_keep)
    verdict = await soak(200, 13, None, nothing)
    assert any("sent twice" in rule for rule in verdict.broken_rules)
