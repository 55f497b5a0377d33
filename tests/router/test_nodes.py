"""Which nodes exist, which can be used, and which P goes with which D."""

import asyncio
from typing import Any

import pytest

from runtime.contract.node import NodeAddress, Role
from runtime.router.failure import RequestFailed
from runtime.router.nodes import Fleet, Node, rank_of
from tests.router.fleet import router_spec, until


def address(name: str, **more: Any) -> NodeAddress:
    """p... is a prefill node, d... a decode node; of generation g unless another is given."""
    role: Role = "prefill" if name.startswith("p") else "decode"
    return NodeAddress(role=role, url=f"http://{name}:8000", **{"generation": "g", **more})


def fleet_of(*names: str | NodeAddress, **spec: Any) -> Fleet:
    """A fleet of these nodes alone."""
    fleet = Fleet(router_spec(nodes_file="/nowhere", **spec))
    fleet.update([address(name) if isinstance(name, str) else name for name in names])
    return fleet


def node(fleet: Fleet, name: str) -> Node:
    """The node of this name."""
    found = fleet.find("prefill" if name.startswith("p") else "decode", f"http://{name}:8000")
    assert found is not None
    return found


def hosts(nodes: list[Node]) -> list[str]:
    return [each.url.removeprefix("http://").removesuffix(":8000") for each in nodes]


# The list


def test_nodes_given_by_address_are_there_from_the_start() -> None:
    """Flags alone make a fleet; clients hear of names, not of addresses."""
    spec = router_spec(prefill_urls=("http://p:1",), decode_urls=("http://d:1/", "http://e:1"))
    fleet = Fleet(spec)
    assert [(each.name, each.url) for each in fleet.nodes] == [
        ("prefill-1", "http://p:1"),
        ("decode-1", "http://d:1"),
        ("decode-2", "http://e:1"),
    ]
    assert "http" not in fleet.told()


def test_nodes_join_without_touching_the_others() -> None:
    """What is known of a node outlives a new list."""
    fleet = fleet_of("p1", "d1")
    before = node(fleet, "d1")
    before.running = 3
    fleet.update([address(name) for name in ("p1", "d1", "d2")])
    assert node(fleet, "d1") is before
    assert hosts(fleet.usable("decode")) == ["d1", "d2"]


def test_idle_node_that_is_no_longer_listed_is_gone() -> None:
    """It can be neither found nor used."""
    fleet = fleet_of("p1", "d1")
    fleet.update([address("p1")])
    assert fleet.find("decode", "http://d1:8000") is None
    assert fleet.generation() is None


@pytest.mark.parametrize("busy", [{"running": 1}, {"outstanding_tokens": 5}])
def test_busy_node_that_is_no_longer_listed_leaves_first(busy: dict[str, int]) -> None:
    """Its turns end, it gets no new ones, and then it is gone."""
    fleet = fleet_of("p1", "d1")
    leaving = node(fleet, "d1")
    (field,) = busy
    setattr(leaving, field, busy[field])
    fleet.update([address("p1")])
    assert (leaving.state, fleet.usable("decode"), len(fleet.nodes)) == ("leaving", [], 2)
    setattr(leaving, field, 0)
    fleet.update([address("p1")])
    assert len(fleet.nodes) == 1


def test_draining_node_takes_no_turns_and_can_come_back() -> None:
    """Draining is said in the list, and taken back there."""
    fleet = fleet_of("p1", address("d1", draining=True))
    assert fleet.usable("decode") == []
    assert node(fleet, "d1").state == "leaving"
    fleet.update([address("p1"), address("d1")])
    assert hosts(fleet.usable("decode")) == ["d1"]


def test_names_are_never_given_twice() -> None:
    """A new node is not taken for the one that had gone, in logs and metrics."""
    fleet = fleet_of("d1")
    fleet.update([address("d2")])
    assert [each.name for each in fleet.nodes] == ["decode-2"]


# What can be used


def test_sick_node_is_not_used() -> None:
    """Two failed checks in a row are down, one is not."""
    fleet = fleet_of("d1")
    node(fleet, "d1").failed_checks = 1
    assert node(fleet, "d1").state == "ok"
    assert fleet.usable("decode")
    node(fleet, "d1").failed_checks = 2
    assert node(fleet, "d1").state == "down"
    assert not fleet.usable("decode")


def test_node_whose_breaker_is_open_is_not_used() -> None:
    """Failures in a row stop what is sent to a node, and to it alone."""
    fleet = fleet_of("d1", "d2", breaker_failures=2)
    for _ in range(2):
        fleet.failed(node(fleet, "d1"))
    assert node(fleet, "d1").state == "breaker_open"
    assert hosts(fleet.usable("decode")) == ["d2"]


def test_one_request_tries_a_node_after_its_breaker_was_open() -> None:
    """The trial goes out, and no other request until its outcome is known."""
    fleet = fleet_of("d1", breaker_failures=1, breaker_open_s=1e-9)
    tried = node(fleet, "d1")
    fleet.failed(tried)
    assert hosts(fleet.usable("decode")) == ["d1"]
    tried.breaker.open_s = 60.0
    fleet.used(tried)
    assert fleet.usable("decode") == []


