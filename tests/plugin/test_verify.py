"""Which part of an offered handle may be read."""

from typing import Any

import pytest

from runtime.engine_api import RECORD, Record
from runtime.vllm_plugin.verify import HashScheme, Verdict, carries_handle, clip, discard, judge

SCHEME = HashScheme("sha256_cbor", "seed", 32)
HASHES = [bytes([number]) * 32 for number in range(1, 11)]


def handle(tokens: int = 300, record: object = "own", **changes: Any) -> dict[str, Any]:
    """A handle over `tokens` tokens of a sequence one token longer, hashed as HASHES."""
    own = Record.of_blocks(
        HASHES,
        sequence_tokens=tokens + 1,
        block_size_tokens=32,
        algorithm="sha256_cbor",
        seed_fingerprint="seed",
    )
    params: dict[str, Any] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_block_ids": [list(range(100, 100 + -(-tokens // 32)))],
        "remote_num_tokens": tokens,
        "remote_engine_id": "engine",
        "remote_request_id": "request",
        "remote_host": "127.0.0.1",
        "remote_port": 5601,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_blocks_expiry_time": 1.5,
        RECORD: own.to_dict() if record == "own" else record,
    }
    return params | changes


def test_equal_history_is_verified_in_whole_blocks() -> None:
    """300 tokens hold nine whole blocks; the tenth is not verified."""
    assert judge(handle(300), HASHES, SCHEME) == Verdict(300, 288, None)


def test_block_of_the_last_token_is_left_out() -> None:
    """With L = 320 the KV of token 319 may be missing, so block nine is not offered."""
    assert judge(handle(319), HASHES, SCHEME).verified_tokens == 288


def test_edit_in_the_middle_verifies_what_stands_before_it() -> None:
    """From the first other hash on, nothing counts."""
    # Hashes are chained: after a difference none agrees.
    mine = HASHES[:4] + [bytes([number]) * 32 for number in range(101, 107)]
    assert judge(handle(), mine, SCHEME) == Verdict(300, 128, None)


def test_shorter_prompt_verifies_its_own_blocks_only() -> None:
    """A prompt that ends inside the handle's history cannot take more than it has."""
    assert judge(handle(), HASHES[:2], SCHEME).verified_tokens == 64


def test_other_conversation_verifies_nothing() -> None:
    """Another first block refuses the whole handle."""
    other = [bytes([number]) * 32 for number in range(101, 111)]
    assert judge(handle(), other, SCHEME) == Verdict(300, 0, "no_match")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "no_record"),
        ({"version": 2}, "bad_record"),
        ("text", "bad_record"),
        (Record("sha256", "seed", 32, (b"a" * 16,)).to_dict(), "other_hash"),
        (Record("sha256_cbor", "other", 32, (b"a" * 16,)).to_dict(), "other_hash"),
        (Record("sha256_cbor", "seed", 16, (b"a" * 16,)).to_dict(), "other_block_size"),
    ],
)
def test_record_that_cannot_be_compared_refuses(record: object, reason: str) -> None:
    """Without a comparable record nothing is read, and the reason is told."""
    assert judge(handle(record=record), HASHES, SCHEME) == Verdict(300, 0, reason)


def test_several_groups_refuse() -> None:
    """Sliding-window groups hold only their tail: a clip would be wrong."""
    two = handle(remote_block_ids=[[1] * 10, [2] * 3])
    assert judge(two, HASHES, SCHEME).refusal == "several_groups"


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": [[1, 2]]},
        {"remote_block_ids": [1, 2]},
        {"remote_block_ids": [["1"] * 10]},
        {"remote_block_ids": [[1.0] * 10]},
        {"remote_block_ids": [[-1] * 10]},
        {"remote_block_ids": [[0] * 1_000_000]},
        {"remote_block_ids": None},
        {"remote_num_tokens": "300"},
        {"remote_num_tokens": 300.0},
        {"remote_num_tokens": True},
        {"remote_num_tokens": 10_000},
        {"remote_blocks_expiry_time": "soon"},
        {"remote_port": "5601"},
        {"remote_host": None},
        {"tp_size": 0},
        {"do_remote_prefill": True},
    ],
)
def test_malformed_handle_is_refused(changes: dict[str, Any]) -> None:
    """Shapes that end a stock engine's process are refused before anything uses them."""
    verdict = judge(handle(**changes), HASHES, SCHEME)
    assert (verdict.verified_tokens, verdict.refusal) == (0, "malformed")
    assert verdict.detail


def test_clip_cuts_both_fields_together() -> None:
    """The id list always has as many blocks as the token count needs."""
    params = handle()
    clip(params, 128, 32)
    assert params["remote_num_tokens"] == 128
    assert params["remote_block_ids"] == [[100, 101, 102, 103]]


def test_discard_leaves_nothing_to_read() -> None:
    """After a discard the request is a plain cold prefill."""
    params = handle()
    discard(params)
    assert params == {"do_remote_decode": True, "do_remote_prefill": False}
    assert not carries_handle(params)


def test_only_a_prefill_leg_with_an_owner_carries_a_handle() -> None:
    """Cold prefill legs, decode legs and plain requests carry none."""
    assert carries_handle(handle())
    assert not carries_handle({"do_remote_decode": True, "do_remote_prefill": False})
    assert not carries_handle(handle(do_remote_decode=False, do_remote_prefill=True))
    assert not carries_handle(None)
