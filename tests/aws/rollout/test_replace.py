"""Machines that a restart cannot change get new ones beside them."""

from collections.abc import Mapping
from typing import Any

import pytest

from runtime.contract.node import Role
from runtime.errors import BadInput, StartFailed
from tests.aws.rollout.fake import FakeFleet, FakeGrowth, node, roll, targets


def fleet_and_growth(
    counts: Mapping[Role, int], *, spare: int = 1, ttl_s: int = 480
) -> tuple[FakeFleet, FakeGrowth]:
    """Nodes of image-1 and a router, where image-2 is deployed."""
    nodes = [node(f"{role}-{index}") for role, most in counts.items() for index in range(most)]
    fleet = FakeFleet.of(targets(ttl_s, "image-2"), *nodes, node("router-1"))
    most = {role: count + spare for role, count in counts.items()}
    return fleet, FakeGrowth(fleet, dict(counts), most)


def test_new_pair_serves_before_the_old_one_is_drained() -> None:
    """Both roles start together, since KV is exchanged among equals only."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    report, _ = roll(fleet, growth)
    assert fleet.done[-6:] == [
        *("grow prefill", "grow decode"),
        *("drain prefill-0", "end prefill-0", "drain decode-0", "end decode-0"),
    ]
    assert report.ended == ["prefill-0", "decode-0"]
    assert sorted(report.started) == ["decode-new2", "prefill-new1"]
    assert {each.pairing for each in fleet.nodes() if each.role != "router"} == {"image-2"}
    assert growth.asked == growth.wanted


def test_never_more_than_one_new_node_of_a_role_beside_the_others() -> None:
    """Two and four: at no time more than three and five."""
    fleet, growth = fleet_and_growth({"prefill": 2, "decode": 4})
    seen: list[tuple[int, int]] = []

    def count() -> None:
        roles: list[Any] = [each.role for each in fleet.now.values()]
        seen.append((roles.count("prefill"), roles.count("decode")))

    fleet.at |= {"grow prefill": count, "grow decode": count}
    report, _ = roll(fleet, growth)
    assert max(prefills for prefills, _ in seen) == 3
    assert max(decodes for _, decodes in seen) == 5
    assert len(report.started) == len(report.ended) == 6
    assert report.failure is None


def test_old_node_keeps_serving_until_its_requests_have_ended() -> None:
    """It is ended idle, not before."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    fleet.busy_until_s["decode-0"] = 500
    ended: list[float] = []
    fleet.at["end decode-0"] = lambda: ended.append(fleet.clock())
    roll(fleet, growth)
    assert ended[0] >= 500


def test_group_without_room_is_refused_before_anything_moves() -> None:
    """Every such role at once, with the setting to raise and what to do without capacity."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1}, spare=0)
    with pytest.raises(BadInput) as failure:
        roll(fleet, growth)
    told = failure.value
    assert "the prefill group, the decode group" in told.got
    assert "one more prefill and one more decode" in told.allowed
    assert "prefill.spare and decode.spare" in told.fix
    assert "turnback scale down" in told.fix
    assert fleet.done == []


def test_capacity_that_does_not_come_leaves_the_old_pair_serving() -> None:
    """What has not started is not asked for any more, so that it does not cost later."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    growth.missing = {"prefill", "decode"}
    report, lines = roll(fleet, growth)
    assert isinstance(report.failure, StartFailed)
    assert report.failure.what == "no capacity"
    assert report.left == ["prefill-0", "decode-0"]
    assert growth.asked == growth.wanted
    assert not any(each.is_draining for each in fleet.nodes())
    assert any("not asked for any more" in line for line in lines)


def test_new_nodes_that_do_not_serve_in_time_end_nothing() -> None:
    """Started, but not ready: the old ones are not drained."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    fleet.broken.add("decode-new2")
    report, _ = roll(fleet, growth, ready_s=600)
    assert "decode 0 of 1" in str(report.failure)
    assert "decode-new2: log of decode-new2" in str(report.failure)
    assert report.ended == []
    assert not any(each.startswith("drain") and "router" not in each for each in fleet.done)


def test_running_it_again_uses_the_node_that_has_started() -> None:
    """No second one is started beside it, and none is too many in the end."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    growth.missing = {"decode"}
    roll(fleet, growth)
    assert growth.asked == {"prefill": 2, "decode": 1}
    growth.missing = set()
    report, _ = roll(fleet, growth)
    assert report.failure is None
    assert report.ended == ["prefill-0", "decode-0"]
    assert len(fleet.now) == 3
    assert growth.asked == growth.wanted


def test_interrupt_while_new_nodes_start_asks_no_more_for_them() -> None:
    """Ctrl-C must not leave something behind that starts, and costs, an hour later."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    growth.missing = {"prefill", "decode"}

    def interrupt() -> None:
        raise KeyboardInterrupt

    fleet.at["grow decode"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        roll(fleet, growth)
    assert growth.asked == growth.wanted


def test_request_that_never_ends_keeps_its_old_node() -> None:
    """It is taken back beside the new one; the rollout says so."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1})
    fleet.busy_until_s["decode-0"] = float("inf")
    report, _ = roll(fleet, growth)
    assert "decode-0 does not become idle" in str(report.failure)
    assert (report.ended, report.left) == (["prefill-0"], ["decode-0"])
    assert not fleet.now["decode-0"].is_draining


def test_shorter_ttl_of_another_image_reaches_the_routers_first() -> None:
    """New decode nodes give less time than the old ones."""
    fleet, growth = fleet_and_growth({"prefill": 1, "decode": 1}, ttl_s=300)
    roll(fleet, growth)
    assert fleet.done.index("restart router-1") < fleet.done.index("grow decode")
