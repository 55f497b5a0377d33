"""Engine counters are read once they stand still, and may be missing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import pytest
from aiohttp import web

from runtime.bench.folder import Sample
from runtime.bench.scrape import (
    COUNTERS,
    Sampler,
    Server,
    difference,
    read_values,
    scrape,
    settled_scrape,
)

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
        f'vllm:nixl_num_kv_expired_reqs_total{{engine="0"}} 3.0\n'
        f'vllm:external_prefix_cache_hits_total{{engine="0"}} 640.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        'vllm:num_requests_running{engine="0"} 4.0\n'
        'vllm:num_requests_waiting{engine="0"} 2.0\n'
        'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="100"} 1.0\n'
        'vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="100"} 1.0\n'
        "turnback_turns_running 3.0\n"
        "turnback_turns_waiting 1.0\n"
        'turnback_pinned_tokens{node="d1",role="decode"} 64.0\n'
        'turnback_pinned_tokens{node="d2",role="decode"} 96.0\n'
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
            "expired": 3,
            "pulled_tokens": 640,
            "preemptions": 0,
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


async def test_an_engines_reading_has_what_a_timeline_shows(serve: Serve) -> None:
    """Its ranks' mean KV usage, its load, and how many tokens its blocks hold."""
    url = await serve(counting([8], []))
    async with aiohttp.ClientSession() as session:
        values = await read_values(session, Server("decode", url))
    assert set(values) == {*COUNTERS, "kv_usage", "running", "waiting", "capacity_tokens"}
    assert (values["kv_usage"], values["running"], values["waiting"]) == (0.5, 4.0, 2.0)
    assert values["capacity_tokens"] == 3200


async def test_a_routers_reading_has_the_pins(serve: Serve) -> None:
    """Over all decode nodes."""
    url = await serve(counting([8], []))
    async with aiohttp.ClientSession() as session:
        values = await read_values(session, Server("router", url))
    assert values == {"running": 3.0, "waiting": 1.0, "pinned_tokens": 160.0}


async def test_the_sampler_reads_on_whatever_happens(serve: Serve) -> None:
    """A dead server is a reading without values each time; the others are read beside it."""
    url, found = await serve(counting(range(1000), [])), list[Sample]()
    servers = [Server("decode", url), Server("prefill", "http://127.0.0.1:1")]
    async with aiohttp.ClientSession() as session:
        sampler = Sampler(session, servers, found.append)
        await sampler.settle(every_s=0.01, limit_s=0.03)
        sampler.begin()
        async with sampler.running(every_s=0.01):
            while sum(one.role == "decode" for one in found) < 4:
                await asyncio.sleep(0.01)
        stopped = len(found)
        await asyncio.sleep(0.05)
    assert len(found) == stopped
    alive = [one for one in found if one.role == "decode"]
    assert all(one.values for one in alive)
    assert alive[0].at_s < 0 <= alive[1].at_s <= alive[-1].at_s < 5
    dead = [one for one in found if one.role == "prefill"]
    assert dead
    assert not any(one.values for one in dead)


@pytest.mark.parametrize("said", [b"\xff\xfe", b"one", b"NaN", b"+Inf"])
async def test_the_sampler_outlives_a_page_of_nonsense(serve: Serve, said: bytes) -> None:
    """What is no text or no number is no reading, and the next one is taken."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"vllm:num_requests_running " + said)

    url, found = await serve(handle), list[Sample]()
    async with aiohttp.ClientSession() as session:
        sampler = Sampler(session, [Server("decode", url)], found.append)
        async with sampler.running(every_s=0.01):
            while len(found) < 3:
                await asyncio.sleep(0.01)
    assert [one.values for one in found[:3]] == [{}, {}, {}]
