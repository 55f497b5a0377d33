"""What every handle store must do: the one in memory, and the one on a real server."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from runtime.router.store import MEMORY_S, MOST_ALIASES, HandleStore, MemoryStore, Taken
from runtime.router.valkey_store import ValkeyStore
from tests.router.redis_server import RedisServer, redis_server
from tests.router.stored import handle, history, key, names, taken_name, told


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One server for all tests here."""
    with redis_server() as running:
        yield running


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest, server: RedisServer) -> AsyncIterator[HandleStore]:
    """An empty store of either kind."""
    kept: HandleStore = (
        MemoryStore()
        if request.param == "memory"
        else ValkeyStore(server.url, uuid.uuid4().hex, 1.0)
    )
    await kept.check()
    yield kept
    assert kept.is_up
    await kept.close()


async def test_take_gives_a_handle_once(store: HandleStore) -> None:
    """The second take of a history finds nothing."""
    stored = handle("a")
    assert await store.put(stored, 0.0, None) == []
    taken = await store.take(history("a"), 0.0)
    assert taken is not None
    assert (taken.stored.handle, taken.stored.decode_url) == (stored.handle, "http://d")
    assert taken.stored.deadline_s == pytest.approx(stored.deadline_s, abs=0.5)
    assert await taken_name(store, "a") is None


async def test_all_fields_survive(store: HandleStore) -> None:
    """What comes out is what went in."""
    stored = handle("a", "b", "c", conversation="id", tokens=48)
    await store.put(stored, 0.0, None)
    taken = await store.take(history("a"), 0.0)
    assert taken is not None
    for field in ("handle", "prefill_url", "generation", "key", "answered", "id_key"):
        assert getattr(taken.stored, field) == getattr(stored, field)
    assert taken.stored.pinned_tokens == 48


async def test_unknown_history_has_no_handle(store: HandleStore) -> None:
    """A handle is found under its own history only; without answers there is none."""
    await store.put(handle("a"), 0.0, None)
    assert await taken_name(store, "other") is None
    assert await taken_name(store) is None


async def test_longest_beginning_wins(store: HandleStore) -> None:
    """Of two known beginnings the longer one holds more."""
    await store.put(handle("short"), 0.0, None)
    await store.put(handle("long"), 0.0, None)
    assert await taken_name(store, "new", "long", "short") == "long"
    assert await taken_name(store, "new", "long", "short") == "short"


async def test_newer_handle_replaces_the_older(store: HandleStore) -> None:
    """One history has one handle, its latest; the older is the caller's to give back."""
    await store.put(handle("a", engine="old"), 0.0, None)
    given_back = await store.put(handle("a", engine="new"), 0.0, None)
    assert [one.engine_id for one in given_back] == ["old"]
    taken = await store.take(history("a"), 0.0)
    assert taken is not None
    assert taken.stored.engine_id == "new"


async def test_history_that_contains_anothers_supersedes_it(store: HandleStore) -> None:
    """Its handle holds all that the shorter ones hold; others are left alone."""
    for name in ("first", "second", "other"):
        await store.put(handle(name), 0.0, None)
    given_back = await store.put(handle("third", "second", "first"), 0.0, None)
    assert names(given_back) == ["second", "first"]
    assert await taken_name(store, "other") == "other"
    assert await taken_name(store, "third") == "third"


async def test_edited_history_is_found_by_its_id(store: HandleStore) -> None:
    """A changed last question leaves the beginnings that it shares."""
    await store.put(handle("b", "a", conversation="id"), 0.0, None)
    taken = await store.take(history("x", "a", conversation="id"), 0.0)
    assert told(taken) == ("b", True)
    assert await taken_name(store, "b", "a", conversation="id") is None


async def test_edited_history_needs_its_id(store: HandleStore) -> None:
    """Without an id, or with another one, only the exact history is found."""
    await store.put(handle("b", "a", conversation="id"), 0.0, None)
    await store.put(handle("d", "c"), 0.0, None)
    assert await taken_name(store, "x", "a") is None
    assert await taken_name(store, "x", "a", conversation="another") is None
    assert await taken_name(store, "x", "c", conversation="id") is None
    assert await taken_name(store, "b", conversation="id") == "b"


async def test_edited_history_finds_the_longest_shared_beginning(store: HandleStore) -> None:
    """Two handles of one id: the one that shares more is taken."""
    await store.put(handle("y", "one", conversation="id"), 0.0, None)
    await store.put(handle("z", "two", conversation="id"), 0.0, None)
    assert await taken_name(store, "x", "two", "one", conversation="id") == "z"


