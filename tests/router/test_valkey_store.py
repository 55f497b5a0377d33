"""The shared store when its server is slow, away, or asked by many at once."""

import asyncio
import time
import uuid
from collections.abc import Iterator

import pytest
from valkey import Valkey

from runtime.router.valkey_store import ValkeyStore
from tests.router.fleet import until, unused_port
from tests.router.redis_server import Proxy, RedisServer, proxy_to, redis_server
from tests.router.stored import (
    BACK_S,
    TIMEOUT_S,
    handle,
    history,
    joined,
    key,
    names,
    put_all,
    taken_name,
    told,
    warnings_of,
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One server for all tests here that leave it as it is."""
    with redis_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server to stop and to end."""
    with redis_server() as running:
        yield running


async def test_two_routers_never_take_one_handle_both(server: RedisServer) -> None:
    """Of takes at the same time exactly one wins, by its key and by its id."""
    deployment = uuid.uuid4().hex
    async with joined(server.url, deployment, 1.0) as one, joined(server.url, deployment) as two:
        for at in range(100):
            await put_all(one, handle(f"b{at}", f"a{at}", conversation=str(at)))
            asked = history("edited" if at % 2 else f"b{at}", f"a{at}", conversation=str(at))
            won = await asyncio.gather(*(store.take(asked, 0.0) for store in (one, two) * 3))
            assert [told(taken) for taken in won if taken] == [(f"b{at}", bool(at % 2))]


async def test_many_turns_share_few_connections(server: RedisServer) -> None:
    """A burst neither opens a connection per turn nor mixes up the answers."""
    async with (
        proxy_to(server.port) as proxy,
        joined(proxy.url, uuid.uuid4().hex, 2.0) as store,
    ):
        every = [str(at) for at in range(200)]
        await asyncio.gather(*(store.put(handle(name), 0.0, None) for name in every))
        assert await asyncio.gather(*(taken_name(store, name) for name in every)) == every
        assert 1 < proxy.connections <= 8


async def test_operation_costs_one_round_trip(own_server: RedisServer) -> None:
    """Scripts are sent once; later they are named by their digest, also after a flush."""
    async with joined(own_server.url, timeout_s=1.0) as store:
        with Valkey(port=own_server.port) as admin:
            for at in range(20):
                await put_all(store, handle(str(at)))
            counts = admin.info("commandstats")
            assert counts["cmdstat_eval"]["calls"] == 1
            assert counts["cmdstat_evalsha"]["calls"] == 20
            assert counts["cmdstat_info"]["calls"] == 2  # of the one connection
            admin.script_flush()
        assert await taken_name(store, "3") == "3"
        assert store.failures == 0


async def test_nothing_lives_for_ever(own_server: RedisServer) -> None:
    """Every key has a TTL, and what belongs to handles goes with them."""
    async with joined(own_server.url, timeout_s=1.0) as store:
        await put_all(store, handle("b", "a", conversation="id"), handle("c", conversation="id"))
        await store.take(history("x", "a", conversation="id"), 0.0)
        await store.take(history("b", "a", conversation="id"), 0.0)
        await put_all(store, handle("d", "a", conversation="id", deadline_s=0.2))
        await store.set_reuse_off("off")
        with Valkey(port=own_server.port) as admin:
            kinds = {name.decode().split(":")[3] for name in admin.keys("*:*:*:*")}
            assert kinds == {"h", "a", "e", "t", "i", "l", "b"}
            assert [name for name in admin.keys("*") if admin.ttl(name) < 0] == []
            await until(lambda: not admin.keys(f"*:h:{key('d').hex()}"))
            await put_all(store, handle("f", conversation="id"))
            for listed in ("*:e:e", f"*:i:{key('id').hex()}"):
                assert admin.zcard(admin.keys(listed)[0]) == len(admin.keys("*:h:*"))
            await store.end(key("id"))
            assert admin.keys("*:h:*") == admin.keys("*:a:*") == []


async def test_store_that_is_down_from_the_start_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Turns run cold without delay, one line says so, and it is used once it is there."""
    with redis_server() as later:
        later.kill()
        async with joined(later.url) as store:
            await store.check()
            assert not store.is_up
            began_s = time.perf_counter()
            assert await taken_name(store, "a") is None
            assert names(await store.put(handle("a"), 0.0, None)) == ["a"]
            assert (await store.end(key("id")), await store.drop_engine("e")) == ([], 0)
            assert time.perf_counter() - began_s < TIMEOUT_S
            assert not await store.set_reuse_off("off")
            assert len(warnings_of(caplog)) == 1
            later.start()
            await until(lambda: store.is_up, BACK_S)
            await put_all(store, handle("a"))
            assert await taken_name(store, "a") == "a"
            assert len(warnings_of(caplog)) == 2


async def test_refused_connection_gives_the_handle_back() -> None:
    """What was surely not stored is the caller's; nobody else can have it."""
    async with joined(f"redis://127.0.0.1:{unused_port()}") as store:
        assert names(await store.put(handle("a"), 0.0, None)) == ["a"]
        assert not store.is_up


async def test_killed_server_costs_cold_turns_only(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that break are no error of a turn; the next server is used by itself."""
    async with joined(own_server.url) as store:
        await put_all(store, handle("a"))
        own_server.kill()
        assert await taken_name(store, "a") is None
        assert not store.is_up
        assert names(await store.put(handle("b"), 0.0, None)) == ["b"]
        assert len(warnings_of(caplog)) == 1
        own_server.start()
        await until(lambda: store.is_up, BACK_S)
        await put_all(store, handle("c"))
        assert await taken_name(store, "c") == "c"


async def test_paused_server_is_given_up_in_time(own_server: RedisServer) -> None:
    """No operation waits much longer than its limit, and then none waits at all."""
    waits_s = []
    for at in range(3):
        async with joined(own_server.url, timeout_s=1.0) as store:
            await put_all(store, handle(str(at)))
            store._link._timeout_s = TIMEOUT_S
            own_server.pause()
            began_s = time.perf_counter()
            while store.is_up:  # a late event loop is not held against the store
                assert await taken_name(store, "a") is None
            waits_s.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            assert await taken_name(store, "a") is None
            assert time.perf_counter() - began_s < TIMEOUT_S
            own_server.go_on()
    assert TIMEOUT_S * 0.9 < min(waits_s) < TIMEOUT_S * 2


async def test_handles_outlive_a_pause(own_server: RedisServer) -> None:
    """A take that nobody waits for any more is not done; the same primary still has all."""
    async with joined(own_server.url) as store:
        await put_all(store, handle("a"))
        assert await taken_name(store, "b") is None  # the server knows the script
        own_server.pause()
        assert await taken_name(store, "a") is None
        await asyncio.sleep(4 * TIMEOUT_S)
        own_server.go_on()
        await until(lambda: store.is_up, BACK_S)
        assert await taken_name(store, "a") == "a"


async def test_unsure_put_is_neither_released_nor_lost(own_server: RedisServer) -> None:
    """The server may still store it: it is not given back, and found, until its deadline."""
    async with joined(own_server.url) as store:
        await put_all(store, handle("a"))
        own_server.pause()
        assert await store.put(handle("b"), 0.0, None) == []
        assert store.failures == 1
        own_server.go_on()
        await until(lambda: store.is_up, BACK_S)
        assert await taken_name(store, "b") == "b"


async def test_late_put_does_not_outlive_its_deadline(own_server: RedisServer) -> None:
    """A handle that the server gets to see late has no more time than others: D frees it."""
    for name, deadline_s, lives in (("b", 0.1, False), ("c", 100.0, True)):
        async with joined(own_server.url, name) as store:
            await put_all(store, handle("a"))
            own_server.pause()
            assert await store.put(handle(name, deadline_s=deadline_s), 0.0, None) == []
            await asyncio.sleep(0.3)
            own_server.go_on()
            with Valkey(port=own_server.port) as admin:
                ttls_ms = [admin.pttl(at) for at in admin.keys(f"*:{name}:*:h:*{key(name).hex()}")]
            assert len(ttls_ms) == int(lives)
            assert all(0 < ttl_ms <= (deadline_s - 0.3) * 1000 for ttl_ms in ttls_ms)


async def test_late_answer_is_never_anothers(own_server: RedisServer) -> None:
    """An answer that comes after its operation has ended is read by nobody."""
    async with proxy_to(own_server.port) as proxy, joined(proxy.url, timeout_s=0.1) as store:
        await put_all(store, handle("a"), handle("b"), handle("c"))
        assert await taken_name(store, "d") is None  # the server knows the script
        proxy.delay_s = 0.2
        assert await taken_name(store, "a") is None
        assert not store.is_up
        proxy.delay_s = 0.0
        await until(lambda: store.is_up, BACK_S)
        assert await taken_name(store, "b") == "b"
        assert await taken_name(store, "c") == "c"
        assert await taken_name(store, "a") is None


async def test_store_that_stays_slow_stays_out(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not tried on a turn each second: one line, until it answers within the limit."""
    async with proxy_to(own_server.port) as proxy, joined(proxy.url, timeout_s=0.05) as store:
        await put_all(store, handle("a"))
        proxy.delay_s = 0.07
        assert await taken_name(store, "b") is None
        before = proxy.connections
        await until(lambda: proxy.connections > before + 2, BACK_S)  # a third try has begun
        assert not store.is_up
        assert len(warnings_of(caplog)) == 1
        proxy.delay_s = 0.0
        await until(lambda: store.is_up, BACK_S)


async def test_put_whose_answer_is_late_is_not_released(own_server: RedisServer) -> None:
    """It is stored, so somebody may take it: giving it back would free what is read."""
    async with proxy_to(own_server.port) as proxy, joined(proxy.url, timeout_s=0.1) as store:
        await put_all(store, handle("a"))
        proxy.delay_s = 0.2
        assert await store.put(handle("b"), 0.0, None) == []
        assert not store.is_up
        proxy.delay_s = 0.0
        await until(lambda: store.is_up, BACK_S)
        assert await taken_name(store, "b") == "b"


async def client_gone(proxy: Proxy, store: ValkeyStore, turn: asyncio.Task[object]) -> None:
    """Cancel a turn whose question the store has and whose answer is on its way."""
    await asyncio.sleep(proxy.delay_s / 2)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await until(lambda: not store._running)


async def test_client_that_leaves_strands_no_handle(own_server: RedisServer) -> None:
    """A take whose turn has gone is put back; a put whose turn has gone is done."""
    async with proxy_to(own_server.port) as proxy, joined(proxy.url, timeout_s=1.0) as store:
        await put_all(store, handle("a"))
        proxy.delay_s = 0.1
        await client_gone(proxy, store, asyncio.create_task(store.take(history("a"), 0.0)))
        await client_gone(proxy, store, asyncio.create_task(store.put(handle("b"), 0.0, None)))
        proxy.delay_s = 0.0
        assert await taken_name(store, "a") == "a"
        assert await taken_name(store, "b") == "b"


async def test_late_event_loop_is_not_held_against_the_store(server: RedisServer) -> None:
    """A router that was busy itself does not switch reuse off for a second."""
    async with joined(server.url, uuid.uuid4().hex) as store:
        await store.check()
        asyncio.get_running_loop().call_later(0.001, time.sleep, 4 * TIMEOUT_S)
        asking = asyncio.create_task(taken_name(store, "a"))
        await asyncio.sleep(0)
        time.sleep(4 * TIMEOUT_S)  # noqa: ASYNC251 - what is tested
        assert await asking is None
        assert store.is_up


async def test_close_waits_for_what_is_under_way(own_server: RedisServer) -> None:
    """Nothing is left open or running, whether the store is up or down; it can be repeated."""
    async with joined(own_server.url, timeout_s=1.0) as store:
        asking = asyncio.create_task(store.put(handle("a"), 0.0, None))
        await asyncio.sleep(0)
        assert await store.close() == []
        assert await asking == []
        assert await taken_name(store, "a") is None
        assert store.is_up
    own_server.kill()
    async with joined(own_server.url) as store:
        assert await taken_name(store, "a") is None
    assert len(asyncio.all_tasks()) == 1