def test_node_of_unknown_generation_is_not_used() -> None:
    """Two nodes that have not told their versions yet might be of two."""
    fleet = fleet_of(address("p1", generation=""), address("d1", generation=""))
    assert fleet.generation() is None
    assert fleet.told() == "prefill-1 joining, decode-1 joining"
    for name in ("p1", "d1"):
        node(fleet, name).version = "0.33.0"
    assert fleet.generation() is not None


# Pairs


def test_pair_is_of_one_generation() -> None:
    """P and D of two generations never meet, whatever is preferred."""
    fleet = fleet_of("p1", "d1", address("p2", generation="h"), address("d2", generation="h"))
    assert fleet.generation() == "g"
    assert hosts(fleet.prefills("g", "http://p2:8000")) == ["p1"]
    assert hosts(fleet.decodes("g", "http://d2:8000", None)) == ["d1"]
    assert fleet.generation("h") == "h"
    node(fleet, "p1").outstanding_tokens = 10**6
    assert fleet.generation() == "h"


def test_no_leg_is_sent_that_cannot_be_followed() -> None:
    """A P without a D of its generation is no choice, even the idlest one."""
    fleet = fleet_of("p1", "d1", address("p2", generation="h"))
    node(fleet, "p1").outstanding_tokens = 10**6
    assert fleet.generation() == "g"
    assert fleet.generation("h") is None


def test_versions_are_generations_unless_one_is_declared() -> None:
    """A rolling upgrade needs no setting; a declared generation counts more."""
    fleet = fleet_of(*(address(name, generation="") for name in ("p1", "d1", "d2")))
    for name, version in (("p1", "0.33.0"), ("d1", "0.32.0"), ("d2", "0.33.0")):
        node(fleet, name).version = version
    assert fleet.generation() == "0.33.0"
    assert hosts(fleet.decodes("0.33.0", None, None)) == ["d2"]
    node(fleet, "d1").declared_generation = "g"
    assert node(fleet, "d1").generation == "g"


def test_preferred_nodes_come_first() -> None:
    """The last P and the handle's owner, as long as they can be used."""
    fleet = fleet_of("p1", "p2", "d1", "d2")
    assert hosts(fleet.prefills("g", "http://p2:8000")) == ["p2", "p1"]
    assert hosts(fleet.decodes("g", "http://d2:8000", None)) == ["d2", "d1"]
    node(fleet, "d2").is_leaving = True
    assert hosts(fleet.decodes("g", "http://d2:8000", None)) == ["d1"]


def test_used_nodes_take_turns() -> None:
    """The node that was used last comes last among equals."""
    fleet = fleet_of("d1", "d2")
    fleet.used(node(fleet, "d1"))
    assert hosts(fleet.decodes("g", None, None)) == ["d2", "d1"]


# Waiting


async def test_waiting_turn_is_served_when_a_node_comes() -> None:
    """A turn that finds no pair waits for one instead of failing."""
    fleet = fleet_of("p1", queue_timeout_s=5.0)
    task = asyncio.create_task(fleet.serving())
    await until(lambda: fleet._waiting == 1)
    fleet.update([address("p1"), address("d1")])
    async with asyncio.timeout(0.05):  # woken, and not by its own look every 0.1 s
        assert await task == "g"
    assert fleet._waiting == 0


@pytest.mark.parametrize(
    ("names", "is_direct", "role"),
    [(["p1"], False, "decode"), (["d1"], False, "prefill"), (["p1"], True, "decode")],
)
async def test_wait_in_vain_is_503(names: list[str], is_direct: bool, role: str) -> None:
    """The refusal names the role that is missing, and all nodes' states, and a time."""
    fleet = fleet_of(*names, queue_timeout_s=0.01)
    with pytest.raises(RequestFailed, match=f"no {role} node") as told:
        await fleet.serving(is_direct=is_direct)
    assert (told.value.status, told.value.retry_after_s) == (503, 2)
    assert told.value.got == f"{fleet.nodes[0].name} ok"


async def test_direct_turn_needs_no_prefill_node() -> None:
    """D alone serves it."""
    assert await fleet_of("d1").serving(is_direct=True) is None


async def test_too_many_waiting_turns_are_refused_at_once() -> None:
    """The queue for nodes is bounded like the other one."""
    fleet = fleet_of("p1", queue_timeout_s=60.0, max_waiting_turns=1)
    first = asyncio.create_task(fleet.serving())
    await until(lambda: fleet._waiting == 1)
    async with asyncio.timeout(1.0):
        with pytest.raises(RequestFailed):
            await fleet.serving()
    first.cancel()
    await asyncio.wait([first])
    assert fleet._waiting == 0


# Data-parallel ranks


@pytest.mark.parametrize(
    ("engine_id", "rank"),
    [("abc", 0), ("abc_dp0", 0), ("abc_dp3", 3), ("a_dp1_dp12", 12), ("abc_dp", 0), ("_dp3x", 0)],
)
def test_rank_of_an_engine_id(engine_id: str, rank: int) -> None:
    """vLLM writes the rank at the end of the id; without one there is one rank."""
    assert rank_of(engine_id) == rank


def test_restart_is_noticed_rank_by_rank() -> None:
    """Another id of the same rank is a new engine; another rank is not."""
    told = node(fleet_of("d1"), "d1")
    ids = ["a_dp0", "b_dp1", "a_dp0", "c_dp0", "b_dp1"]
    assert [told.note_engine(id_) for id_ in ids] == [None, None, None, "a_dp0", None]
    assert told.engine_ids == {0: "c_dp0", 1: "b_dp1"}