async def test_branches_of_an_id_keep_their_own_handles(store: HandleStore) -> None:
    """When the history that lost its handle comes back, the id has branches: no more edits."""
    await store.put(handle("b", "a", conversation="id"), 0.0, None)
    assert await taken_name(store, "x", "a", conversation="id") == "b"
    assert await taken_name(store, "b", "a", conversation="id") is None  # the branch shows
    await store.put(handle("c", "a", conversation="id"), 0.0, None)
    assert await taken_name(store, "x", "a", conversation="id") is None
    assert await taken_name(store, "c", "a", conversation="id") == "c"


async def test_edited_take_that_is_put_back_shows_no_branch(store: HandleStore) -> None:
    """The history has its handle again: nothing was taken from it."""
    await store.put(handle("b", "a", conversation="id"), 0.0, None)
    taken = await store.take(history("x", "a", conversation="id"), 0.0)
    assert taken is not None
    assert await store.put_back(taken, 0.0)
    assert names(await store.put(handle("c", "b", "a", conversation="id"), 0.0, None)) == ["b"]
    assert told(await store.take(history("x", "b", conversation="id"), 0.0)) == ("c", True)


async def test_handle_that_leaves_keeps_no_edit_from_the_other(store: HandleStore) -> None:
    """Two histories share a beginning: it leads to the later one while that is there."""
    await store.put(handle("b", "a", conversation="id"), 0.0, None)
    await store.put(handle("c", "a", conversation="id"), 0.0, None)
    assert await taken_name(store, "b", conversation="id") == "b"
    assert await taken_name(store, "x", "a", conversation="id") == "c"


async def test_edited_history_is_found_by_its_latest_beginnings(store: HandleStore) -> None:
    """Only the last 16 answers of a history are remembered for edits."""
    answered = [f"a{at}" for at in range(MOST_ALIASES + 1)]
    await store.put(handle("b", *answered, conversation="id"), 0.0, None)
    assert await taken_name(store, "x", answered[-1], conversation="id") is None
    assert await taken_name(store, "x", answered[-2], conversation="id") == "b"


async def test_superseded_handle_takes_nothing_along(store: HandleStore) -> None:
    """A beginning that two handles shared still leads to the one that is left."""
    await store.put(handle("b", "a", conversation="id"), 0.0, None)
    await store.put(handle("c", "b", "a", conversation="id"), 0.0, None)
    assert await taken_name(store, "x", "a", conversation="id") == "c"


async def test_budget_gives_back_the_oldest(store: HandleStore) -> None:
    """Beyond what an engine may pin, its oldest handles go; another engine's do not."""
    for name in ("a", "b", "c"):
        assert await store.put(handle(name), 0.0, 48) == []
    await store.put(handle("other", engine="f"), 0.0, 48)
    assert names(await store.put(handle("d", tokens=32), 0.0, 48)) == ["a", "b"]
    assert await taken_name(store, "c") == "c"
    assert await taken_name(store, "other") == "other"


async def test_what_is_taken_or_ended_is_off_the_budget(store: HandleStore) -> None:
    """Only what is pinned counts."""
    await store.put(handle("a", tokens=48), 0.0, 48)
    assert await taken_name(store, "a") == "a"
    assert await store.put(handle("b", conversation="id", tokens=48), 0.0, 48) == []
    await store.end(key("id"))
    assert await store.put(handle("c", tokens=48), 0.0, 48) == []
    assert names(await store.put(handle("d", "c", tokens=48), 0.0, 48)) == ["c"]


async def test_too_large_a_handle_is_not_kept(store: HandleStore) -> None:
    """It comes back with what it replaces; the rest of the budget is untouched."""
    await store.put(handle("a"), 0.0, 48)
    await store.put(handle("b"), 0.0, 48)
    assert names(await store.put(handle("c", "b", tokens=64), 0.0, 48)) == ["b", "c"]
    assert await taken_name(store, "c", "b") is None
    assert await taken_name(store, "a") == "a"


async def test_handle_that_is_put_back_is_found_again(store: HandleStore) -> None:
    """It was not used; but a newer one of the same history stays."""
    await store.put(handle("a", engine="old"), 0.0, None)
    taken = await store.take(history("a"), 0.0)
    assert taken is not None
    await store.put(handle("a", engine="new"), 0.0, None)
    assert not await store.put_back(taken, 0.0)
    newer = await store.take(history("a"), 0.0)
    assert newer is not None
    assert newer.stored.engine_id == "new"
    assert await store.put_back(taken, 0.0)
    assert await taken_name(store, "a") == "a"


