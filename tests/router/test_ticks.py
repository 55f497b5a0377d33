"""Waits below a millisecond."""

import asyncio
import time
from pathlib import Path

import pytest

from runtime.router.ticks import Ticks
from tests.router.peer import connected, echo

AFTER_S = 0.002


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_tick_comes_once_and_not_early() -> None:
    """Each call back comes once, after the time and not before."""
    ticks = Ticks(AFTER_S)
    told: list[float] = []
    began_s = time.monotonic()
    ticks.call(lambda: told.append(time.monotonic() - began_s))
    await asyncio.sleep(20 * AFTER_S)
    ticks.close()
    assert len(told) == 1
    assert told[0] >= AFTER_S


async def test_who_asks_meanwhile_shares_the_tick() -> None:
    """Many waits are one timer; a wait that begins in a call back is for the next tick."""
    ticks = Ticks(AFTER_S)
    told: list[str] = []

    def again() -> None:
        told.append("first")
        ticks.call(lambda: told.append("next"))

    ticks.call(again)
    ticks.call(lambda: told.append("second"))
    while len(told) < 2:
        await asyncio.sleep(0)
    assert told == ["first", "second"]
    await asyncio.sleep(20 * AFTER_S)
    ticks.close()
    assert told == ["first", "second", "next"]


async def test_wait_is_shorter_than_the_loops_own() -> None:
    """What it is for: uvloop's timers count milliseconds, this one does not."""
    ticks = Ticks(0.0001)
    waits_s = []
    for _ in range(20):
        is_over = asyncio.Event()
        began_s = time.monotonic()
        ticks.call(is_over.set)
        await is_over.wait()
        waits_s.append(time.monotonic() - began_s)
    ticks.close()
    assert 0.0001 <= min(waits_s) < 0.001


async def test_no_tick_after_the_end() -> None:
    """Closing forgets who waits, and gives the descriptor back."""
    before = open_files()
    ticks = Ticks(AFTER_S)
    told: list[str] = []
    ticks.call(lambda: told.append("late"))
    ticks.close()
    await asyncio.sleep(10 * AFTER_S)
    assert told == []
    assert open_files() == before


async def test_no_descriptor_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel gives no timer, that is said at once."""

    class Libc:
        def timerfd_create(self, _clock: int, _flags: int) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_args, **_options: Libc())
    with pytest.raises(OSError, match="timerfd_create"):
        Ticks(AFTER_S)


async def test_who_asks_again_and_again_holds_up_nobody() -> None:
    """A tick is due from the first call on, not from the last."""
    ticks = Ticks(5 * AFTER_S)
    told: list[str] = []
    ticks.call(lambda: told.append("first"))
    for _ in range(20):
        await asyncio.sleep(AFTER_S)
        if told:
            break
        ticks.call(lambda: None)
    ticks.close()
    assert told == ["first"]


async def test_client_gives_its_timer_back() -> None:
    """Not one file of a closed client stays open."""
    counts = []
    for _ in range(3):  # the loop's own files come with the first
        async with connected(echo) as (ask, _):
            assert await ask.whole(b"x") == b"x"
        await asyncio.sleep(10 * AFTER_S)
        counts.append(open_files())
    assert counts[1] == counts[2]
