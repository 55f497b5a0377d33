"""Sequences hashed as an engine does, and dicts that describe them."""

import hashlib
from collections.abc import Sequence
from typing import Any

from runtime.engine_api import RECORD
from runtime.verification.record import HashScheme, Record, Sequenced

SCHEME = HashScheme("sha256_cbor", "seed", 32)


def _hash(parent: bytes, ids: Sequence[int]) -> bytes:
    return hashlib.sha256(parent + repr(list(ids)).encode()).digest()


def sequenced(ids: Sequence[int], salt: str = "", size: int = 32) -> Sequenced:
    """A sequence under a chained hash of its own."""
    hashes: list[bytes] = []
    for at in range(0, len(ids) - size + 1, size):
        hashes.append(_hash(hashes[-1] if hashes else salt.encode(), ids[at : at + size]))

    def tail_hash(start: int, end: int) -> bytes:
        parent = hashes[start // size - 1] if start else salt.encode()
        return _hash(parent, ids[start:end])

    return Sequenced(len(ids), hashes, tail_hash)


def handle(ids: Sequence[int], record: object = "own", **changes: Any) -> dict[str, Any]:
    """A handle over the KV of these tokens, of an engine with blocks of 32."""
    tokens = len(ids)
    own = Record.of_sequence(sequenced(ids), SCHEME).to_dict()
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
        RECORD: own if record == "own" else record,
    }
    return params | changes
