"""Names shared with the engine: handle, record and receipt schema, metrics.

A *handle* is the `kv_transfer_params` a decode node returns; a *P dict* is what a
prefill node returns. Both have the same fields and differ in the two flags.
Source: vLLM 0.32 and 0.33, v1/nixl/pull_scheduler.py, `request_finished`.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

KV_PARAMS = "kv_transfer_params"

# Keys that this kit adds to kv_transfer_params.
PIN = "turnback_pin"
RECORD = "turnback_record"
RECEIPT = "turnback_receipt"

RECORD_VERSION = 1
RECORD_HASH_BYTES = 16
"""Bytes kept of each block hash. 128 bits: a second preimage stays out of reach."""

MAX_BLOCKS = 131_072
"""Upper bound on block ids in one dict: 4 Mi tokens at 32 a block."""

COLD_PREFILL: Mapping[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a prefill leg carries when no handle is attached."""

_REQUIRED_TEXT = ("remote_engine_id", "remote_request_id", "remote_host")
_REQUIRED_SIZES = ("tp_size", "dcp_size", "pp_size")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a prefill node did with an offered handle; all counts in tokens.

    Attributes:
        offered_tokens: tokens that the handle said it holds.
        verified_tokens: leading tokens proven equal on both sides, whole blocks.
        local_tokens: leading tokens that the node's own prefix cache held.
        pulled_tokens: tokens read from the decode node; they lie at positions
            local_tokens .. local_tokens + pulled_tokens - 1.
        reason: one of REASONS.
    """

    offered_tokens: int
    verified_tokens: int
    local_tokens: int
    pulled_tokens: int
    reason: str

    def to_dict(self) -> dict[str, int | str]:
        """The receipt as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any) -> "Receipt | None":
        """Read a receipt out of an engine reply; None when it has another shape."""
        if not isinstance(raw, Mapping) or set(raw) != set(cls.__slots__):
            return None
        counts = [raw[name] for name in cls.__slots__[:4]]
        if not all(_is_count(value) for value in counts):
            return None
        if not isinstance(raw["reason"], str) or raw["reason"] not in REASONS:
            return None
        return cls(**raw)


REASONS = {
    "pulled": "the verified prefix was read from the decode node",
    "local_hit": "the prefill node's own prefix cache held the verified prefix",
    "below_threshold": "the verified prefix beyond the local cache is below the threshold",
    "no_match": "the first block already differs",
    "no_record": "the handle carries no verification record (a stock peer)",
    "bad_record": "the record has another version or a broken shape",
    "other_hash": "hash algorithm or seed differ between the two nodes",
    "other_block_size": "block sizes differ between the two nodes",
    "several_groups": "the model has more than one KV-cache group",
    "malformed": "the handle's fields do not fit each other",
}
"""Reason words of a receipt and what they mean."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the owner of KV blocks says about the tokens in them.

    Attributes:
        algorithm: name of the block-hash algorithm.
        seed_fingerprint: hex digest of the root of the hash chain.
        block_size_tokens: tokens per hashed block.
        hashes: one truncated hash per whole block, in order; each also covers all
            blocks before it, the LoRA id, the cache salt and image contents.
    """

    algorithm: str
    seed_fingerprint: str
    block_size_tokens: int
    hashes: tuple[bytes, ...]

    @classmethod
    def of_blocks(
        cls,
        block_hashes: Sequence[bytes],
        *,
        sequence_tokens: int,
        block_size_tokens: int,
        algorithm: str,
        seed_fingerprint: str,
    ) -> "Record":
        """Record the whole blocks of a sequence that ends before its last token.

        Args:
            block_hashes: the engine's hashes of the sequence, full length.
            sequence_tokens: L, prompt plus output. The KV of token L-1 may not be
                written yet when the sequence ends, so its block is left out.
            block_size_tokens: tokens per block.
            algorithm: name of the block-hash algorithm.
            seed_fingerprint: hex digest of the root of the hash chain.
        """
        blocks = max(0, sequence_tokens - 1) // block_size_tokens
        kept = tuple(bytes(block[:RECORD_HASH_BYTES]) for block in block_hashes[:blocks])
        return cls(algorithm, seed_fingerprint, block_size_tokens, kept)

    def to_dict(self) -> dict[str, int | str]:
        """The record as plain JSON; hashes are one base64 string."""
        return {
            "version": RECORD_VERSION,
            "algorithm": self.algorithm,
            "seed_fingerprint": self.seed_fingerprint,
            "block_size_tokens": self.block_size_tokens,
            "hashes": base64.b64encode(b"".join(self.hashes)).decode("ascii"),
        }

    @classmethod
    def from_dict(cls, raw: Any) -> "Record | None":
        """Read a record; None when the version is another or the shape is broken."""
        if not isinstance(raw, Mapping) or raw.get("version") != RECORD_VERSION:
            return None
        texts = [raw.get(name) for name in ("algorithm", "seed_fingerprint", "hashes")]
        size = raw.get("block_size_tokens")
        if not all(isinstance(text, str) for text in texts) or not _is_count(size) or not size:
            return None
        algorithm, fingerprint, encoded = texts
        try:
            packed = base64.b64decode(encoded, validate=True)  # type: ignore[arg-type]
        except (binascii.Error, ValueError):
            return None
        step = RECORD_HASH_BYTES
        if len(packed) % step or len(packed) // step > MAX_BLOCKS:
            return None
        hashes = tuple(packed[at : at + step] for at in range(0, len(packed), step))
        return cls(algorithm, fingerprint, size, hashes)  # type: ignore[arg-type]


