"""The order in which nodes are moved, whatever state they are in."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.aws.rollout.fleet import RunningNode, Target
from runtime.aws.rollout.order import Finish, Replace, Restart, batches, steps
from tests.aws.rollout.fake import NEW, node, targets

TTLS = st.sampled_from([100, 300, 480, 600])
SOME_TTLS = st.lists(TTLS, min_size=1, max_size=3)
COUNTS = st.integers(1, 5)


def names(found: list[Finish | Restart | Replace]) -> list[str]:
    """Steps as text."""
    return [
        "+".join(each.name for each in step.nodes)
        if isinstance(step, Replace)
        else f"{type(step).__name__} {step.node.name}"
        for step in found
    ]


@given(router=TTLS, decodes=SOME_TTLS, prefills=SOME_TTLS, ttl_s=TTLS, other=st.booleans())
def test_no_router_believes_in_more_time_than_an_engine_gives(
    router: int, decodes: list[int], prefills: list[int], ttl_s: int, other: bool
) -> None:
    """Whatever mixture an interrupted rollout has left, and with new machines too."""
    engines = {"decode": decodes, "prefill": prefills}
    wanted = targets(ttl_s, "image-2" if other else "image-1")
    nodes = [node("router-1", router)]
    nodes += [
        node(f"{role}-{index}", max(each, router))  # true before
        for role, ttls in engines.items()
        for index, each in enumerate(ttls)
    ]
    believed, given_s = router, {each.name: each.ttl_s or 0 for each in nodes[1:]}
    for step in steps(wanted, nodes):
        if isinstance(step, Replace):
            given_s |= {f"{each.role}-new": ttl_s for each in step.nodes}
            for each in step.nodes:
                assert believed <= min(given_s.values())
                del given_s[each.name]
        elif step.node.role == "router":
            believed = ttl_s
        else:
            given_s[step.node.name] = ttl_s
        assert believed <= min(given_s.values())
    assert believed == ttl_s
    assert set(given_s.values()) == {ttl_s}


@pytest.mark.parametrize(
    ("lease_s", "order"),
    [
        (12, ["router", "decode", "prefill"]),
        (30, ["router", "decode", "prefill"]),
        (60, ["prefill", "router", "decode"]),
    ],
)
def test_lease_of_prefill_is_held_to_the_same_rule(lease_s: int, order: list[str]) -> None:
    """P before the routers when it grows, after them and after D when it shrinks."""
    nodes = [node("prefill-1"), node("decode-1"), node("router-1")]
    assert names(steps(targets(480, lease_s=lease_s), nodes)) == [
        f"Restart {role}-1" for role in order
    ]


def test_unfinished_nodes_come_first() -> None:
    """What an interrupted rollout left drained or starting is taken back before more moves."""
    nodes = [
        node("decode-1"),
        node("decode-2", 300, generation=NEW, is_draining=True),
        node("decode-3", 300, generation=NEW, is_ready=False),
        node("decode-4", 300, generation=NEW),
    ]
    assert names(steps(targets(300), nodes)) == [
        *("Finish decode-2", "Finish decode-3", "Restart decode-1")
    ]


def test_other_machines_are_replaced_in_pairs() -> None:
    """Routers, which no pairing concerns, are restarted in place."""
    nodes = [node("prefill-1"), node("decode-1"), node("decode-2"), node("router-1")]
    assert names(steps(targets(480, "image-2"), nodes)) == [
        *("Restart router-1", "prefill-1+decode-1", "decode-2")
    ]


def test_routers_believe_in_a_longer_ttl_after_the_old_machines_are_gone() -> None:
    """Old and new serve side by side until then."""
    nodes = [node("prefill-1"), node("decode-1"), node("router-1")]
    assert names(steps(targets(600, "image-2"), nodes))[-1] == "Restart router-1"


@given(prefills=COUNTS, decodes=COUNTS)
def test_every_old_node_is_in_one_batch(prefills: int, decodes: int) -> None:
    """At most one of a role at a time, a pair first, and neither role runs ahead."""
    old: list[RunningNode] = [node(f"prefill-{index}") for index in range(prefills)]
    old += [node(f"decode-{index}") for index in range(decodes)]
    made = batches(old)
    assert sorted(each.name for batch in made for each in batch) == sorted(n.name for n in old)
    assert all(len({each.role for each in batch}) == len(batch) > 0 for batch in made)
    assert len(made[0]) == 2
    both = [index for index, batch in enumerate(made) if len(batch) == 2]
    gaps = {after - before for before, after in pairwise(both)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_one_role_alone_is_replaced_too() -> None:
    """The other was before the rollout was interrupted."""
    assert [len(batch) for batch in batches([node("decode-1"), node("decode-2")])] == [1, 1]
    assert batches([]) == []


def test_target_without_change_has_no_steps() -> None:
    """Nothing to do is nothing done."""
    wanted = {"decode": Target("aaaa", 480, 30, "image-1")}
    assert steps(wanted, [node("decode-1")]) == []  # type: ignore[arg-type]
