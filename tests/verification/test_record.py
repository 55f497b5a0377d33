"""Which part of another engine's KV may be read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.verification.record import (
    HASH_BYTES,
    HashScheme,
    Record,
    Sequenced,
    Verdict,
    clip,
    judge,
    verified_blocks,
)
from tests.verification.conftest import SCHEME, handle, sequenced

IDS = list(range(1000, 1300))
"""300 tokens: nine whole blocks of 32 and twelve tokens more."""

ids = st.lists(st.integers(0, 3), max_size=150)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=40), st.integers(0, 60))
def test_verified_blocks_counts_the_common_start(hashes: list[bytes], parts_at: int) -> None:
    """For chained hashes the bisection gives the length of the common start."""
    theirs = b"".join(one[:HASH_BYTES] for one in hashes)
    mine = [
        one if at < parts_at else bytes(255 - byte for byte in one) for at, one in enumerate(hashes)
    ]
    assert verified_blocks(mine, theirs) == min(parts_at, len(hashes))


@given(ids.filter(bool))
def test_record_survives_the_wire(tokens: list[int]) -> None:
    """What a record says after JSON is what it said before."""
    record = Record.of_sequence(sequenced(tokens), SCHEME)
    assert Record.from_dict(record.to_dict()) == record
    assert (record.tokens, len(record.hashes)) == (len(tokens), len(tokens) // 32 * HASH_BYTES)


@given(st.lists(ids.filter(bool), min_size=2, max_size=2), st.integers(0, 150))
def test_verified_is_the_longest_provable_prefix(both: list[list[int]], shared: int) -> None:
    """The whole dict when all its tokens begin the prompt, else the whole equal blocks."""
    theirs, mine = both
    mine = theirs[:shared] + mine
    common = next(
        (at for at, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a != b),
        min(len(theirs), len(mine)),
    )
    expected = common if common == len(theirs) else common // 32 * 32
    verdict = judge(handle(theirs), sequenced(mine), SCHEME)
    assert verdict.verified_tokens == expected
    assert verdict.refusal == (None if expected else "no_match")


def test_tail_is_verified_by_its_digest() -> None:
    """300 equal tokens are taken whole; with another 300th token the last block is not."""
    assert judge(handle(IDS), sequenced([*IDS, 7, 8]), SCHEME) == Verdict(300, 300, None)
    other = [*IDS[:299], 7, 7, 8]
    assert judge(handle(IDS), sequenced(other), SCHEME) == Verdict(300, 288, None)


def test_count_that_runs_ahead_of_the_record_is_cut_to_it() -> None:
    """A count of L or L + k, as async scheduling gives, never adds a token to the record's."""
    ahead = handle(IDS, remote_num_tokens=303)
    assert judge(ahead, sequenced([*IDS, 7, 8, 9]), SCHEME) == Verdict(303, 300, None)
    behind = handle(IDS[:290], Record.of_sequence(sequenced(IDS), SCHEME).to_dict())
    assert judge(behind, sequenced([*IDS, 7]), SCHEME) == Verdict(290, 288, None)


def test_salt_in_the_first_block_reaches_every_hash() -> None:
    """Equal tokens under another salt are not equal."""
    assert judge(handle(IDS), sequenced(IDS, salt="other"), SCHEME).refusal == "no_match"
    short = IDS[:20]
    assert judge(handle(short), sequenced(short, salt="other"), SCHEME).refusal == "no_match"


def of_other(algorithm: str, seed: str, size: int) -> dict[str, Any]:
    scheme = HashScheme(algorithm, seed, size)
    return Record.of_sequence(sequenced(IDS, size=size), scheme).to_dict()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "no_record"),
        ({"version": 2}, "bad_record"),
        ("text", "bad_record"),
        (of_other("sha256", "seed", 32), "other_hash"),
        (of_other("sha256_cbor", "other", 32), "other_hash"),
        (of_other("sha256_cbor", "seed", 16), "other_block_size"),
    ],
)
def test_record_that_cannot_be_compared_refuses(record: object, reason: str) -> None:
    """Without a comparable record nothing is read, and the reason is told."""
    assert judge(handle(IDS, record), sequenced(IDS), SCHEME) == Verdict(300, 0, reason)


@pytest.mark.parametrize("change", [{"remote_num_tokens": 10_000}, {"remote_block_ids": [[1, 2]]}])
def test_count_that_does_not_fit_the_ids_is_malformed(change: dict[str, Any]) -> None:
    """Ids and count that disagree end a stock engine; here they are refused."""
    verdict = judge(handle(IDS, **change), sequenced(IDS), SCHEME)
    assert (verdict.verified_tokens, verdict.refusal) == (0, "malformed")
    assert "blocks of 32" in verdict.detail


WINDOWS = (0, 64)
"""A group of full attention, and one with a window of 64: it hands over three blocks."""
TWO_GROUPS = [list(range(10)), [7, 8, 9]]


