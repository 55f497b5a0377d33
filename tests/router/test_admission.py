"""A bounded number of turns, and a bounded queue before them."""

import asyncio
from types import SimpleNamespace

import pytest

from runtime.router.admission import Admission
from runtime.router.failure import RequestFailed
from tests.router.fleet import until


async def waiting(admission: Admission) -> asyncio.Task[None]:
    """A turn in the queue."""
    before = admission.waiting
    task = asyncio.create_task(admission.enter())
    await until(lambda: admission.waiting == before + 1)
    return task


async def test_turns_within_the_limit_do_not_wait() -> None:
    """So many turns begin at once."""
    admission = Admission(2, 0, 0.0)
    await admission.enter()
    await admission.enter()
    assert admission.running == 2


async def test_first_come_first_served() -> None:
    """The place of a turn that ends goes to who waits longest, and is never free between."""
    admission = Admission(1, 2, 5.0)
    await admission.enter()
    first, second = await waiting(admission), await waiting(admission)
    admission.leave()
    await first
    assert (admission.running, admission.waiting, second.done()) == (1, 1, False)
    admission.leave()
    await second
    assert (admission.running, admission.waiting) == (1, 0)


async def test_full_queue_refuses() -> None:
    """Beyond the queue the answer is 429 at once, with a time to come again."""
    admission = Admission(1, 1, 5.0)
    await admission.enter()
    task = await waiting(admission)
    with pytest.raises(RequestFailed, match="1 turns run, 1 wait") as refused:
        await admission.enter()
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    admission.leave()
    await task


async def test_long_wait_refuses() -> None:
    """Who waited too long gets 429, and holds no place afterwards."""
    admission = Admission(1, 1, 0.01)
    await admission.enter()
    with pytest.raises(RequestFailed) as refused:
        await admission.enter()
    assert refused.value.status == 429
    assert admission.waiting == 0
    admission.leave()
    assert admission.running == 0


@pytest.mark.parametrize("has_noticed", [True, False])
async def test_client_that_leaves_the_queue_holds_no_place(has_noticed: bool) -> None:
    """The next in the queue is served in its stead."""
    admission = Admission(1, 2, 5.0)
    await admission.enter()
    gone, next_ = await waiting(admission), await waiting(admission)
    gone.cancel()
    if has_noticed:
        await asyncio.wait([gone])
    admission.leave()
    await next_
    assert gone.cancelled()
    assert (admission.running, admission.waiting) == (1, 0)


@pytest.mark.parametrize("someone_waits", [False, True])
async def test_place_given_to_a_client_that_leaves_is_given_on(someone_waits: bool) -> None:
    """A place granted in the moment of a cancellation is lost to nobody."""
    admission = Admission(1, 2, 5.0)
    await admission.enter()
    gone = await waiting(admission)
    next_ = await waiting(admission) if someone_waits else None
    admission.leave()  # the place is its own now, but it has not run since
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    if next_ is not None:
        await next_
    assert admission.running == (1 if someone_waits else 0)
    assert admission.idle.is_set() is not someone_waits


async def test_idle_is_told_when_the_last_turn_ends() -> None:
    """A router that drains waits for exactly this."""
    admission = Admission(2, 0, 0.0)
    assert admission.idle.is_set()
    await admission.enter()
    await admission.enter()
    admission.leave()
    assert not admission.idle.is_set()
    admission.leave()
    assert admission.idle.is_set()


async def test_idle_time_counts_from_the_end_of_the_last_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the start before the first one; none passes while a turn runs."""
    now_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr("runtime.router.admission.time", clock)
    admission = Admission(2, 0, 0.0)
    now_s[0] = 160.0
    assert admission.idle_s == 60
    await admission.enter()
    now_s[0] = 200.0
    assert admission.idle_s == 0
    admission.leave()
    now_s[0] = 230.0
    assert admission.idle_s == 30
