"""KV bookkeeping of the mock engine: handles, P dicts, records, counters."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from runtime.engine_api import (
    EXTERNAL_HIT_TOKENS,
    NIXL_AFTER_EXPIRY,
    NIXL_BYTES,
    NIXL_FAILED,
    NIXL_READS,
    NIXL_SECONDS,
    RECORD,
)
from runtime.local.mock_pool import BlockPool
from runtime.local.mock_tokens import HASH_ALGORITHM, SEED_FINGERPRINT
from runtime.verification.leg import Gate, SpentDicts
from runtime.verification.record import HashScheme, Record, Sequenced

BYTES_PER_TOKEN = 1024
"""Size of one token's KV, as counted by NIXL_BYTES."""

COUNTER_NAMES = (
    NIXL_READS,
    NIXL_SECONDS,
    NIXL_BYTES,
    NIXL_FAILED,
    NIXL_AFTER_EXPIRY,
    EXTERNAL_HIT_TOKENS,
)

_READ_TIMEOUT_S = 10.0
_ALARM_SLACK_S = 0.01


class TransferFailed(Exception):
    """A handle or P dict that cannot be used; the request ends with HTTP 500."""


@dataclass
class Transfers:
    """The KV that one rank of a mock engine keeps for others, and what it reads of theirs.

    Attributes:
        is_prefill: a prefill node's dicts ask their reader to pull.
        keep_s: how long blocks are kept for a reader: P's lease, D's TTL.
        spent_s: how long a dict is remembered that came to this engine.
        port: own HTTP port; it stands in for the NIXL side channel.
        pool: where running requests and kept sequences have their blocks.
        engine_id: new in every process; a test changes it to play a restart.
        gate: admits requests as the verified connector does.
        counters: value per sample name of engine_api.
        running_count: requests that have their blocks.
        expired_count: kept sequences that no reader and no release freed in time.
        is_ended: the engine has restarted since, and this is what it had before.
    """

    is_prefill: bool
    block_size_tokens: int
    threshold_tokens: int
    keep_s: float
    spent_s: float
    host: str
    port: int
    pool: BlockPool
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTER_NAMES, 0.0))
    gate: Gate = field(init=False)
    is_ended: bool = False
    running_count: int = 0
    expired_count: int = 0
    _kept: dict[str, tuple[float, int]] = field(default_factory=dict)
    _next_block: int = 1
    _alarm: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        scheme = HashScheme(HASH_ALGORITHM, SEED_FINGERPRINT, self.block_size_tokens)
        self.gate = Gate(self.engine_id, scheme, (0,), 1, SpentDicts(self.spent_s))

    @property
    def kept_count(self) -> int:
        """Sequences whose blocks are held for a reader."""
        self._expire()
        return len(self._kept)

    @property
    def kept_blocks(self) -> int:
        """Blocks of the sequences that are held for a reader."""
        self._expire()
        return sum(blocks for _, blocks in self._kept.values())

    def blocks_of(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.block_size_tokens)

    def keep(self, internal_id: str, sequence: Sequenced) -> dict[str, Any]:
        """Keep a sequence's blocks, which its request holds, and describe them.

        Returns:
            A P dict or a handle.
        """
        self._expire()
        tokens = sequence.tokens
        blocks = self.blocks_of(tokens)
        first, self._next_block = self._next_block, self._next_block + blocks
        end_s = time.perf_counter() + self.keep_s
        self._kept[internal_id] = (end_s, blocks)
        self._set_alarm()
        return {
            "do_remote_prefill": self.is_prefill,
            "do_remote_decode": not self.is_prefill,
            "remote_block_ids": [list(range(first, first + blocks))],
            "remote_num_tokens": tokens,
            "remote_engine_id": self.engine_id,
            "remote_request_id": internal_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_blocks_expiry_time": None if self.is_prefill else end_s,
            "transfer_mode": "pull",
            "remote_registration_generation": 0,
            RECORD: Record.of_sequence(sequence, self.gate.scheme).to_dict(),
        }

    async def read(
        self, session: aiohttp.ClientSession, params: Mapping[str, Any], tokens: int
    ) -> None:
        """Read the leading tokens of another engine's blocks; 0 only tells it to free them.

        Raises:
            TransferFailed: the owner is gone or has restarted.
        """
        began = time.perf_counter()
        url = f"http://{params['remote_host']}:{params['remote_port']}/mock/read"
        asked = {
            "request_id": params["remote_request_id"],
            "engine_id": params["remote_engine_id"],
        }
        timeout = aiohttp.ClientTimeout(total=_READ_TIMEOUT_S)
        try:
            async with session.post(url, json=asked, timeout=timeout) as reply:
                status = reply.status
        except (aiohttp.ClientError, TimeoutError) as error:
            self.counters[NIXL_FAILED] += 1
            raise TransferFailed(f"{url}: {error}") from error
        if status != 200:
            self.counters[NIXL_FAILED] += 1
            raise TransferFailed(f"{url}: HTTP {status}")
        if tokens:
            blocks = self.blocks_of(tokens)
            self.counters[EXTERNAL_HIT_TOKENS] += tokens
            self.counters[NIXL_READS] += 1
            self.counters[NIXL_BYTES] += blocks * self.block_size_tokens * BYTES_PER_TOKEN
            self.counters[NIXL_SECONDS] += time.perf_counter() - began

    def release(self, request_id: str, engine_id: str) -> None:
        """Free the blocks of a handle or P dict; nothing happens for one not kept here."""
        if engine_id == self.engine_id:
            self.drop(request_id)

    def drop(self, internal_id: str) -> bool:
        """Free a kept sequence's blocks; False when they are not kept."""
        self._expire()
        kept = self._kept.pop(internal_id, None)
        if kept is not None:
            self.pool.give(kept[1])
        return kept is not None

    def done(self, request_id: str, engine_id: str) -> bool:
        """A reader is done: free the blocks.

        Returns:
            False when the reader means another engine. One that comes after the blocks
            were freed is only counted: it read whatever was there, and cannot tell.
        """
        if engine_id != self.engine_id:
            return False
        if not self.drop(request_id):
            self.counters[NIXL_AFTER_EXPIRY] += 1
        return True

    def close(self) -> None:
        """Forget what is kept: the engine ends."""
        self.is_ended = True
        self._kept.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _expire(self) -> None:
        # All are kept equally long: the oldest ends first.
        now_s = time.perf_counter()
        while self._kept:
            internal_id, (end_s, blocks) = next(iter(self._kept.items()))
            if end_s > now_s:
                break
            del self._kept[internal_id]
            self.pool.give(blocks)
            self.expired_count += 1

    def _set_alarm(self) -> None:
        """Make sure that blocks whose time is over reach requests that wait for them."""
        if self._alarm is None and self._kept:
            end_s = next(iter(self._kept.values()))[0]
            delay_s = max(0.0, end_s - time.perf_counter()) + _ALARM_SLACK_S
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._expire()
        self._set_alarm()


async def compute(tokens: int, us_per_token: float) -> None:
    """Spend the time that a prefill of so many tokens takes."""
    if tokens > 0 and us_per_token:
        await asyncio.sleep(tokens * us_per_token / 1e6)
