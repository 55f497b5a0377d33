"""Which part of another engine's KV may be read: records, comparison, clipping.

The owner of KV blocks describes their tokens in a record; the reader compares it with
its own prompt. Both sides use vLLM's prefix-cache block hashes, which are chained and
also cover the LoRA id, the cache salt and image contents.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.engine_api import RECORD, block_count_problem, is_count

RECORD_VERSION = 1
HASH_BYTES = 11
"""Bytes kept of each block hash. 88 bits keep a second preimage out of reach, and a
record of 100,000 tokens in blocks of 16 stays below 96 KiB."""


@dataclass(frozen=True, slots=True)
class HashScheme:
    """How an engine hashes blocks; hashes compare only under equal schemes.

    Attributes:
        algorithm: name of the block-hash algorithm.
        seed_fingerprint: hex digest of the root of the hash chain.
        block_size_tokens: tokens per hashed block.
    """

    algorithm: str
    seed_fingerprint: str
    block_size_tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """What the owner of KV blocks says about the tokens in them.

    Attributes:
        scheme: how the hashes were made.
        tokens: tokens whose KV is written, at least 1, counted from the start; at most
            L - 1 of a sequence of L, since the KV of its last token may not be written.
        hashes: HASH_BYTES of each whole block's hash, joined; each also covers all
            blocks before it.
        tail: HASH_BYTES of the hash of the tokens after the last whole block; empty
            when there are none.
    """

    scheme: HashScheme
    tokens: int
    hashes: bytes
    tail: bytes

    @classmethod
    def of_sequence(cls, sequence: "Sequenced", scheme: HashScheme) -> "Record":
        """Describe a sequence whose KV is written."""
        tokens = sequence.tokens
        blocks = tokens // scheme.block_size_tokens
        kept = b"".join([block[:HASH_BYTES] for block in sequence.block_hashes[:blocks]])
        start = blocks * scheme.block_size_tokens
        tail = sequence.tail_hash(start, tokens)[:HASH_BYTES] if start < tokens else b""
        return cls(scheme, tokens, kept, tail)

    def to_dict(self) -> dict[str, int | str]:
        """The record as plain JSON; bytes are base64."""
        return {
            "version": RECORD_VERSION,
            "algorithm": self.scheme.algorithm,
            "seed_fingerprint": self.scheme.seed_fingerprint,
            "block_size_tokens": self.scheme.block_size_tokens,
            "tokens": self.tokens,
            "hashes": base64.b64encode(self.hashes).decode("ascii"),
            "tail": base64.b64encode(self.tail).decode("ascii"),
        }

    @classmethod
    def from_dict(cls, raw: Any) -> "Record | None":
        """Read a record; None when the version is another or the shape is broken."""
        if not isinstance(raw, Mapping) or raw.get("version") != RECORD_VERSION:
            return None
        algorithm, fingerprint = raw.get("algorithm"), raw.get("seed_fingerprint")
        size, tokens = raw.get("block_size_tokens"), raw.get("tokens")
        if not isinstance(algorithm, str) or not isinstance(fingerprint, str):
            return None
        if not is_count(size) or not size or not is_count(tokens) or not tokens:
            return None
        hashes, tail = _unpacked(raw.get("hashes")), _unpacked(raw.get("tail"))
        blocks, rest = divmod(tokens, size)
        if hashes is None or len(hashes) != blocks * HASH_BYTES:
            return None
        if tail is None or len(tail) != (HASH_BYTES if rest else 0):
            return None
        return cls(HashScheme(algorithm, fingerprint, size), tokens, hashes, tail)


def _unpacked(encoded: Any) -> bytes | None:
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A token sequence as its engine hashes it.

    Attributes:
        tokens: how many leading tokens of it count.
        block_hashes: full hashes of whole blocks, in order; those beyond `tokens` are
            not looked at.
        tail_hash: (start, end) -> hash of the tokens start..end-1, chained to the whole
            blocks before start; start is a multiple of the block size.
    """

    tokens: int
    block_hashes: Sequence[bytes]
    tail_hash: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification allows.

    Attributes:
        offered_tokens: tokens that the dict said it holds.
        verified_tokens: leading tokens proven equal.
        refusal: reason word when nothing may be read, else None.
        detail: for the log when refused as malformed.
    """

    offered_tokens: int
    verified_tokens: int
    refusal: str | None
    detail: str = ""


def verified_blocks(mine: Sequence[bytes], theirs: bytes) -> int:
    """Count the leading blocks whose hashes agree.

    Args:
        mine: full block hashes of the new prompt, in order, length n >= 0.
        theirs: hashes of a record, HASH_BYTES each, m >= 0 of them.

    Returns:
        k in [0, min(n, m)]; blocks 0..k-1 hold the same tokens on both sides.

    Source:
        vLLM hashes each block together with its parent's hash, so agreement at
        block k-1 implies agreement before it (v1/core/kv_cache_utils.py, 0.32);
        hence the bisection.
    """
    low, high = 0, min(len(mine), len(theirs) // HASH_BYTES)
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * HASH_BYTES
        if mine[middle - 1][:HASH_BYTES] == theirs[end - HASH_BYTES : end]:
            low = middle
        else:
            high = middle - 1
    return low


def judge(
    params: Mapping[str, Any],
    mine: Sequenced,
    scheme: HashScheme,
    windows_tokens: Sequence[int] = (0,),
) -> Verdict:
    """Compare a handle or P dict with the reader's own prompt.

    Args:
        params: the owner's dict; `transfer_params_problem` has passed it.
        mine: the reader's prompt.
        scheme: how the reader hashes blocks.
        windows_tokens: attention window of each KV-cache group of the reader's model, 0
            for full attention. With one group of full attention, any whole blocks may
            be read; else the dict as a whole or nothing, since a sliding-window group
            holds the window before its end alone.
    """
    offered: int = params["remote_num_tokens"]
    if params.get(RECORD) is None:
        return Verdict(offered, 0, "no_record")
    record = Record.from_dict(params[RECORD])
    if record is None:
        return Verdict(offered, 0, "bad_record")
    if record.scheme.block_size_tokens != scheme.block_size_tokens:
        return Verdict(offered, 0, "other_block_size")
    if record.scheme != scheme:
        return Verdict(offered, 0, "other_hash")
    if problem := block_count_problem(params, scheme.block_size_tokens, windows_tokens):
        return Verdict(offered, 0, "malformed", problem)
    can_clip = tuple(windows_tokens) == (0,)
    size = scheme.block_size_tokens
    blocks = min(verified_blocks(mine.block_hashes, record.hashes), mine.tokens // size)
    fits = offered == record.tokens or (can_clip and offered > record.tokens)
    fits = fits and not _lacks_last_window(record, mine, windows_tokens)
    if fits and blocks == record.tokens // size and _tail_agrees(record, mine):
        return Verdict(offered, record.tokens, None)
    whole = min(blocks, offered // size) * size
    if not whole:
        return Verdict(offered, 0, "no_match")
    return Verdict(offered, whole, None) if can_clip else Verdict(offered, 0, "several_groups")


def _lacks_last_window(record: Record, mine: Sequenced, windows_tokens: Sequence[int]) -> bool:
    """Whether the prompt's last token would be computed without its whole window.

    A prompt that ends where the dict ends has its last token computed again, to sample
    from it. Its window begins one token before the one that the owner has kept, and that
    token's block is gone when the owner's window begins a block. Stock vLLM 0.32 reads
    whatever is there (v1/core/single_type_kv_cache_manager.py, `get_num_skipped_tokens`).
    """
    if mine.tokens != record.tokens:
        return False
    size = record.scheme.block_size_tokens
    starts = (record.tokens - window + 1 for window in windows_tokens if window)
    return any(start > 0 and start % size == 0 for start in starts)


def _tail_agrees(record: Record, mine: Sequenced) -> bool:
    start = record.tokens - record.tokens % record.scheme.block_size_tokens
    if record.tokens > mine.tokens:
        return False
    return not record.tail or mine.tail_hash(start, record.tokens)[:HASH_BYTES] == record.tail


def clip(params: dict[str, Any], verified_tokens: int, block_size_tokens: int) -> None:
    """Cut a dict of one KV-cache group to its verified prefix, both fields together.

    The worker reads the tail of the id list, so a list longer than the token count
    would shift every block (source: vLLM 0.32 nixl/base_worker.py,
    `_apply_prefix_caching`).
    """
    if params["remote_num_tokens"] == verified_tokens:
        return
    params["remote_num_tokens"] = verified_tokens
    ids = params["remote_block_ids"][0]
    params["remote_block_ids"] = [list(ids[: -(-verified_tokens // block_size_tokens)])]
