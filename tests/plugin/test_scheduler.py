"""The scheduler half inside vLLM's own scheduler: what is pinned, pulled, freed, and when."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import vllm
import zmq

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG

from runtime.engine_api import RECORD
from runtime.verification.record import Record
from runtime.vllm_plugin.scheduler import VerifiedScheduler
from tests.plugin.legs import NEXT, PROMPT, cold, decoded, handle_of, receipt
from tests.plugin.rig import STOP_ID, Rig

# Counts that run ahead (hazard 3).


@pytest.mark.parametrize(
    ("settings", "stop", "ahead"),
    [
        ({}, False, 0),
        ({}, True, 0),
        ({"is_async": True}, False, 0),
        ({"is_async": True}, True, 1),
        ({"is_async": True, "draft_tokens": 3}, True, 4),
    ],
    ids=["sync_length", "sync_stop", "async_length", "async_stop", "async_stop_drafts"],
)
def test_count_never_reaches_the_last_token(
    settings: dict[str, Any], stop: bool, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM counts L - 1, L or L + k; the handle says L - 1, and so do its ids and record."""
    rig = Rig(**settings)
    counted = counts_of(rig, monkeypatch)
    request, handle = ended(rig, cold(Rig(caching=False), ids=PROMPT[:93]), stop=stop)
    length = request.num_tokens
    assert length == 97
    assert counted == [length - 1 + ahead]
    record = Record.from_dict(handle[RECORD])
    assert record is not None
    assert handle["remote_num_tokens"] == record.tokens == 96
    assert [len(group) for group in handle["remote_block_ids"]] == [3]


def counts_of(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that will hold what vLLM has counted when each request ends."""
    counted: list[int] = []
    finished = rig.half.request_finished

    def spy(request: Any, block_ids: Any) -> Any:
        counted.append(request.num_computed_tokens)
        return finished(request, block_ids)

    monkeypatch.setattr(rig.half, "request_finished", spy)
    return counted


def ended(rig: Rig, p_dict: Any, *, stop: bool) -> tuple[Any, Any]:
    """A D leg of 93 tokens that ends with its 97th; (the request, its handle)."""
    request = rig.add("d", PROMPT[:93], p_dict, max_tokens=100 if stop else 4)
    rig.run()
    running = [rig.schedule()]
    rig.finish(running.pop(), finished_recving={"d"})
    while "d" not in rig.replies:
        running.append(rig.schedule())
        if rig.is_async and len(running) < 2:
            continue  # the next step is planned before this one's token is known
        is_last = stop and request.num_tokens >= 96
        rig.finish(running.pop(0), token=STOP_ID if is_last else 9)
    return request, rig.replies["d"]


def test_windows_end_at_the_written_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several groups a count that runs into a new block would shift each window by one."""
    rig = Rig(is_async=True, draft_tokens=3, windows=2)
    counted = counts_of(rig, monkeypatch)
    p_dict = cold(Rig(caching=False, windows=2), ids=PROMPT[:93])
    assert [len(group) for group in p_dict["remote_block_ids"]] == [3, 3, 3]
    _, handle = ended(rig, p_dict, stop=True)
    assert counted == [100]  # four blocks; the written 96 tokens fill three
    manager = rig.scheduler.kv_cache_manager
    whole = manager.get_block_ids("d")
    assert [len(group) for group in whole] == [4, 4, 4]
    assert handle["remote_block_ids"] == tuple(list(group[:3]) for group in whole)


# Both directions carry and check a record.


def test_decode_reads_only_the_tokens_it_shares(pair: tuple[Rig, Rig]) -> None:
    """A template that renders another prompt on D (a clock, a dropped tool) cannot shift KV."""
    prefill, decode = pair
    p_dict = cold(prefill)
    other = [*PROMPT[:200], 1, 2, 3, *PROMPT[200:]]
    handle = decoded(decode, p_dict, ids=other)
    assert receipt(handle)["verified_tokens"] == receipt(handle)["pulled_tokens"] == 192
    (read,) = [meta.reqs_to_recv["d"] for meta in decode.metas if meta.reqs_to_recv]
    assert read.remote.num_tokens == 192
    assert read.remote.block_ids == [p_dict["remote_block_ids"][0][:6]]
    assert len(read.local_block_ids[0]) == 6


def test_decode_reads_a_longer_prompt_of_prefill_in_part(pair: tuple[Rig, Rig]) -> None:
    """P's prompt was longer (a tool that D dropped at the end): the tail is not taken for it."""
    prefill, decode = pair
    handle = decoded(decode, cold(prefill), ids=PROMPT[:200])
    assert receipt(handle)["pulled_tokens"] == 192


def test_whole_prompt_is_read_when_all_of_it_is_equal(pair: tuple[Rig, Rig]) -> None:
    """The ordinary leg: no token of the prompt is computed twice but the last."""
    prefill, decode = pair
    handle = decoded(decode, cold(prefill))
    assert receipt(handle)["pulled_tokens"] == 300
    assert handle["remote_num_tokens"] == 303


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({RECORD: None}, "no_record"),
        ({"version": 9}, "bad_record"),
        ({"algorithm": "sha256"}, "other_hash"),
        ({"seed_fingerprint": "0"}, "other_hash"),
    ],
)
def test_dict_that_cannot_be_compared_is_released_unread(
    pair: tuple[Rig, Rig], leg: str, change: dict[str, Any], reason: str
) -> None:
    """No pull, the prompt is computed, and the owner hears that it may free the blocks."""
    prefill, decode = pair
    offered = cold(prefill) if leg == "decode" else handle_of(prefill, decode)
    offered[RECORD] = None if RECORD in change else offered[RECORD] | change
    reader = decode if leg == "decode" else prefill
    reader.add("r", PROMPT + NEXT, offered)
    step = reader.run()
    assert step.num_scheduled_tokens == {"r": 304}
    told = reader.metas[-1].reqs_to_recv["r"]
    assert (told.local_block_ids, told.awaiting_kvs) == ((), False)
    assert receipt(reader.replies["r"])["reason"] == reason


