"""Which part of an offered handle may be read: pure, no vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.engine_api import (
    COLD_PREFILL,
    RECORD,
    Record,
    transfer_params_problem,
    verified_blocks,
)


@dataclass(frozen=True, slots=True)
class HashScheme:
    """How this engine hashes blocks; two engines compare hashes only under equal schemes."""

    algorithm: str
    seed_fingerprint: str
    block_size_tokens: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification allows.

    Attributes:
        offered_tokens: tokens that the handle said it holds; 0 when malformed.
        verified_tokens: leading tokens proven equal, a multiple of the block size.
        refusal: reason word when nothing may be read, else None.
        detail: for the log when refused as malformed.
    """

    offered_tokens: int
    verified_tokens: int
    refusal: str | None
    detail: str = ""


def carries_handle(params: Mapping[str, Any] | None) -> bool:
    """Whether a prefill request offers KV of a decode node."""
    return bool(params and params.get("do_remote_decode") and "remote_engine_id" in params)


def judge(params: Mapping[str, Any], mine: Sequence[bytes], scheme: HashScheme) -> Verdict:
    """Compare a handle with the hashes of the new prompt.

    Args:
        params: the request's kv_transfer_params with a decode node's handle.
        mine: block hashes of the new prompt, whole blocks, in order.
        scheme: how this engine made them.
    """
    if problem := transfer_params_problem(params, block_size_tokens=scheme.block_size_tokens):
        return Verdict(0, 0, "malformed", problem)
    offered = params["remote_num_tokens"]
    if len(params["remote_block_ids"]) != 1:
        return Verdict(offered, 0, "several_groups")
    if params.get(RECORD) is None:
        return Verdict(offered, 0, "no_record")
    record = Record.from_dict(params[RECORD])
    if record is None:
        return Verdict(offered, 0, "bad_record")
    if record.block_size_tokens != scheme.block_size_tokens:
        return Verdict(offered, 0, "other_block_size")
    if (record.algorithm, record.seed_fingerprint) != (scheme.algorithm, scheme.seed_fingerprint):
        return Verdict(offered, 0, "other_hash")
    blocks = min(
        verified_blocks(mine, record.hashes),
        len(params["remote_block_ids"][0]),
        offered // scheme.block_size_tokens,
    )
    if not blocks:
        return Verdict(offered, 0, "no_match")
    return Verdict(offered, blocks * scheme.block_size_tokens, None)


def clip(params: dict[str, Any], verified_tokens: int, block_size_tokens: int) -> None:
    """Cut a handle to its verified prefix, both fields together.

    The worker reads the tail of the id list, so a list longer than the token count
    would shift every block (source: vLLM 0.32 nixl/base_worker.py, `_read_blocks`).
    """
    params["remote_num_tokens"] = verified_tokens
    ids = params["remote_block_ids"][0]
    params["remote_block_ids"] = [list(ids[: verified_tokens // block_size_tokens])]


def discard(params: dict[str, Any]) -> None:
    """Take a malformed handle out of a request, so that nothing can use it."""
    params.clear()
    params.update(COLD_PREFILL)
