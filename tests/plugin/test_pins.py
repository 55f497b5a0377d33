"""What an engine keeps for others: pinned, released, given up; and what no request may leave."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

from runtime.engine_api import PIN, RECEIPT, RELEASE
from runtime.vllm_plugin.scheduler import RELEASED
from tests.plugin.legs import NEXT, PROMPT, cold, decoded, handle_of, receipt
from tests.plugin.rig import STOP_ID, Rig

ENDS: list[dict[str, Any]] = [
    {"do_remote_prefill": False, "do_remote_decode": False},
    {"do_remote_prefill": True, "do_remote_decode": True},
    {"do_remote_prefill": True, "do_remote_decode": False},
    {"do_remote_prefill": "x"},
    {"do_remote_decode": True, "remote_block_ids": [[1.5]]},
    {PIN: False},
    {PIN: True},
    {"_remote_blocks_processed": True, "do_remote_decode": True},
]


@pytest.mark.parametrize("params", ENDS, ids=str)
@pytest.mark.parametrize("offer", [False, True], ids=["bare", "offer"])
def test_no_combination_of_flags_leaks(
    pair: tuple[Rig, Rig], params: dict[str, Any], offer: bool
) -> None:
    """Each request ends, and its blocks are free at once or tracked with a deadline (14)."""
    prefill, decode = pair
    p_dict = cold(prefill)
    start = decode.free_blocks
    decode.add("r", PROMPT, (p_dict if offer else {}) | params, max_tokens=2)
    for _ in range(5):
        is_waiting = any(meta.reqs_to_recv for meta in decode.metas[-1:])
        decode.run(finished_recving={"r"} if is_waiting and offer else None)
    assert RECEIPT in decode.replies["r"]
    if decode.free_blocks != start:
        (deadline,) = [meta.reqs_to_send["r"] for meta in decode.metas if meta.reqs_to_send]
        assert deadline > 0
        assert any("r" in meta.reqs_in_batch for meta in decode.metas)
        decode.run(finished_sending={"r"})
    assert decode.free_blocks == start
    assert not decode.half._legs
    assert not decode.half._pinned


def test_no_pin_frees_at_once_and_still_reports(pair: tuple[Rig, Rig]) -> None:
    """turnback_pin = false: no handle, no wait for a reader, and the receipt."""
    prefill, decode = pair
    start = decode.free_blocks
    reply = decoded(decode, cold(prefill) | {PIN: False})
    assert set(reply) == {RECEIPT}
    assert receipt(reply)["pulled_tokens"] == 300
    assert decode.free_blocks == start


def release(rig: Rig, handle: dict[str, Any]) -> None:
    """As the HTTP route hands it over: a request that is aborted on arrival."""
    name = f"release-{len(rig.metas)}"
    rig.add(name, [0], {RELEASE: True} | handle)
    rig.abort(name)
    rig.run()


def test_release_frees_a_pinned_handle_once(pair: tuple[Rig, Rig]) -> None:
    """The worker is told to let go; a second release, or one after a read, says nothing."""
    prefill, decode = pair
    start = decode.free_blocks
    handle = handle_of(prefill, decode)
    decode.run()
    assert decode.free_blocks < start
    release(decode, handle)
    assert decode.metas[-1].reqs_to_send == {"d": RELEASED}
    release(decode, handle)
    assert not decode.metas[-1].reqs_to_send
    decode.run(finished_sending={"d"})
    assert decode.free_blocks == start
    release(decode, handle)
    assert not decode.metas[-1].reqs_to_send


@pytest.mark.parametrize(
    "change",
    [
        {"remote_engine_id": "restarted"},
        {"remote_request_id": "x"},
        {"remote_request_id": []},
        {"remote_engine_id": [], "remote_request_id": {}},
    ],
    ids=str,
)
def test_release_of_others_does_nothing(pair: tuple[Rig, Rig], change: dict[str, Any]) -> None:
    """Another engine's handle, or a name that nothing here has."""
    prefill, decode = pair
    handle = handle_of(prefill, decode)
    decode.run()
    release(decode, handle | change)
    assert not decode.metas[-1].reqs_to_send


def test_release_does_not_touch_a_running_request(pair: tuple[Rig, Rig]) -> None:
    """Only what has finished and is pinned can be released."""
    prefill, decode = pair
    decode.add("r", PROMPT, cold(prefill), max_tokens=50)
    decode.run()
    decode.run(finished_recving={"r"})
    mine = {"remote_engine_id": decode.half.engine_id, "remote_request_id": "r"}
    release(decode, mine)
    assert not decode.metas[-1].reqs_to_send
    decode.run()
    assert "r" not in decode.replies


# Aborts at each stage.


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_abort_before_it_ran_tells_the_owner(pair: tuple[Rig, Rig], leg: str) -> None:
    """Stock P says nothing then, and D's blocks wait for their TTL (section 3.3)."""
    prefill, decode = pair
    offered = cold(prefill) if leg == "decode" else handle_of(prefill, decode)
    reader = decode if leg == "decode" else prefill
    reader.add("r", PROMPT + NEXT, offered)
    reader.abort("r")
    reader.run()
    assert reader.metas[-1].reqs_to_recv["r"].local_block_ids == []
    assert not reader.half._legs


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_abort_while_it_reads_frees_its_blocks_after_the_read(
    pair: tuple[Rig, Rig], leg: str
) -> None:
    """The worker may still write them; once it is done nothing is held."""
    prefill, decode = pair
    offered = cold(prefill) if leg == "decode" else handle_of(prefill, decode)
    reader = decode if leg == "decode" else prefill
    reader.run(finished_sending=set(reader.half._pinned))
    free = reader.free_blocks
    reader.add("r", PROMPT + NEXT, offered)
    reader.run()
    assert reader.free_blocks < free
    reader.abort("r")
    reader.run()
    assert reader.free_blocks < free
    reader.run(finished_recving={"r"})
    assert reader.free_blocks == free
    assert not reader.half._legs


def test_decode_preempted_after_its_read_computes_and_gives_a_handle(
    pair: tuple[Rig, Rig],
) -> None:
    """The P dict is used up; the prompt and what was said are computed again."""
    prefill, decode = pair[0], Rig(caching=False)
    request = decode.add("r", PROMPT, cold(prefill), max_tokens=3)
    decode.run()
    decode.run(finished_recving={"r"})
    decode.run()
    decode.preempt(request)
    step = decode.run()
    assert step.num_scheduled_tokens == {"r": 301}
    assert not decode.metas[-1].reqs_to_recv
    decode.run()
    assert decode.replies["r"]["remote_num_tokens"] == 302


def test_stop_on_a_late_token_while_preempted_pins_nothing(
    pair: tuple[Rig, Rig],
) -> None:
    """Async: the last step's token ends a request whose blocks are gone already."""
    prefill, _ = pair
    decode = Rig(is_async=True)
    request = decode.add("r", PROMPT, cold(prefill), max_tokens=50)
    decode.run()
    decode.run(finished_recving={"r"})
    first = decode.schedule()
    late = decode.schedule()
    decode.finish(first)
    decode.preempt(request)
    decode.finish(late, token=STOP_ID)
    assert set(decode.replies["r"]) == {RECEIPT}
    assert not decode.half._pinned


def test_params_that_are_no_object_are_dropped(pair: tuple[Rig, Rig]) -> None:
    """They reach the engine by another field of the request; it must not end for them."""
    _, decode = pair
    decode.add("r", PROMPT, "text")  # type: ignore[arg-type]
    decode.run()
    assert decode.replies["r"] is None
