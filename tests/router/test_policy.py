"""Which nodes are chosen, and a simulation of skewed sessions (complaint 32)."""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.router.policy import decode_order, load_bound, prefill_order


@dataclass
class FakeNode:
    """What the policy sees of a node, and a cache of sessions beside it."""

    url: str
    running: int = 0
    outstanding_tokens: int = 0
    last_used: int = 0
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)


def urls(nodes: Sequence[FakeNode]) -> list[str]:
    return [node.url for node in nodes]


def test_prefill_goes_to_the_shortest_queue() -> None:
    """Queues are counted in prompt tokens, not in requests."""
    nodes = [FakeNode("a", outstanding_tokens=9000), FakeNode("b", outstanding_tokens=2000)]
    assert urls(prefill_order(nodes, "a")) == ["b", "a"]


def test_prefill_prefers_the_last_node_where_queues_are_alike() -> None:
    """The P of the last turn has its prompt cached; a few tokens more do not outweigh it."""
    nodes = [FakeNode("a"), FakeNode("b", outstanding_tokens=900, last_used=1)]
    assert urls(prefill_order(nodes, "b")) == ["b", "a"]


def test_idle_prefill_nodes_take_turns() -> None:
    """Nodes that are equally busy are used in turn."""
    nodes = [FakeNode("a", last_used=2), FakeNode("b", last_used=1)]
    assert urls(prefill_order(nodes, None)) == ["b", "a"]


def test_decode_stays_with_the_owner() -> None:
    """The D that holds the conversation is first, although another has less to do."""
    nodes = [FakeNode("a"), FakeNode("b", running=1)]
    assert urls(decode_order(nodes, "b", None)) == ["b", "a"]


def test_decode_leaves_an_overloaded_owner() -> None:
    """At the bound the least loaded D is first: a pull makes the move free."""
    nodes = [FakeNode("a", running=1), FakeNode("b", running=9), FakeNode("c", running=2)]
    assert urls(decode_order(nodes, "b", None)) == ["a", "c", "b"]


def test_unknown_owner_changes_nothing() -> None:
    """A D that has gone is no preference."""
    nodes = [FakeNode("a", running=1), FakeNode("b")]
    assert urls(decode_order(nodes, "gone", None)) == ["b", "a"]


def test_hint_keeps_related_requests_together() -> None:
    """One hint means one D, and different hints spread over all of them."""
    nodes = [FakeNode(url) for url in "abcd"]
    firsts = {hint: decode_order(nodes, None, hint)[0].url for hint in map(str, range(64))}
    assert set(firsts.values()) == set("abcd")
    nodes.reverse()
    assert firsts == {hint: decode_order(nodes, None, hint)[0].url for hint in firsts}


def test_hint_moves_only_with_its_node() -> None:
    """A D that leaves moves the hints it had, and no others."""
    nodes = [FakeNode(url) for url in "abcd"]
    for hint in map(str, range(64)):
        before = decode_order(nodes, None, hint)[0].url
        after = decode_order(nodes[:3], None, hint)[0].url
        assert after == before or before == "d"


def test_owner_counts_more_than_a_hint() -> None:
    """A hint says nothing where the owner is known."""
    nodes = [FakeNode(url) for url in "abcd"]
    assert {decode_order(nodes, "c", hint)[0].url for hint in map(str, range(32))} == {"c"}


@given(st.lists(st.integers(0, 50), max_size=6), st.booleans())
def test_every_node_stays_a_choice(running: list[int], is_hinted: bool) -> None:
    """The order is one of all nodes: a node that fails has others after it."""
    nodes = [FakeNode(str(at), running=count) for at, count in enumerate(running)]
    ordered = decode_order(nodes, None, "hint" if is_hinted else None)
    assert sorted(urls(ordered)) == urls(nodes)


@pytest.mark.parametrize(
    ("running", "nodes", "bound"), [(0, 4, 2), (100, 4, 32), (7, 1, 10), (0, 0, 2)]
)
def test_load_bound(running: int, nodes: int, bound: int) -> None:
    """A quarter above the mean, and two turns at least."""
    assert load_bound(running, nodes) == bound


# Simulation

NODES, RUNNING, TURNS, SESSIONS, CACHE = 4, 64, 8000, 400, 110
"""So many turns run at once, of sessions that are Zipf distributed: the first has a sixth of
all turns. A node caches a little more than its share of the sessions."""

Choose = Callable[[list[FakeNode], int, str | None], FakeNode]


def simulated(choose: Choose) -> tuple[float, float]:
    """Play all turns; returns (share of turns whose D had the session cached, highest load of
    a node over the mean, once all places are taken)."""
    rng = random.Random(32)  # noqa: S311 - a simulation
    weights = [1 / rank for rank in range(1, SESSIONS + 1)]
    sessions = rng.choices(range(SESSIONS), weights, k=TURNS)
    nodes = [FakeNode(str(at)) for at in range(NODES)]
    owners: dict[int, str] = {}
    under_way: list[FakeNode] = []
    hits, worst = 0, 0.0
    for session in sessions:
        if len(under_way) == RUNNING:
            under_way.pop(rng.randrange(RUNNING)).running -= 1
        node = choose(nodes, session, owners.get(session))
        hits += session in node.cached
        node.cached[session] = None
        node.cached.move_to_end(session)
        if len(node.cached) > CACHE:
            node.cached.popitem(last=False)
        owners[session] = node.url
        node.running += 1
        under_way.append(node)
        if len(under_way) == RUNNING:
            worst = max(worst, max(each.running for each in nodes) / (RUNNING / NODES))
    return hits / TURNS, worst


def test_skewed_sessions_neither_thrash_nor_overload() -> None:
    """Sticky owners with bounded load keep both: cached sessions, and no node above the bound.

    Plain hashing overloads the node of the busiest session; the least loaded node, whoever
    owned the session, loses the cache.
    """
    hit_rate, worst = simulated(lambda nodes, _, owner: decode_order(nodes, owner, None)[0])
    assert hit_rate > 0.85
    assert worst <= load_bound(RUNNING - 1, NODES) / (RUNNING / NODES)

    _, hashed_worst = simulated(lambda nodes, session, _: nodes[hash(session) % NODES])
    assert hashed_worst > 1.6

    spread_rate, _ = simulated(lambda nodes, *_: decode_order(nodes, None, None)[0])
    assert spread_rate < hit_rate - 0.1