def test_other_salt_other_adapter_other_image_do_not_match(pair: tuple[Rig, Rig]) -> None:
    """Equal tokens whose KV differs: the hashes cover what tokens do not show (hazard 8)."""
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    prefill, decode = pair
    offered = decoded(decode, cold(prefill, salt="mine"), salt="mine")
    gate = prefill.half._open_gate()

    def verified(build: Callable[[Any], None]) -> int:
        request = prefill.unscheduled("x", PROMPT + NEXT, build)
        leg = gate.admit(
            offered | {"remote_request_id": str(build)},
            prefill.half._sequenced(request, request.num_tokens),
        )
        tokens: int = leg.verdict.verified_tokens
        return tokens

    def salt(request: Any) -> None:
        request.cache_salt = "mine"

    def other_salt(request: Any) -> None:
        request.cache_salt = "other"

    def adapter(request: Any) -> None:
        salt(request)
        request.lora_request = LoRARequest("adapter", 1, "/nowhere")

    def image(request: Any) -> None:
        salt(request)
        where = PlaceholderRange(offset=40, length=8)
        request.mm_features = [
            MultiModalFeatureSpec(
                data=None, modality="image", identifier="picture", mm_position=where
            )
        ]

    assert verified(salt) >= 288
    assert verified(other_salt) == 0
    assert verified(adapter) == 0
    assert verified(image) == 32


def test_short_prompts_of_two_tenants_do_not_match(pair: tuple[Rig, Rig]) -> None:
    """Less than a block of equal tokens: the digest of the tail has the salt in it too."""
    prefill, decode = pair
    short = PROMPT[:20]
    p_dict = cold(prefill, ids=short, salt="mine")
    mine = decoded(decode, dict(p_dict), ids=short, salt="mine")
    assert receipt(mine)["pulled_tokens"] == 20
    again = cold(prefill, "again", ids=short, salt="mine")
    decode.add("other", short, again, salt="other")
    decode.run()
    assert receipt(decode.replies["other"])["reason"] == "no_match"


def test_internal_marks_of_a_client_do_nothing(pair: tuple[Rig, Rig]) -> None:
    """Stock P would take the handle for one that it has processed, and never tell D."""
    prefill, decode = pair
    marked = handle_of(prefill, decode) | {"_remote_blocks_processed": True}
    prefill.add("r", PROMPT + NEXT, marked)
    prefill.run()
    assert prefill.metas[-1].reqs_to_recv["r"].awaiting_kvs


def test_prompt_logprobs_compute_everything(pair: tuple[Rig, Rig]) -> None:
    """vLLM drops the load then (hazard 22); the receipt says so, and D's blocks are freed."""
    prefill, decode = pair
    prefill.add("r", PROMPT + NEXT, handle_of(prefill, decode), prompt_logprobs=1)
    prefill.run()
    assert prefill.metas[-1].reqs_to_recv["r"].local_block_ids == ()
    assert receipt(prefill.replies["r"])["reason"] == "recompute_asked"


# One match per request, and nothing is left behind.


def test_preempted_after_the_pull_computes_its_prompt(pair: tuple[Rig, Rig]) -> None:
    """Stock P matches the handle again and waits for ever (hazard 13)."""
    prefill, decode = pair
    request = prefill.add("r", PROMPT + NEXT, handle_of(prefill, decode), max_tokens=2)
    prefill.run()
    prefill.run(finished_recving={"r"})
    prefill.run()
    prefill.preempt(request)
    step = prefill.run()
    assert step.num_scheduled_tokens == {"r": 305}
    assert not prefill.metas[-1].reqs_to_recv
    assert receipt(prefill.replies["r"])["pulled_tokens"] >= 288


