"""Names shared with the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine_api import (
    RECORD_HASH_BYTES,
    Receipt,
    Record,
    parse_metrics,
    verified_blocks,
)

HASH = st.binary(min_size=32, max_size=32)


@given(st.lists(HASH, max_size=40), st.integers(0, 60))
def test_verified_blocks_counts_the_common_start(hashes: list[bytes], parts_at: int) -> None:
    """For chained hashes the bisection gives the length of the common start."""
    theirs = [one[:RECORD_HASH_BYTES] for one in hashes]
    mine = [
        one if at < parts_at else bytes(255 - byte for byte in one) for at, one in enumerate(hashes)
    ]
    assert verified_blocks(mine, theirs) == min(parts_at, len(hashes))


@given(st.lists(HASH, max_size=20), st.integers(0, 700))
def test_record_survives_the_wire(hashes: list[bytes], tokens: int) -> None:
    """What a record says after JSON is what it said before, and never the last token's block."""
    record = Record.of_blocks(
        hashes,
        sequence_tokens=tokens,
        block_size_tokens=32,
        algorithm="sha256_cbor",
        seed_fingerprint="ab",
    )
    assert Record.from_dict(record.to_dict()) == record
    assert len(record.hashes) == min(len(hashes), max(0, tokens - 1) // 32)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"hashes": "not base64!"},
        {"hashes": "YWJj"},
        {"hashes": 7},
        {"algorithm": None},
        {"block_size_tokens": 0},
        {"block_size_tokens": True},
    ],
)
def test_broken_record_is_none(change: dict[str, object]) -> None:
    """Another version or a broken field is no record."""
    good = Record("sha256_cbor", "ab", 32, (b"x" * RECORD_HASH_BYTES,)).to_dict()
    assert Record.from_dict(good) is not None
    assert Record.from_dict(good | change) is None


def test_receipt_survives_the_wire_and_others_do_not() -> None:
    """Only a receipt of exactly this shape is read."""
    receipt = Receipt(300, 288, 0, 288, "pulled")
    raw = receipt.to_dict()
    assert Receipt.from_dict(raw) == receipt
    changes: list[dict[str, object]] = [
        {"pulled_tokens": -1},
        {"reason": "because"},
        {"reason": []},
        {"more": 1},
    ]
    for change in changes:
        assert Receipt.from_dict(raw | change) is None
    assert Receipt.from_dict(None) is None


def test_metrics_are_summed_over_labels() -> None:
    """Two engines behind one page add up; what the page lacks is zero."""
    page = '# HELP a text\na_total{engine="0"} 2.0\na_total{engine="1"} 3.5\nb 1\na_total_x 9\n'
    assert parse_metrics(page, ["a_total", "c"]) == {"a_total": 5.5, "c": 0.0}
