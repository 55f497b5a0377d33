"""Which server the shared store trusts: one life of one primary, and what can never serve."""

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from valkey import Valkey
from valkey.asyncio.connection import SSLConnection
from valkey.exceptions import ValkeyError

from runtime.errors import BadInput
from runtime.router.metrics import RouterMetrics
from runtime.router.reuse import ReuseSwitch
from runtime.router.valkey_link import UnfitStore, life_name
from runtime.router.valkey_store import ValkeyStore
from tests.router.fleet import until
from tests.router.redis_server import RedisServer, proxy_to, redis_server
from tests.router.stored import (
    BACK_S,
    handle,
    history,
    joined,
    put_all,
    taken_name,
    told,
    warnings_of,
)

TOLD = {
    "redis_version": "7.2.4",
    "redis_mode": "standalone",
    "run_id": "r" * 40,
    "role": "master",
    "master_replid": "a" * 40,
}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test's own."""
    with redis_server() as running:
        yield running


async def until_replica(replica: RedisServer, primary: RedisServer) -> None:
    """Make one server follow another; wait until it has all that the other has."""
    replica.ask("REPLICAOF", "127.0.0.1", str(primary.port))
    await until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"), 10.0)
    with Valkey(port=replica.port) as one, Valkey(port=primary.port) as other:
        await until(lambda: one.dbsize() == other.dbsize(), 10.0)


def handles_of(server: RedisServer) -> int:
    """How many handles its data hold, of all lives."""
    with Valkey(port=server.port) as admin:
        return len(admin.keys("*:h:*"))


