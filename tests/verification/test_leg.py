"""Whether a request may read another engine's KV, and what its receipt says."""

from typing import Any

import pytest

from runtime.engine_api import COLD_PREFILL, PIN, RECORD
from runtime.verification.leg import Gate, Leg, SpentDicts
from runtime.verification.record import Verdict
from tests.verification.conftest import SCHEME, handle, sequenced

IDS = list(range(300))
P_DICT = {"do_remote_prefill": True, "do_remote_decode": False}


def gate(tp_size: int = 1) -> Gate:
    """A gate of an engine with one KV-cache group."""
    return Gate("reader", SCHEME, (0,), tp_size, SpentDicts(keep_s=480))


@pytest.mark.parametrize("role", [{}, P_DICT], ids=["handle", "p_dict"])
def test_dict_is_cut_to_what_is_verified(role: dict[str, Any]) -> None:
    """Both directions: count and ids are cut together before anything reads them."""
    params = handle(IDS) | role
    leg = gate().admit(params, sequenced([*IDS[:200], -1]))
    assert (leg.is_prefill, leg.is_owed, leg.verdict.verified_tokens) == (not role, True, 192)
    assert params["remote_num_tokens"] == 192
    assert [len(group) for group in params["remote_block_ids"]] == [6]


@pytest.mark.parametrize(
    "params",
    [
        COLD_PREFILL,
        {"do_remote_decode": True},
        {**COLD_PREFILL, "remote_engine_id": None, "remote_block_ids": None, "remote_port": None},
    ],
)
def test_cold_prefill_offers_nothing(params: dict[str, Any]) -> None:
    """What routers send without a handle, null fields included, is no malformed handle."""
    leg = gate().admit(dict(params), sequenced(IDS))
    assert (leg.is_prefill, leg.is_owed, leg.receipt().reason) == (True, False, "none_offered")


def test_only_fields_that_were_looked_at_travel_on() -> None:
    """Unknown or nested ones could end a worker; the record has done its work."""
    odd = {"x": [[[]]], "transfer_mode": "pull", PIN: [], "remote_prefill_cached_tokens": "7"}
    params = handle(IDS) | odd
    known = set(params) - set(odd) - {RECORD}
    gate().admit(params, sequenced(IDS))
    assert set(params) == known
    cold = dict(COLD_PREFILL) | odd
    gate().admit(cold, sequenced(IDS))
    assert cold == COLD_PREFILL
    p_dict = handle(IDS) | P_DICT | {PIN: False, "remote_prefill_cached_tokens": 7}
    gate().admit(p_dict, sequenced(IDS))
    assert (p_dict[PIN], p_dict["remote_prefill_cached_tokens"]) == (False, 7)


MALFORMED: list[dict[str, Any]] = [
    {"remote_block_ids": [1, 2]},
    {"remote_block_ids": []},
    {"remote_block_ids": [[]]},
    {"remote_block_ids": "100"},
    {"remote_block_ids": [["1"] * 10]},
    {"remote_block_ids": [[1.0] * 10]},
    {"remote_block_ids": [[True] * 10]},
    {"remote_block_ids": [[-1] * 10]},
    {"remote_block_ids": [[2**70] * 10]},
    {"remote_block_ids": [[0] * 1_000_000]},
    {"remote_num_tokens": "300"},
    {"remote_num_tokens": 300.0},
    {"remote_num_tokens": True},
    {"remote_num_tokens": -1},
    {"remote_num_tokens": None},
    {"remote_blocks_expiry_time": "soon"},
    {"remote_blocks_expiry_time": float("inf")},
    {"remote_blocks_expiry_time": float("nan")},
    {"remote_registration_generation": "1"},
    {"remote_port": "5601"},
    {"remote_port": 70_000},
    {"remote_host": None},
    {"remote_request_id": 7},
    {"remote_request_id": "\ud800"},
    {"remote_request_id": "r" * 600},
    {"remote_engine_id": "reader"},
    {"remote_engine_id": ["engine"]},
    {"tp_size": 0},
    {"tp_size": 10**9},
    {"dcp_size": 2},
    {"pp_size": 2},
    {"pp_size": None},
]


@pytest.mark.parametrize("role", [{}, P_DICT], ids=["handle", "p_dict"])
@pytest.mark.parametrize("change", MALFORMED, ids=lambda change: str(change)[:40])
def test_malformed_dict_is_emptied(change: dict[str, Any], role: dict[str, Any]) -> None:
    """Shapes that end a stock engine's process are refused on both legs, with a reason."""
    params = handle(IDS) | change | role
    leg = gate().admit(params, sequenced(IDS))
    assert (leg.verdict.refusal, leg.is_owed) == ("malformed", False)
    assert leg.verdict.detail
    assert params == ({} if role else COLD_PREFILL)


@pytest.mark.parametrize("name", [name for name in handle(IDS) if name.startswith("remote_")])
def test_missing_field_is_refused(name: str) -> None:
    """No field of a handle may be left out, the expiry either: P could not see it pass."""
    params = handle(IDS)
    del params[name]
    assert gate().admit(params, sequenced(IDS)).verdict.refusal == "malformed"