def test_failed_read_ends_the_request_and_frees_its_blocks(pair: tuple[Rig, Rig]) -> None:
    """The router tries again cold; nothing stays behind on P (hazards 9 and 12)."""
    prefill, decode = pair
    handle = handle_of(prefill, decode)
    prefill.run(finished_sending={"p"})
    free = prefill.free_blocks
    prefill.add("r", PROMPT + NEXT, handle)
    prefill.run()
    assert prefill.free_blocks < free
    prefill.run(failed_recving={"r"}, finished_recving={"r"})
    assert "r" in prefill.replies
    assert prefill.free_blocks == free
    assert not prefill.half._legs


def test_waiting_request_is_verified_once(
    pair: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While P has no room the scheduler asks every step; the answer is kept."""
    prefill, decode = pair
    handle = handle_of(prefill, decode)
    calls: list[str] = []
    gate = prefill.half._open_gate()
    monkeypatch.setattr(type(gate), "admit", spied(type(gate).admit, calls), raising=True)
    prefill.add("r", PROMPT + NEXT, handle)
    for _ in range(3):
        assert prefill.half.get_num_new_matched_tokens(prefill.scheduler.requests["r"], 0)[1]
    assert calls == ["admit"]


def spied(method: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The method, with a note of each call."""

    def noted(*args: Any) -> Any:
        calls.append("admit")
        return method(*args)

    return noted


def test_second_use_is_refused_without_a_word_to_the_owner(pair: tuple[Rig, Rig]) -> None:
    """A second notification would count as a read after free on D (hazard 6)."""
    prefill, decode = pair
    handle = handle_of(prefill, decode)
    prefill.add("one", PROMPT + NEXT, dict(handle))
    prefill.add("two", PROMPT + NEXT, dict(handle))
    prefill.run()
    assert set(prefill.metas[-1].reqs_to_recv) == {"one"}
    assert receipt(prefill.replies["two"])["reason"] == "spent"


def test_windows_that_moved_on_with_dropped_drafts_pin_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts accepted beyond a stop token are dropped; where vLLM still counts them (0.32, not
    0.33), the window has moved on with them."""
    rig = Rig(draft_tokens=3, windows=1)
    counted = counts_of(rig, monkeypatch)
    request = rig.add("d", PROMPT, cold(Rig(caching=False, windows=1)), max_tokens=50)
    rig.run()
    rig.run(finished_recving={"d"})
    rig.run()
    request.spec_token_ids = [9, 9, 9]
    step = rig.schedule()
    rig.finish(step, tokens=[STOP_ID, 9, 9, 9])
    moved_on = counted[0] > request.num_tokens - 1
    assert moved_on == vllm.__version__.startswith("0.32")
    assert (RECORD in rig.replies["d"]) != moved_on
    assert bool(rig.half._pinned) != moved_on


class Peer:
    """Another node's side of the handshake."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"tcp://{host}:{port}"

    def ask(self, *message: Any) -> bytes | None:
        """What the listener answers to a message; None when nothing within half a second."""
        with zmq.Context.instance().socket(zmq.REQ) as asking:
            asking.setsockopt(zmq.LINGER, 0)
            asking.setsockopt(zmq.RCVTIMEO, 500)
            asking.connect(self._address)
            asking.send(msgspec.msgpack.encode(message))
            try:
                payload: bytes = asking.recv_multipart()[0]
            except zmq.Again:
                return None
        return payload


def test_handshake_that_cannot_be_answered_does_not_end_the_listener() -> None:
    """Stock: one rank that is not there, or another shape, and no new peer can read from here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ready, stop = threading.Event(), threading.Event()
    listener = threading.Thread(
        target=VerifiedScheduler._nixl_handshake_listener,
        args=({(0, 0): b"mine"}, ready, stop, "127.0.0.1", port),
        daemon=True,
    )
    listener.start()
    assert ready.wait(5)
    peer = Peer("127.0.0.1", port)
    good = (GET_META_MSG, 0, 0)
    for bad in ((GET_META_MSG, 0, 7), (GET_META_MSG, 0, [1]), (GET_META_MSG, 0), ()):
        assert peer.ask(*bad) is None, bad
        assert peer.ask(*good) == b"mine", bad
    stop.set()
    listener.join(5)
    assert not listener.is_alive()


def test_handshake_address_that_is_taken_is_an_error_at_once() -> None:
    """Before the listener is ready there is no message to blame: it does not try for ever."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(zmq.ZMQError, match="in use"):
            VerifiedScheduler._nixl_handshake_listener(
                {}, threading.Event(), threading.Event(), "127.0.0.1", taken.getsockname()[1]
            )
