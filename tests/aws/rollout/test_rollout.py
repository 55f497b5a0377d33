"""Nodes are restarted in place, one at a time, and nothing is lost."""

from typing import Any

import pytest

from runtime.aws.rollout.report import Pace
from runtime.aws.rollout.rollout import roll_out
from runtime.errors import BadInput, StartFailed
from tests.aws.rollout.fake import NEW, OLD, FakeFleet, node, roll, targets


def pair(ttl_s: int) -> FakeFleet:
    """One node of each role with a TTL of 480 s, which shall be another."""
    return FakeFleet.of(targets(ttl_s), node("prefill-1"), node("decode-1"), node("router-1"))


def test_shorter_ttl_reaches_the_routers_first() -> None:
    """No router ever uses a handle that D has given up."""
    fleet = pair(300)
    report, _ = roll(fleet)
    assert fleet.moved() == ["router-1", "decode-1", "prefill-1"]
    assert report.restarted == fleet.moved()
    assert report.failure is None


def test_longer_ttl_reaches_the_routers_after_decode() -> None:
    """And prefill nodes, which remember used handles for a TTL, before them too."""
    fleet = pair(600)
    roll(fleet)
    assert fleet.moved() == ["prefill-1", "decode-1", "router-1"]


def test_each_node_is_drained_restarted_ready_and_taken_back_before_the_next() -> None:
    """Never two at once."""
    fleet = FakeFleet.of(targets(300), node("decode-1"), node("decode-2"))
    report, lines = roll(fleet)
    assert fleet.done == [
        *("drain decode-1", "restart decode-1", "undrain decode-1"),
        *("drain decode-2", "restart decode-2", "undrain decode-2"),
    ]
    assert all(each.is_ready and not each.is_draining for each in fleet.nodes())
    assert report.kept == []
    assert any("serves as generation bbbb" in line for line in lines)


def test_running_requests_end_before_the_restart() -> None:
    """A node is restarted when its last request has ended, not before."""
    fleet = FakeFleet.of(targets(300), node("decode-1"))
    fleet.busy_until_s["decode-1"] = 200
    fleet.at["restart decode-1"] = lambda: restarted.append(fleet.clock())
    restarted: list[float] = []
    roll(fleet)
    assert 200 <= restarted[0] <= 210


def test_routers_have_heard_of_it_before_an_idle_node_counts_as_idle() -> None:
    """A turn may arrive until every router has looked at the tags again."""
    fleet = FakeFleet.of(targets(300), node("decode-1"))
    restarted: list[float] = []
    fleet.at["restart decode-1"] = lambda: restarted.append(fleet.clock())
    roll(fleet, notice_s=20)
    assert restarted == [20]


def test_prefill_waits_until_nobody_may_read_its_blocks() -> None:
    """D reads them after P's request has ended, for as long as P's lease."""
    fleet = FakeFleet.of(targets(300), node("prefill-1", lease_s=30))
    fleet.busy_until_s["prefill-1"] = 100
    restarted: list[float] = []
    fleet.at["restart prefill-1"] = lambda: restarted.append(fleet.clock())
    roll(fleet)
    assert 125 <= restarted[0] <= 140


def test_nodes_on_the_generation_are_passed_over() -> None:
    """A second run does nothing."""
    fleet = pair(300)
    roll(fleet)
    fleet.done.clear()
    report, lines = roll(fleet)
    assert fleet.done == []
    assert sorted(report.kept) == ["decode-1", "prefill-1", "router-1"]
    assert "nothing to do" in lines[0]


def test_request_that_never_ends_stops_it_and_the_node_is_taken_back() -> None:
    """Nothing is cut off; the node serves on as it was."""
    fleet = FakeFleet.of(targets(300), node("decode-1"), node("decode-2"))
    fleet.busy_until_s["decode-1"] = float("inf")
    report, lines = roll(fleet, drain_s=300)
    assert fleet.done == ["drain decode-1", "undrain decode-1"]
    assert isinstance(report.failure, StartFailed)
    assert "decode-1 does not become idle" in str(report.failure)
    assert "--drain-s" in report.failure.fix
    assert report.left == ["decode-1", "decode-2"]
    assert fleet.now["decode-1"].generation == OLD
    assert any("taken back" in line for line in lines)


def test_router_that_is_never_idle_is_restarted_all_the_same() -> None:
    """One under load never is; it lets running turns end when it is told to stop."""
    fleet = FakeFleet.of(targets(300), node("router-1"))
    fleet.busy_until_s["router-1"] = float("inf")
    restarted: list[float] = []
    fleet.at["restart router-1"] = lambda: restarted.append(fleet.clock())
    report, lines = roll(fleet, notice_s=20, router_s=120, drain_s=900)
    assert report.failure is None
    assert restarted == [140]
    assert any("1 request(s) run; it lets turns end" in line for line in lines)


def test_router_that_does_not_answer_is_restarted_all_the_same() -> None:
    """Nobody may wait for it for ever, and it is told as it is."""
    fleet = FakeFleet.of(targets(300), node("router-1"))
    fleet.silent.add("router-1")
    report, lines = roll(fleet)
    assert report.failure is None
    assert "router router-1: it does not answer; it lets turns end while it stops" in lines


def test_node_that_does_not_come_back_stops_it() -> None:
    """The others are not touched; it stays drained; the message has its log."""
    fleet = FakeFleet.of(targets(300), node("decode-1"), node("decode-2"), node("decode-3"))
    fleet.broken.add("decode-2")
    report, lines = roll(fleet, ready_s=600)
    assert fleet.moved() == ["decode-1", "decode-2"]
    assert report.restarted == ["decode-1"]
    assert report.left == ["decode-2", "decode-3"]
    assert isinstance(report.failure, StartFailed)
    assert "decode-2 does not come back" in report.failure.what
    assert "log of decode-2" in report.failure.got
    assert fleet.now["decode-2"].is_draining
    assert any("decode-2: stays drained" in line for line in lines)