async def test_handle_that_is_put_back_is_as_old_as_before(store: HandleStore) -> None:
    """The budget gives it back before those that came after it."""
    await store.put(handle("a", deadline_s=90.0), 0.0, 48)
    taken = await store.take(history("a"), 0.0)
    assert taken is not None
    await store.put(handle("b", deadline_s=95.0), 0.0, 48)
    assert await store.put_back(taken, 0.0)
    assert names(await store.put(handle("c", tokens=32), 0.0, 48)) == ["a"]


async def test_short_handle_does_not_shorten_the_others(store: HandleStore) -> None:
    """After it is gone, budget, id and engine still know those that live longer."""
    await store.put(handle("a", conversation="id"), 0.0, 32)
    short = handle("b", conversation="id", deadline_s=0.05)
    assert await store.put_back(Taken(short), 0.0)
    await asyncio.sleep(0.1)  # nothing shows that it has expired, which is what is tested
    assert await store.put(handle("n"), 0.06, 32) == []
    assert names(await store.put(handle("c", tokens=32), 0.06, 32)) == ["a", "n"]
    await store.put(handle("d", conversation="id"), 0.06, None)
    assert names(await store.end(key("id"))) == ["d"]
    assert await store.drop_engine("e") == 1


async def test_end_gives_back_all_handles_of_an_id(store: HandleStore) -> None:
    """All branches, and no other conversation's."""
    await store.put(handle("a", conversation="id"), 0.0, None)
    await store.put(handle("b", conversation="id"), 0.0, None)
    await store.put(handle("c", conversation="another"), 0.0, None)
    assert sorted(names(await store.end(key("id")))) == ["a", "b"]
    assert await store.end(key("id")) == []
    assert await taken_name(store, "c") == "c"


async def test_dropping_an_engine_leaves_the_others(store: HandleStore) -> None:
    """Handles of the ended engine go, and no others."""
    await store.put(handle("a", engine="old", conversation="id"), 0.0, None)
    await store.put(handle("b", engine="new"), 0.0, None)
    await store.put(handle("c", engine="old"), 0.0, None)
    assert await store.drop_engine("old") == 2
    assert await store.drop_engine("old") == 0
    assert await taken_name(store, "a", "c", conversation="id") is None
    assert await taken_name(store, "b") == "b"


async def test_expired_handle_is_not_kept(store: HandleStore) -> None:
    """At its deadline it is too late to put one, or to put one back."""
    stored = handle("a", deadline_s=10.0)
    assert await store.put(stored, 10.0, None) == [stored]
    assert not await store.put_back(Taken(stored), 10.0)
    assert await taken_name(store, "a", now_s=10.0) is None


async def test_expired_handle_is_not_found(store: HandleStore) -> None:
    """Past its deadline D may have freed the blocks; just before it has not."""
    await store.put(handle("a", deadline_s=0.2, conversation="id"), 0.0, None)
    taken = await store.take(history("a"), 0.0)
    assert taken is not None
    assert await store.put_back(taken, 0.0)
    await asyncio.sleep(0.25)  # the server's clock cannot be set
    assert await taken_name(store, "a", now_s=0.25) is None
    assert await taken_name(store, "x", "a", conversation="id", now_s=0.25) is None
    assert await store.put(handle("b", tokens=16), 0.25, 16) == []


async def test_switch_is_kept(store: HandleStore) -> None:
    """Reuse is on until somebody switches it off, and on again afterwards."""
    assert await store.reuse_off() is None
    assert await store.set_reuse_off("a reason")
    assert await store.reuse_off() == "a reason"
    assert await store.set_reuse_off(None)
    assert await store.reuse_off() is None


async def test_memory_gives_all_back_when_it_ends() -> None:
    """With the router its store is gone: what it held would be pinned for nothing."""
    store = MemoryStore()
    await store.put(handle("a", tokens=48), 0.0, None)
    await store.put(handle("b"), 0.0, None)
    assert await store.pinned_tokens(["e", "unknown"]) == 64
    assert names(await store.close()) == ["a", "b"]
    assert (len(store), await store.pinned_tokens(["e"])) == (0, 0)


async def test_memory_does_not_grow_with_conversations_that_never_return() -> None:
    """Handles, ids and aliases leave with their deadlines, and what is remembered as well."""
    store = MemoryStore()
    for at in range(1000):
        name = str(at)
        await store.put(handle(name, f"a{at}", conversation=name, deadline_s=at + 10.0), at, None)
        await store.take(history("x", f"a{at - 5}", conversation=str(at - 5)), float(at))
    assert len(store) <= 10
    await store.put(handle("last", deadline_s=2 * MEMORY_S), MEMORY_S + 1000, None)
    sizes = [len(kept) for kept in (store._aliases, store._by_id, store._lost, store._branched)]
    assert (len(store), sizes) == (1, [0, 0, 0, 0])
