"""The handle store."""

from runtime.router.store import HandleStore, StoredHandle


def handle(deadline_s: float = 100.0, engine: str = "e", request: str = "r") -> StoredHandle:
    """A handle with the fields the store reads."""
    params = {"remote_engine_id": engine, "remote_request_id": request}
    return StoredHandle(params, "http://d", deadline_s)


def test_take_gives_a_handle_once() -> None:
    """The second take of a conversation finds nothing."""
    store = HandleStore()
    store.put("k", handle(), 0.0)
    assert store.take("k", 1.0) == handle()
    assert store.take("k", 1.0) is None


def test_unknown_conversation_has_no_handle() -> None:
    """A conversation's handle is under its own key only."""
    store = HandleStore()
    store.put("k", handle(), 0.0)
    assert store.take("other", 1.0) is None


def test_deadline_itself_is_too_late() -> None:
    """At its deadline a handle is absent, just before it is not."""
    store = HandleStore()
    store.put("k", handle(10.0), 0.0)
    assert store.take("k", 10.0) is None
    store.put("k", handle(10.0), 0.0)
    assert store.take("k", 9.99) is not None


def test_newer_handle_replaces_the_older() -> None:
    """A conversation has one handle: its latest."""
    store = HandleStore()
    store.put("k", handle(request="old"), 0.0)
    store.put("k", handle(request="new"), 1.0)
    assert len(store) == 1
    stored = store.take("k", 2.0)
    assert stored is not None
    assert stored.handle["remote_request_id"] == "new"


def test_put_says_what_it_replaced() -> None:
    """The older handle is the caller's to give back."""
    store = HandleStore()
    assert store.put("k", handle(request="old"), 0.0) is None
    assert store.put("k", handle(request="new"), 1.0) == handle(request="old")


def test_handle_that_is_put_back_never_replaces_a_newer_one() -> None:
    """Another turn of the conversation has ended in the meantime."""
    store = HandleStore()
    assert store.put_back("k", handle(request="old"))
    assert store.take("k", 1.0) == handle(request="old")
    store.put("k", handle(request="new"), 1.0)
    assert not store.put_back("k", handle(request="old"))
    assert store.take_all() == [handle(request="new")]
    assert len(store) == 0


def test_expired_handles_do_not_pile_up() -> None:
    """Conversations that never return leave the store with time."""
    store = HandleStore()
    for at in range(1000):
        store.put(f"k{at}", handle(at + 10.0), float(at))
    assert len(store) == 10


def test_replaced_handle_moves_to_its_new_place_in_time() -> None:
    """A conversation that goes on does not hold up the eviction of others."""
    store = HandleStore()
    store.put("a", handle(10.0), 0.0)
    store.put("b", handle(11.0), 1.0)
    store.put("a", handle(15.0), 5.0)
    store.put("c", handle(22.0), 12.0)
    assert store.take("a", 12.0) is not None
    assert len(store) == 1


def test_dropping_an_engine_leaves_the_others() -> None:
    """Handles of the ended engine go, and no others."""
    store = HandleStore()
    store.put("a", handle(engine="old"), 0.0)
    store.put("b", handle(engine="new"), 0.0)
    store.put("c", handle(engine="old"), 0.0)
    assert store.drop_engine("old") == 2
    assert store.take("b", 1.0) is not None
    assert len(store) == 0
