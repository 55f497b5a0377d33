"""Scheduler time of verification for a long prompt, and the record's size on the wire.

    .venv-engine/bin/python -m benchmarks.verification_cost [--tokens 100000] [--block 16]

Times the two steps that run on the engine's scheduler thread: the check of a handle when a
request arrives at P, and the record of a sequence that ends on D. Block hashes are made by
vLLM's own function beforehand, as vLLM does outside the scheduler.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

from runtime.engine_api import RECORD
from runtime.verification.leg import Gate, SpentDicts
from runtime.verification.record import HashScheme, Record, Sequenced

_REPEATS = 200
_BAR_MS = 1.0
_TIMED = ("record_on_decode_ms", "check_on_prefill_ms", "check_on_prefill_clipped_ms")
_ALGORITHM = "sha256_cbor"


def sequence(ids: list[int], size: int) -> Sequenced:
    """A sequence under vLLM's hashes, as the connector hands it to the check."""
    hash_function = get_hash_fn_by_name(_ALGORITHM)
    kv_cache_utils.init_none_hash(hash_function)
    hashes: list[bytes] = []

    def chained(start: int, end: int) -> bytes:
        parent = hashes[start // size - 1] if start else None
        return bytes(kv_cache_utils.hash_block_tokens(hash_function, parent, ids[start:end]))

    for start in range(0, len(ids) - size + 1, size):
        hashes.append(chained(start, start + size))
    return Sequenced(len(ids), hashes, chained)


def timed_ms(work: Callable[[int], object]) -> dict[str, float]:
    """Median and worst of many runs, after a few to warm up."""
    taken = []
    for at in range(_REPEATS + 10):
        began = time.perf_counter()
        work(at)
        taken.append((time.perf_counter() - began) * 1000)
    return {"p50": statistics.median(taken[10:]), "max": max(taken[10:])}


def main() -> int:
    """Print one JSON object; returns 1 when a median reaches the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--block", type=int, default=16)
    options = parser.parse_args()
    tokens, size = options.tokens, options.block
    scheme = HashScheme(_ALGORITHM, "seed", size)
    held = sequence([at * 7 % 32_000 for at in range(tokens)], size)
    record = Record.of_sequence(held, scheme).to_dict()
    handle = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_block_ids": [list(range(-(-tokens // size)))],
        "remote_num_tokens": tokens,
        "remote_engine_id": "engine",
        "remote_host": "127.0.0.1",
        "remote_port": 5601,
        "remote_blocks_expiry_time": 1.5,
        **dict.fromkeys(("tp_size", "dcp_size", "pp_size"), 1),
        RECORD: record,
    }
    # The next prompt parts from the handle in its last third: the check also has to clip.
    mine = held.block_hashes[: tokens // size * 2 // 3]
    edited = Sequenced(tokens, [*mine, *[b"x" * 32] * (tokens // size - len(mine))], held.tail_hash)
    gate = Gate("reader", scheme, (0,), 1, SpentDicts(keep_s=480))

    def check(prompt: Sequenced) -> Callable[[int], object]:
        return lambda at: gate.admit(handle | {"remote_request_id": f"{id(prompt)}-{at}"}, prompt)

    figures: dict[str, Any] = {
        "tokens": tokens,
        "block_size_tokens": size,
        "record_kib": len(json.dumps(record)) / 1024,
        "hash_bytes_per_block": len(Record.of_sequence(held, scheme).hashes) / (tokens // size),
        "record_on_decode_ms": timed_ms(lambda _: Record.of_sequence(held, scheme).to_dict()),
        "check_on_prefill_ms": timed_ms(check(held)),
        "check_on_prefill_clipped_ms": timed_ms(check(edited)),
    }
    print(json.dumps(figures, indent=2))  # noqa: T201
    slow = [name for name in _TIMED if figures[name]["p50"] >= _BAR_MS]
    if slow:
        print(f"at or above {_BAR_MS} ms: {', '.join(slow)}")  # noqa: T201
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
