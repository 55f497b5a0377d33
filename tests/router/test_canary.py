"""The canary: warm turns that are run again cold, and what their differences lead to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from runtime.router.apis import CHAT, Api, Body
from runtime.router.conversation import Message
from runtime.router.metrics import RouterMetrics
from runtime.router.reuse import Canary, ReuseSwitch
from runtime.router.store import MemoryStore
from tests.router.fleet import until

WARM = Message("assistant", "The secret answer is blue.")
OTHER = Message("assistant", "The secret answer is red.")
BODY: Body = {
    "messages": [{"role": "user", "content": "my-secret-prompt"}],
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.fixture
def metrics() -> RouterMetrics:
    """Of one router."""
    return RouterMetrics()


def shown(metrics: RouterMetrics, line: str) -> bool:
    """Whether the metrics page has a line."""
    return line in metrics.page().decode().splitlines()


class ColdRuns:
    """Answers that engines give to cold runs, in turn; holds them up while it is told to."""

    def __init__(self, *answers: Message | None) -> None:
        self.answers = list(answers)
        self.bodies: list[Body] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, _api: Api, body: Body, authorization: str | None) -> Message | None:
        assert authorization == "Bearer k"
        self.bodies.append(body)
        await self.go_on.wait()
        return self.answers.pop(0)


def canary_of(
    run_cold: Callable[[Api, Body, str | None], Awaitable[Message | None]],
    metrics: RouterMetrics,
    share: float = 1.0,
    bar: int = 3,
) -> tuple[Canary, ReuseSwitch]:
    """A canary, and the switch that it may throw."""
    switch = ReuseSwitch(MemoryStore(), metrics)
    return Canary(share, bar, run_cold, switch, metrics), switch


async def compared(canary: Canary) -> None:
    """One warm turn has been answered; wait for its comparison."""
    canary.consider(CHAT, BODY, WARM, "Bearer k")
    task = canary._running
    assert task is not None
    await task


@pytest.mark.parametrize(
    ("cold", "outcome"),
    [
        ((WARM,), "equal"),
        ((OTHER, WARM), "noise"),
        ((OTHER, OTHER), "different"),
        ((None,), "failed"),
        ((OTHER, None), "failed"),
    ],
)
async def test_outcome_is_counted(
    metrics: RouterMetrics, cold: tuple[Message | None, ...], outcome: str
) -> None:
    """Only an answer that two cold runs agree on can show a warm one to be different."""
    runs = ColdRuns(*cold)
    canary, switch = canary_of(runs, metrics)
    await compared(canary)
    assert runs.answers == []
    assert shown(metrics, f'turnback_canary_total{{outcome="{outcome}"}} 1.0')
    assert switch.is_on


async def test_cold_run_is_the_same_request_without_any_cache(metrics: RouterMetrics) -> None:
    """Whole, not streamed, and with a salt of its own each time."""
    runs = ColdRuns(OTHER, OTHER)
    canary, _ = canary_of(runs, metrics)
    await compared(canary)
    first, second = runs.bodies
    assert first["messages"] == BODY["messages"]
    assert first["stream"] is False
    assert "stream_options" not in first
    assert first["cache_salt"] != second["cache_salt"]
    assert BODY["stream"] is True


async def test_difference_is_logged_without_any_text(
    metrics: RouterMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """One error line with lengths and the place; no word of prompt or answer."""
    caplog.set_level(logging.DEBUG)
    canary, _ = canary_of(ColdRuns(OTHER, OTHER), metrics)
    await compared(canary)
    (record,) = [record for record in caplog.records if record.name.startswith("turnback")]
    assert record.levelno == logging.ERROR
    assert "26 and 25 characters, alike up to character 21" in record.getMessage()
    for word in ("secret", "blue", "red"):
        assert word not in caplog.text


async def test_differences_past_the_bar_switch_reuse_off(
    metrics: RouterMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Below the bar it stays on; at the bar it is off, with the reason, and counting restarts."""
    runs = ColdRuns(OTHER, OTHER, WARM, OTHER, OTHER)
    canary, switch = canary_of(runs, metrics, bar=2)
    await compared(canary)
    await compared(canary)
    assert switch.is_on
    await compared(canary)
    assert switch.off_reason is not None
    assert "2 of the last 3" in switch.off_reason
    assert "secret" not in caplog.text
    await switch.switch(None)
    runs.answers = [OTHER, OTHER]
    await compared(canary)
    assert switch.is_on


async def test_old_differences_are_forgotten(metrics: RouterMetrics) -> None:
    """The bar is for the last 100 comparisons."""
    runs = ColdRuns()
    canary, switch = canary_of(runs, metrics, bar=2)
    runs.answers = [OTHER, OTHER, *[WARM] * 100, OTHER, OTHER]
    for _ in range(102):
        await compared(canary)
    assert switch.is_on


async def test_one_comparison_at_a_time(metrics: RouterMetrics) -> None:
    """Warm turns meanwhile are not compared: the engines are there for clients."""
    runs = ColdRuns(WARM, WARM)
    canary, _ = canary_of(runs, metrics)
    runs.go_on.clear()
    for _ in range(5):
        canary.consider(CHAT, BODY, WARM, "Bearer k")
        await asyncio.sleep(0)
    assert len(runs.bodies) == 1
    runs.go_on.set()
    await until(lambda: canary._running is None or canary._running.done())
    await compared(canary)
    assert len(runs.bodies) == 2


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 50)])
async def test_share_of_warm_turns(metrics: RouterMetrics, share: float, expected: int) -> None:
    """At 0 no turn is compared, at 1 every one."""
    runs = ColdRuns(*[WARM] * 50)
    canary, _ = canary_of(runs, metrics, share=share)
    for _ in range(50):
        canary.consider(CHAT, BODY, WARM, "Bearer k")
        await until(lambda: canary._running is None or canary._running.done())
    assert len(runs.bodies) == expected


async def test_cold_run_that_breaks_is_counted(
    metrics: RouterMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """An error there, which may name the prompt, ends neither the router nor the canary."""

    async def run_cold(_api: Api, _body: Body, _key: str | None) -> Message | None:
        raise ValueError("my-secret-prompt")

    canary, switch = canary_of(run_cold, metrics)
    await compared(canary)
    assert shown(metrics, 'turnback_canary_total{outcome="failed"} 1.0')
    assert switch.is_on
    assert "secret" not in caplog.text


async def test_close_ends_what_runs(metrics: RouterMetrics) -> None:
    """A stopping router waits for no canary."""
    runs = ColdRuns(WARM)
    canary, _ = canary_of(runs, metrics)
    await canary.close()
    runs.go_on.clear()
    canary.consider(CHAT, BODY, WARM, "Bearer k")
    await asyncio.sleep(0)
    await canary.close()
    assert canary._running is not None
    assert canary._running.cancelled()