async def test_handles_of_another_primary_are_never_found(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The new primary may not know what was taken: nothing of the past is found there."""
    with redis_server() as second:
        async with proxy_to(server.port) as proxy, joined(proxy.url, timeout_s=1.0) as store:
            await put_all(store, handle("b", "a", conversation="id"), handle("c"))
            await until_replica(second, server)
            second.ask("REPLICAOF", "NO", "ONE")
            assert handles_of(second) == 2
            proxy.target = second.port
            proxy.cut()
            assert await taken_name(store, "c") is None
            await until(lambda: store.is_up, BACK_S)
            assert await taken_name(store, "c") is None
            for name in ("b", "x"):
                assert await store.take(history(name, "a", conversation="id"), 0.0) is None
            assert "another primary" in "".join(warnings_of(caplog))
            await put_all(store, handle("d"))
            assert await taken_name(store, "d") == "d"


async def test_handles_of_a_restarted_primary_are_never_found() -> None:
    """What it has on disk may be older than what was taken."""
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        async with joined(server.url) as store:
            await put_all(store, handle("a"))
            server.kill()
            server.start()
            assert handles_of(server) == 1
            while (taken := await taken_name(store, "b")) or not store.is_up:
                assert taken is None
                await asyncio.sleep(0.01)
            assert await taken_name(store, "a") is None


async def test_primary_that_was_a_replica_meanwhile_has_a_new_life(server: RedisServer) -> None:
    """Its run id is the same, and its data are another server's: the past is not found."""
    with redis_server() as second:
        async with joined(server.url, timeout_s=1.0) as store:
            await put_all(store, handle("a"))
            await until_replica(second, server)
            assert await taken_name(store, "a") == "a"  # the replica is told, or may not be
            await put_all(store, handle("a"))
            await until_replica(second, server)
            second.ask("REPLICAOF", "NO", "ONE")
            await until_replica(server, second)
            server.ask("REPLICAOF", "NO", "ONE")
            assert handles_of(server) == 1
            await store.reuse_off()  # as every router does each second
            assert await taken_name(store, "a") is None


async def test_connections_to_an_old_primary_are_given_up(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once one connection leads to another primary, none is used that leads to the old one."""
    with redis_server() as second:
        async with proxy_to(server.port) as proxy, joined(proxy.url, timeout_s=1.0) as store:
            every = [str(at) for at in range(20)]
            await asyncio.gather(*(store.put(handle(name), 0.0, None) for name in every))
            assert proxy.connections > 1
            proxy.target = second.port
            proxy.cut(at_most=1)
            await asyncio.sleep(0.1)  # the end of an idle connection shows nowhere
            await asyncio.gather(*(taken_name(store, "none") for _ in every))
            assert "another primary" in "".join(warnings_of(caplog))
            await asyncio.gather(*(store.put(handle(name), 0.0, None) for name in every))
            assert handles_of(second) == 20
            assert store.failures == 0


async def test_replica_is_waited_for(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A server that may become the primary is down until then; the log says what it is."""
    with redis_server() as second:
        await until_replica(second, server)
        async with joined(second.url) as store:
            await store.check()
            assert not store.is_up
            assert "replica" in warnings_of(caplog)[0]
            second.ask("REPLICAOF", "NO", "ONE")
            await until(lambda: store.is_up, BACK_S)


async def test_primary_that_becomes_a_replica_is_not_used(server: RedisServer) -> None:
    """It refuses to write: the handle was not stored, and is the caller's to give back."""
    with redis_server() as second:
        async with joined(server.url, timeout_s=1.0) as store:
            await put_all(store, handle("a"))
            await until_replica(server, second)
            stored = handle("b")
            assert await store.put(stored, 0.0, None) == [stored]
            assert not store.is_up


async def test_full_store_is_left_alone(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Out of memory is as good as down: one line, the handle is given back, then recovery."""
    async with joined(server.url, timeout_s=1.0) as store:
        server.ask("CONFIG", "SET", "maxmemory", "1")
        stored = handle("a")
        assert await store.put(stored, 0.0, None) == [stored]
        assert not store.is_up
        await asyncio.sleep(1.2)  # one try later it is still down
        assert not store.is_up
        assert len(warnings_of(caplog)) == 1
        server.ask("CONFIG", "SET", "maxmemory", "0")
        await until(lambda: store.is_up, BACK_S)


@pytest.mark.parametrize(
    ("place", "fragment"),
    [
        ("redis://:wrong-secret@127.0.0.1:{port}/0", "invalid username-password pair"),
        ("redis://127.0.0.1:{port}/0", "Authentication required"),
        ("redis://:right-secret@127.0.0.1:{port}/99", "DB index is out of range"),
        ("redis://reader:reader-secret@127.0.0.1:{port}/0", "no permissions"),
    ],
)
async def test_store_that_never_serves_stops_the_router(place: str, fragment: str) -> None:
    """Wrong credentials, database or rights: what, got, allowed and fix, and no password."""
    reader = ("--user", "reader", "on", ">reader-secret", "~*", "+info", "+time", "+get", "+select")
    with redis_server("--requirepass", "right-secret", *reader) as server:
        async with joined(place.format(port=server.port)) as store:
            with pytest.raises(BadInput, match="the store cannot be used") as refusal:
                await store.check()
            assert fragment in refusal.value.got
            assert f"127.0.0.1:{server.port}" in refusal.value.got
            assert "--store" in refusal.value.fix
            assert "secret" not in str(refusal.value)


async def test_credentials_and_database_of_the_url_are_used() -> None:
    """A password with escapes, and another database than the first."""
    with redis_server("--requirepass", "p@ss/word") as server:
        url = f"valkey://:p%40ss%2Fword@127.0.0.1:{server.port}/3"
        async with joined(url, timeout_s=1.0) as store:
            await store.check()
            await put_all(store, handle("a"))
            assert told(await store.take(history("a"), 0.0)) == ("a", False)
            with Valkey(port=server.port, db=3, password="p@ss/word") as admin:  # noqa: S106
                assert admin.dbsize() > 0


async def test_tls_urls_lead_to_tls() -> None:
    """`rediss://` and `valkeys://` never send in clear; certificates are verified."""
    for scheme in ("rediss", "valkeys"):
        async with joined(f"{scheme}://user:secret@store.example:6380/1") as store:
            pool = store._link._pool
            connection = pool.make_connection()  # type: ignore[no-untyped-call]
            assert isinstance(connection, SSLConnection)
            assert (connection.host, connection.port, connection.db) == ("store.example", 6380, 1)
            assert connection.ssl_context.cert_reqs == ssl.CERT_REQUIRED
            assert connection.ssl_context.check_hostname


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host:port/0",
        "redis://:secret@host:6379/zero",
        "redis://:secret@/0",
        "redis://:sec/ret@host:6379/0",
    ],
)
def test_url_that_cannot_work_is_refused(url: str) -> None:
    """At once, with the way out, and without the password."""
    with pytest.raises(BadInput, match="URL") as refusal:
        ValkeyStore(url, "test", 0.025)
    assert "%40" in refusal.value.fix
    assert "sec" not in refusal.value.got


def life(**changes: Any) -> str:
    """Name the life of a server that answers with these fields."""
    return life_name("# Server\r\n" + "\r\n".join(f"{k}:{v}" for k, v in (TOLD | changes).items()))


@pytest.mark.parametrize(
    "changes",
    [
        {"redis_version": "6.0.16"},
        {"redis_version": "5.0.7"},
        {"redis_version": ""},
        {"redis_mode": "cluster"},
        {"run_id": ""},
        {"master_replid": ""},
    ],
)
def test_server_that_cannot_be_the_store_is_refused(changes: dict[str, str]) -> None:
    """Older than 6.2, a cluster, or one that hides who it is."""
    with pytest.raises(UnfitStore):
        life(**changes)


def test_replica_is_no_primary() -> None:
    """Not even for reading the switch; but it may become one."""
    with pytest.raises(ValkeyError, match="replica") as refusal:
        life(role="slave")
    assert not isinstance(refusal.value, UnfitStore)


def test_life_is_of_one_run_and_one_reign() -> None:
    """Either id makes another life; 6.2 and later versions are served."""
    lives = {life(), life(run_id="s" * 40), life(master_replid="b" * 40)}
    assert len(lives) == 3
    assert life(redis_version="6.2.0") == life(redis_version="10.0.1") == life()


async def test_routers_share_the_switch(server: RedisServer) -> None:
    """What one router switches, the others have followed within 5 s; both ways."""
    async with joined(server.url) as one, joined(server.url) as two:
        here, there = (ReuseSwitch(store, RouterMetrics()) for store in (one, two))
        following = asyncio.create_task(there.follow())
        assert await here.switch("a test")
        await until(lambda: there.off_reason == "a test", 5.0)
        assert await here.switch(None)
        await until(lambda: there.is_on, 5.0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_store_that_forgot_the_switch_is_told_again(server: RedisServer) -> None:
    """Reuse that is off stays off over the loss of a store, and can be switched on after it."""
    async with joined(server.url) as one, joined(server.url) as two:
        assert await one.set_reuse_off("a test")
        assert await two.reuse_off() == "a test"
        server.ask("FLUSHALL")
        assert await two.reuse_off() == "a test"
        assert await one.reuse_off() == "a test"
        assert await two.set_reuse_off(None)
        assert await one.reuse_off() is None