def test_running_it_again_continues() -> None:
    """The node that was left is waited for and taken back, then the rest follows."""
    fleet = FakeFleet.of(targets(300), node("decode-1"), node("decode-2"), node("decode-3"))
    fleet.broken.add("decode-2")
    roll(fleet, ready_s=600)
    fleet.broken.clear()
    fleet.done.clear()
    report, _ = roll(fleet)
    assert fleet.done == [
        *("undrain decode-2", "drain decode-3", "restart decode-3", "undrain decode-3")
    ]
    assert (report.kept, report.failure) == (["decode-1"], None)
    assert not any(each.is_draining for each in fleet.nodes())


def test_node_that_does_not_run_is_started_without_draining() -> None:
    """It holds nothing and answers nothing."""
    fleet = FakeFleet.of(targets(300), node("decode-1", None, generation="", is_ready=False))
    roll(fleet)
    assert fleet.done == ["restart decode-1", "undrain decode-1"]


def test_silent_node_in_the_look_that_the_order_is_made_from_stops_it() -> None:
    """An empty generation of it says nothing; all such nodes are told, and no other."""
    silent: dict[str, Any] = {"generation": "", "is_ready": False, "problem": "TimedOut"}
    fleet = FakeFleet.of(
        targets(300), node("decode-1"), node("decode-2", **silent), node("prefill-1", **silent)
    )
    with pytest.raises(BadInput, match="2 node") as failure:
        roll(fleet)
    assert failure.value.got == "decode-2: TimedOut; prefill-1: TimedOut"
    assert fleet.done == []


def test_node_that_runs_by_now_is_drained() -> None:
    """Its unit has started it since the order was made, with what it holds and for how long."""
    stopped = node("prefill-1", None, generation="", is_ready=False)
    fleet = FakeFleet.of(targets(300), node("decode-1"), stopped)
    fleet.at["undrain decode-1"] = lambda: fleet.change("prefill-1", generation=OLD, lease_s=60)
    began: list[float] = []
    restarted: list[float] = []
    fleet.at["drain prefill-1"] = lambda: began.append(fleet.clock())
    fleet.at["restart prefill-1"] = lambda: restarted.append(fleet.clock())
    roll(fleet, notice_s=20)
    assert restarted[0] - began[0] == 80


def test_node_that_does_not_tell_any_more_is_not_restarted() -> None:
    """It may run requests; the rollout ends before it is touched."""
    fleet = FakeFleet.of(targets(300), node("decode-1"), node("decode-2", None, generation=""))
    fleet.at["undrain decode-1"] = lambda: fleet.change("decode-2", problem="TimedOut")
    report, _ = roll(fleet)
    assert "asking what it runs failed" in str(report.failure)
    assert fleet.moved() == ["decode-1"]


def test_node_that_vanishes_is_not_waited_for() -> None:
    """Half an hour's wait would tell nothing more."""
    fleet = FakeFleet.of(targets(300), node("decode-1"))
    fleet.at["restart decode-1"] = fleet.now.clear
    report, _ = roll(fleet)
    assert "decode-1 is gone" in str(report.failure)
    assert fleet.clock() < 60


def test_interrupt_while_draining_takes_the_node_back() -> None:
    """Ctrl-C leaves no node without work."""
    fleet = FakeFleet.of(targets(300), node("decode-1"))

    def interrupt() -> None:
        raise KeyboardInterrupt

    fleet.at["drain decode-1"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        roll(fleet)
    assert fleet.done == ["drain decode-1", "undrain decode-1"]


def test_interrupt_while_restarting_tells_what_stays_drained() -> None:
    """It cannot be taken back before it serves."""
    fleet = FakeFleet.of(targets(300), node("decode-1"))
    lines: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    fleet.at["restart decode-1"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        roll_out(fleet, lines.append, Pace(sleep=fleet.clock.sleep, clock=fleet.clock))
    assert "decode-1: stays drained" in lines[-1]


def test_router_that_does_not_come_back_is_not_told_as_out_for_certain() -> None:
    """The only one stays in its load balancer."""
    fleet = FakeFleet.of(targets(300), node("router-1"))
    fleet.broken.add("router-1")
    _, lines = roll(fleet, ready_s=60)
    assert "unless it is the only router" in lines[-1]
    assert not any("nothing is sent" in line for line in lines)


def test_only_node_of_a_role_is_told_before() -> None:
    """Nobody can take its turns over."""
    fleet = FakeFleet.of(targets(300), node("prefill-1"), node("prefill-2"), node("decode-1"))
    _, lines = roll(fleet)
    told = [line for line in lines if "only one" in line]
    assert len(told) == 1
    assert "decode-1" in told[0]


def test_roles_without_a_target_are_left_alone() -> None:
    """A deployment without routers of its own."""
    wanted = targets(300)
    del wanted["router"]
    fleet = FakeFleet.of(wanted, node("decode-1"), node("router-1"))
    roll(fleet)
    assert fleet.moved() == ["decode-1"]


def test_another_image_without_growth_is_refused_before_anything_moves() -> None:
    """A restart cannot change a machine's image."""
    fleet = FakeFleet.of(targets(300, "image-2"), node("decode-1"), node("router-1"))
    with pytest.raises(BadInput) as failure:
        roll(fleet)
    assert "decode-1 of image-1" in failure.value.got
    assert fleet.done == []
    assert fleet.now["router-1"].generation != NEW
