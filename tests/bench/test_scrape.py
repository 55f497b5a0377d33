"""Engine counters are read once they stand still, and may be missing."""

from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import pytest
from aiohttp import web

from runtime.bench.scrape import COUNTERS, difference, scrape, settled_scrape

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


def page(reads: int) -> str:
    return (
        "# TYPE vllm:nixl_xfer_time_seconds histogram\n"
        f'vllm:nixl_xfer_time_seconds_count{{engine="0"}} {reads}.0\n'
        f'vllm:nixl_xfer_time_seconds_sum{{engine="0"}} {reads / 4}\n'
        f'vllm:nixl_bytes_transferred_sum{{engine="0"}} {reads * 1024}.0\n'
        f'vllm:nixl_num_failed_transfers_total{{engine="0"}} 2.0\n'
        f'vllm:nixl_num_notifications_after_expiry_total{{engine="0"}} 1.0\n'
    )


def counting(readings: Sequence[int], asked: list[str]) -> Handler:
    """Shows the readings one after the other and then the last one for ever."""

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(text=page(readings[min(len(asked), len(readings)) - 1]))

    return handle


async def test_counters_have_the_reports_names(serve: Serve) -> None:
    """A scrape gives one value for every counter of the report."""
    asked: list[str] = []
    url = await serve(counting([8], asked))
    async with aiohttp.ClientSession() as session:
        assert await scrape(session, url) == {
            "nixl_reads": 8,
            "nixl_bytes": 8192,
            "nixl_seconds": 2.0,
            "failed_transfers": 2,
            "reads_after_free": 1,
        }
    assert asked == ["/metrics"]


async def test_a_settled_scrape_waits_for_late_counters(serve: Serve) -> None:
    """Readings are taken until two in a row agree."""
    asked: list[str] = []
    url = await serve(counting([3, 5, 8], asked))
    async with aiohttp.ClientSession() as session:
        found = await settled_scrape(session, url, every_s=0.01)
    assert found is not None
    assert found["nixl_reads"] == 8
    assert len(asked) == 4


async def test_a_settled_scrape_ends_while_counters_still_move(serve: Serve) -> None:
    """An engine that others keep busy does not hold up the report."""
    asked: list[str] = []
    url = await serve(counting(range(1000), asked))
    async with aiohttp.ClientSession() as session:
        await settled_scrape(session, url, every_s=0.01, limit_s=0.05)
    assert len(asked) == 6


@pytest.mark.parametrize("status", [404, 503])
async def test_an_engine_without_metrics_gives_none(serve: Serve, status: int) -> None:
    """An error page is no reading."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=page(8))

    url = await serve(handle)
    async with aiohttp.ClientSession() as session:
        assert await scrape(session, url) is None


async def test_a_dead_engine_gives_none() -> None:
    """A run whose engine died can still be reported."""
    async with aiohttp.ClientSession() as session:
        assert await scrape(session, "http://127.0.0.1:1") is None


def test_the_difference_covers_the_run() -> None:
    """Counts from before the run are taken off; a missing reading leaves none."""
    before, after = dict.fromkeys(COUNTERS, 2.0), dict.fromkeys(COUNTERS, 5.0)
    assert difference(before, after) == dict.fromkeys(COUNTERS, 3.0)
    assert difference(None, after) is None
    assert difference(before, None) is None