def verified_blocks(mine: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """Count the leading blocks whose hashes agree.

    Args:
        mine: block hashes of the new prompt, in order; only the first
            RECORD_HASH_BYTES of each count.
        theirs: hashes of a record, in order.

    Returns:
        k in [0, min(len(mine), len(theirs))]; blocks 0..k-1 hold the same tokens.

    Source:
        vLLM hashes each block together with its parent's hash, so agreement at
        block k-1 implies agreement before it (v1/core/kv_cache_utils.py, 0.32);
        hence the bisection.
    """
    low, high = 0, min(len(mine), len(theirs))
    while low < high:
        middle = (low + high + 1) // 2
        if mine[middle - 1][:RECORD_HASH_BYTES] == theirs[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_moment(value: Any) -> bool:
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return is_number and abs(value) < 1e15 and not math.isnan(value)


def _block_ids_problem(groups: Any) -> str | None:
    if not isinstance(groups, list | tuple) or not groups:
        return "remote_block_ids must be a non-empty list of lists"
    if not all(isinstance(group, list | tuple) for group in groups):
        return "remote_block_ids must hold one list per KV-cache group"
    if sum(len(group) for group in groups) > MAX_BLOCKS:
        return f"remote_block_ids holds more than {MAX_BLOCKS} ids"
    if not all(_is_count(block) for group in groups for block in group):
        return "remote_block_ids must hold integers >= 0"
    if not any(groups):
        return "remote_block_ids holds no block"
    return None


def _counts_problem(params: Mapping[str, Any], block_size_tokens: int | None) -> str | None:
    tokens = params.get("remote_num_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        return "remote_num_tokens must be an integer >= 1"
    groups = params["remote_block_ids"]
    if block_size_tokens is None or len(groups) != 1:
        return None
    expected = -(-tokens // block_size_tokens)
    if len(groups[0]) != expected:
        return (
            f"{tokens} tokens need {expected} blocks of {block_size_tokens}, not {len(groups[0])}"
        )
    return None


def transfer_params_problem(params: Any, *, block_size_tokens: int | None = None) -> str | None:
    """Say what is wrong with a handle or P dict, or None when it can be sent on.

    Stock engines end their process on several of these shapes, so nothing uses a
    dict before this has passed.

    Args:
        params: the `kv_transfer_params` an engine returned.
        block_size_tokens: tokens per KV block, to check the block count; None skips it.
    """
    if not isinstance(params, Mapping):
        return "kv_transfer_params must be an object"
    flags = (params.get("do_remote_prefill"), params.get("do_remote_decode"))
    if flags not in ((True, False), (False, True)):
        return "exactly one of do_remote_prefill and do_remote_decode must be true"
    for name in _REQUIRED_TEXT:
        if not isinstance(params.get(name), str) or not params[name]:
            return f"{name} must be a non-empty string"
    port = params.get("remote_port")
    if not _is_count(port) or not 1 <= port <= 65_535:  # type: ignore[operator]
        return "remote_port must be an integer in 1..65535"
    for name in _REQUIRED_SIZES:
        if not _is_count(params.get(name)) or params[name] < 1:
            return f"{name} must be an integer >= 1"
    expiry = params.get("remote_blocks_expiry_time")
    if expiry is not None and not _is_moment(expiry):
        return "remote_blocks_expiry_time must be a finite number or null"
    return _block_ids_problem(params.get("remote_block_ids")) or _counts_problem(
        params, block_size_tokens
    )


# Counters of vLLM's /metrics that the kit reads.
NIXL_READS = "vllm:nixl_xfer_time_seconds_count"
NIXL_SECONDS = "vllm:nixl_xfer_time_seconds_sum"
NIXL_BYTES = "vllm:nixl_bytes_transferred_sum"
NIXL_FAILED = "vllm:nixl_num_failed_transfers_total"
NIXL_AFTER_EXPIRY = "vllm:nixl_num_notifications_after_expiry_total"
"""On the owner of the blocks: a reader finished after the blocks had been freed."""
EXTERNAL_HIT_TOKENS = "vllm:external_prefix_cache_hits_total"
"""On a prefill node: tokens pulled from decode nodes."""

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.ASCII)


def parse_metrics(text: str, names: Iterable[str]) -> dict[str, float]:
    """Sum the named samples of a Prometheus text page over their labels.

    Args:
        text: body of GET /metrics.
        names: full sample names.

    Returns:
        One value per name; 0.0 for a name that the page does not have, since vLLM
        shows most NIXL series only after the first transfer.
    """
    totals = dict.fromkeys(names, 0.0)
    for line in text.splitlines():
        if (match := _SAMPLE.match(line)) and match[1] in totals:
            totals[match[1]] += float(match[2])
    return totals
