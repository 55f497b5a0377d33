"""The switch that all routers share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.router import reuse
from runtime.router.metrics import RouterMetrics
from runtime.router.reuse import ReuseSwitch
from runtime.router.store import MemoryStore
from tests.router.fleet import until


class FlakyStore(MemoryStore):
    """A store that can be down, or slow to tell the switch."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.gate: asyncio.Event | None = None

    async def reuse_off(self) -> str | None:
        """As the store's, when it is up; the gate holds up an answer that is known."""
        if self.is_down:
            raise TimeoutError("down")
        found = await super().reuse_off()
        if self.gate is not None:
            await self.gate.wait()
        return found

    async def set_reuse_off(self, reason: str | None) -> bool:
        """As the store's, when it is up."""
        return not self.is_down and await super().set_reuse_off(reason)


@pytest.fixture
def metrics() -> RouterMetrics:
    """Of one router."""
    return RouterMetrics()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch is looked at often."""
    monkeypatch.setattr(reuse, "_FOLLOW_S", 0.005)


@asynccontextmanager
async def following(switch: ReuseSwitch) -> AsyncIterator[None]:
    """Let a router follow the store."""
    task = asyncio.create_task(switch.follow())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def shown(metrics: RouterMetrics, line: str) -> bool:
    """Whether the metrics page has a line."""
    return line in metrics.page().decode().splitlines()


@pytest.mark.usefixtures("quick")
async def test_switch_follows_the_store(
    metrics: RouterMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """What another router has told the store holds here too; the metric and one line show it."""
    store = MemoryStore()
    switch = ReuseSwitch(store, metrics)
    assert switch.is_on
    assert shown(metrics, "turnback_reuse_on 1.0")
    async with following(switch):
        await store.set_reuse_off("another's reason")
        await until(lambda: switch.off_reason == "another's reason")
        assert shown(metrics, "turnback_reuse_on 0.0")
        await store.set_reuse_off(None)
        await until(lambda: switch.is_on)
        assert shown(metrics, "turnback_reuse_on 1.0")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["reuse is off: another's reason", "reuse is on"]


@pytest.mark.usefixtures("quick")
async def test_switch_stays_while_the_store_is_down(metrics: RouterMetrics) -> None:
    """A store that cannot be asked changes nothing, and is followed again later."""
    store = FlakyStore()
    switch = ReuseSwitch(store, metrics)
    async with following(switch):
        await store.set_reuse_off("off")
        await until(lambda: not switch.is_on)
        store.is_down = True
        await asyncio.sleep(0.05)
        assert not switch.is_on
        store.is_down = False
        await store.set_reuse_off(None)
        await until(lambda: switch.is_on)


@pytest.mark.usefixtures("quick")
async def test_switch_that_the_store_has_not_heard_is_told_later(metrics: RouterMetrics) -> None:
    """Off in this router alone, it does not turn itself on when the store is back."""
    store = FlakyStore()
    switch = ReuseSwitch(store, metrics)
    async with following(switch):
        store.is_down = True
        assert not await switch.switch("alone")
        assert not switch.is_on
        store.is_down = False
        await until(lambda: store._off_reason == "alone")
        await asyncio.sleep(0.05)
        assert switch.off_reason == "alone"


@pytest.mark.usefixtures("quick")
async def test_old_answer_does_not_undo_a_switch(metrics: RouterMetrics) -> None:
    """What the store said before it was told counts no more."""
    store = FlakyStore()
    switch = ReuseSwitch(store, metrics)
    store.gate = asyncio.Event()
    async with following(switch):
        await asyncio.sleep(0)  # the store has been asked, its answer is under way
        await switch.switch("now")
        store.gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
            assert not switch.is_on