def test_p_dict_has_no_expiry() -> None:
    """P keeps its blocks by heartbeats, and sends null."""
    params = handle(IDS, remote_blocks_expiry_time=None) | P_DICT
    assert gate().admit(params, sequenced(IDS)).verdict.refusal is None


@pytest.mark.parametrize(
    "flags",
    [
        {"do_remote_prefill": False, "do_remote_decode": False},
        {"do_remote_prefill": True, "do_remote_decode": True},
        {"do_remote_prefill": "yes", "do_remote_decode": False},
        {"do_remote_prefill": 1, "do_remote_decode": 0},
        {"do_remote_prefill": None, "do_remote_decode": None},
    ],
)
@pytest.mark.parametrize("rest", [handle(IDS), {PIN: True}], ids=["offer", "no_offer"])
def test_flags_that_name_no_role_leave_a_plain_request(
    flags: dict[str, Any], rest: dict[str, Any]
) -> None:
    """A stock engine pins blocks for ever when both flags are false."""
    params = rest | flags
    leg = gate().admit(params, sequenced(IDS))
    assert (leg.is_prefill, leg.is_owed, params) == (False, False, {})


@pytest.mark.parametrize(
    ("theirs", "mine", "fits"), [(1, 2, True), (4, 2, True), (2, 3, False), (8, 1, True)]
)
def test_rank_counts_must_divide(theirs: int, mine: int, fits: bool) -> None:
    """The stock worker maps ranks by their ratio."""
    leg = gate(mine).admit(handle(IDS, tp_size=theirs), sequenced(IDS))
    assert (leg.verdict.refusal is None) == fits


def test_second_use_is_refused_and_tells_nobody() -> None:
    """The owner freed the blocks after the first read; a second word would be an alarm."""
    one = gate()
    assert one.admit(handle(IDS), sequenced(IDS)).verdict.refusal is None
    params = handle(IDS)
    leg = one.admit(params, sequenced(IDS))
    assert (leg.verdict, leg.is_owed) == (Verdict(300, 0, "spent"), False)
    assert params == COLD_PREFILL
    other = handle(IDS, remote_engine_id="restarted")
    assert one.admit(other, sequenced(IDS)).verdict.refusal is None


def test_spent_dicts_are_forgotten_after_the_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their owner has freed them by then, and ids are not given twice."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    spent = SpentDicts(keep_s=10)
    assert spent.take("e", "one")
    now[0] = 5.0
    assert spent.take("e", "two")
    assert not spent.take("e", "one")
    now[0] = 10.0
    assert spent.take("e", "one")
    assert not spent.take("e", "two")


@pytest.mark.parametrize(
    ("verdict", "local", "threshold", "pulled", "reason"),
    [
        (Verdict(300, 288, None), 0, 64, 288, "pulled"),
        (Verdict(300, 288, None), 128, 64, 160, "pulled"),
        (Verdict(300, 288, None), 224, 64, 64, "pulled"),
        (Verdict(300, 288, None), 256, 64, 0, "below_threshold"),
        (Verdict(300, 288, None), 256, 1, 32, "pulled"),
        (Verdict(300, 288, None), 288, 64, 0, "local_hit"),
        (Verdict(300, 288, None), 320, 64, 0, "local_hit"),
        (Verdict(300, 0, "no_match"), 0, 64, 0, "no_match"),
    ],
)
def test_pull_size_and_reason(
    verdict: Verdict, local: int, threshold: int, pulled: int, reason: str
) -> None:
    """What is pulled lies between the local hit and the verified prefix, threshold kept."""
    leg = Leg(is_prefill=True, verdict=verdict)
    assert leg.match(local, threshold) == pulled
    leg.allocated(pulled)
    receipt = leg.receipt()
    assert (receipt.pulled_tokens, receipt.local_tokens, receipt.reason) == (pulled, local, reason)


def test_waiting_request_is_asked_again() -> None:
    """The last answer counts: the local cache may have grown in the meantime."""
    leg = Leg(is_prefill=True, verdict=Verdict(300, 288, None))
    assert leg.match(0, 64) == 288
    assert leg.match(288, 64) == 0
    leg.allocated(0)
    assert (leg.receipt().reason, leg.receipt().pulled_tokens) == ("local_hit", 0)


def test_pull_that_the_scheduler_drops_is_not_reported() -> None:
    """The receipt tells what was read, not what was offered."""
    leg = Leg(is_prefill=True, verdict=Verdict(300, 288, None))
    leg.match(0, 64)
    leg.allocated(0)
    assert (leg.receipt().reason, leg.receipt().pulled_tokens) == ("local_hit", 0)


def test_times_of_a_pull_stand_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrival, pull, computation, end; a preemption does not move the first computation."""
    moments = iter([10.5, 11.0, 12.0, 13.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    leg = Leg(is_prefill=True, verdict=Verdict(300, 288, None), arrived_s=10.0)
    leg.match(0, 64)
    leg.allocated(288)
    leg.pull_ended_s = 10.9
    leg.allocated(0)
    leg.allocated(0)
    receipt = leg.receipt()
    assert (receipt.pull_started_ms, receipt.pull_ended_ms) == (500.0, 900.0)
    assert (receipt.scheduled_ms, receipt.finished_ms) == (1000.0, 3000.0)