def test_several_groups_are_taken_whole_or_not_at_all() -> None:
    """Sliding-window groups hold only their tail: a clip would be wrong."""
    two = handle(IDS, remote_block_ids=TWO_GROUPS)
    assert judge(two, sequenced([*IDS, 7]), SCHEME, WINDOWS) == Verdict(300, 300, None)
    edited = sequenced([*IDS[:299], 7, 7])
    assert judge(two, edited, SCHEME, WINDOWS) == Verdict(300, 0, "several_groups")
    assert judge(two, sequenced([1, *IDS]), SCHEME, WINDOWS).refusal == "no_match"
    ahead = handle(IDS, remote_block_ids=TWO_GROUPS, remote_num_tokens=301)
    assert judge(ahead, sequenced(IDS), SCHEME, WINDOWS).refusal == "several_groups"


@pytest.mark.parametrize("tokens", [*range(280, 300), 63, 64, 31])
def test_prompt_that_ends_with_the_dict_needs_its_whole_window(tokens: int) -> None:
    """Its last token is computed again: the window before it must not begin in a lost block."""
    ids = list(range(tokens))
    blocks = -(-tokens // 32)
    held = [list(range(blocks)), list(range(blocks))[-3:]]
    offered = handle(ids, remote_block_ids=held)
    # The owner keeps what token `tokens` will see; token `tokens - 1` sees one more.
    lost = tokens >= 64 and max(0, tokens - 64) // 32 < (tokens - 64 + 1) // 32
    verdict = judge(offered, sequenced(ids), SCHEME, WINDOWS)
    assert (verdict.refusal == "several_groups") == lost
    assert judge(offered, sequenced([*ids, 7]), SCHEME, WINDOWS).verified_tokens == tokens


def test_single_window_group_is_not_clipped() -> None:
    """One group of a sliding window alone is no group that may be cut."""
    windowed = handle(IDS, remote_block_ids=[[7, 8, 9]])
    assert judge(windowed, sequenced(IDS), SCHEME, (64,)) == Verdict(300, 300, None)
    assert judge(windowed, sequenced(IDS[:290]), SCHEME, (64,)).refusal == "several_groups"


@pytest.mark.parametrize("ids", [TWO_GROUPS[:1], [TWO_GROUPS[0], [8, 9]], [TWO_GROUPS[0], [1] * 4]])
def test_groups_that_do_not_fit_the_model_are_malformed(ids: list[list[int]]) -> None:
    """A group more or less, or a window of another length, would trip the worker."""
    verdict = judge(handle(IDS, remote_block_ids=ids), sequenced(IDS), SCHEME, WINDOWS)
    assert verdict.refusal == "malformed"


def test_only_leading_tokens_that_count_are_compared() -> None:
    """Where the engine computes the prompt's last tokens itself, they are not pulled."""
    prompt = sequenced(IDS)
    less = type(prompt)(299, prompt.block_hashes, prompt.tail_hash)
    assert judge(handle(IDS), less, SCHEME) == Verdict(300, 288, None)
    less = type(prompt)(287, prompt.block_hashes, prompt.tail_hash)
    assert judge(handle(IDS), less, SCHEME) == Verdict(300, 256, None)


def test_record_of_a_long_prompt_is_small() -> None:
    """100,000 tokens in blocks of 16: below 96 KiB as JSON, at least 8 bytes a block."""
    scheme = HashScheme("sha256_cbor", "seed", 16)
    held = Sequenced(100_000, [bytes(32)] * 6250, lambda _start, _end: bytes(32))
    record = Record.of_sequence(held, scheme)
    assert len(json.dumps(record.to_dict())) < 96 * 1024
    assert len(record.hashes) >= 8 * 6250


def test_clip_cuts_both_fields_together() -> None:
    """The id list always has as many blocks as the token count needs."""
    params = handle(IDS)
    clip(params, 130, 32)
    assert params["remote_num_tokens"] == 130
    assert params["remote_block_ids"] == [[100, 101, 102, 103, 104]]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"hashes": "not base64!"},
        {"hashes": "YWJj"},
        {"hashes": 7},
        {"tail": ""},
        {"tail": "YWJj"},
        {"tokens": 301},
        {"tokens": 320},
        {"tokens": 0},
        {"tokens": True},
        {"algorithm": None},
        {"seed_fingerprint": 7},
        {"block_size_tokens": 0},
        {"block_size_tokens": True},
    ],
)
def test_broken_record_is_none(change: dict[str, object]) -> None:
    """Another version, a broken field or a length that does not fit is no record."""
    good = Record.of_sequence(sequenced(IDS), SCHEME).to_dict()
    assert Record.from_dict(good) is not None
    is_same_length = change == {"tokens": 301}  # 13 tokens in the tail in place of 12
    assert (Record.from_dict(good | change) is None) != is_same_length
