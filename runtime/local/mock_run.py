"""One request in a mock engine: its blocks, its read, what it keeps for others."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from runtime.engine_api import PIN, RECEIPT
from runtime.local.mock_config import MockConfig
from runtime.local.mock_replies import Job
from runtime.local.mock_tokens import HashedTokens
from runtime.local.mock_transfer import Transfers, compute
from runtime.verification.leg import Leg
from runtime.verification.record import Sequenced

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Run:
    """One request, from its arrival until it has finished or its client is gone.

    Args:
        job: the request.
        transfers: books of the rank that serves it.
        session: reaches other engines.
        spawn: runs a task that outlives the request.
    """

    def __init__(
        self,
        job: Job,
        config: MockConfig,
        transfers: Transfers,
        session: aiohttp.ClientSession,
        spawn: Spawn,
    ) -> None:
        self._job, self._config, self._transfers = job, config, transfers
        self._session, self._spawn = session, spawn
        self._params = dict(job.params)
        self._held_blocks = 0
        self._kept_id: str | None = None
        self._leg: Leg | None = None
        # Without kv_transfer_params nobody looks at the hashes.
        ids = job.prompt if self._params else []
        self._hashed = HashedTokens(ids, config.block_size_tokens, job.body.get("cache_salt"))
        if self._params:
            self._leg = transfers.gate.admit(self._params, self._sequenced(len(job.prompt)))

    @property
    def blocks(self) -> int:
        """Blocks that the prompt and the whole answer fill."""
        return self._transfers.blocks_of(len(self._job.prompt) + len(self._job.choices))

    async def start(self) -> None:
        """Wait for blocks, read what may be read, prefill the rest.

        Raises:
            TransferFailed: the offered blocks cannot be read.
        """
        await self._transfers.pool.take(self.blocks)
        self._held_blocks = self.blocks
        self._transfers.running_count += 1
        pulled = 0
        if leg := self._leg:
            pulled = leg.match(0, self._config.threshold_tokens)
            if leg.is_owed:
                leg.allocated(pulled)
                # The worker's read goes on when the request is aborted.
                await asyncio.shield(self._read(pulled))
                leg.pull_ended_s = time.perf_counter() if pulled else None
            leg.allocated(0)
        await compute(len(self._job.prompt) - pulled, self._config.prefill_us_per_token)

    def finish(self) -> dict[str, Any] | None:
        """The last token is there: keep the blocks for a reader, or free them.

        Returns:
            The kv_transfer_params of the reply.
        """
        if self._leg is None:
            self._give_back(0)
            return None
        result: dict[str, Any] = {}
        tokens = self._tokens_to_keep(self._leg)
        if tokens:
            self._kept_id = self._job.internal_id
            result = self._transfers.keep(self._kept_id, self._sequenced(tokens))
            if self._leg.is_prefill:
                result["remote_prefill_cached_tokens"] = self._leg.pulled_tokens
        self._give_back(self._transfers.blocks_of(tokens))
        result[RECEIPT] = self._leg.receipt().to_dict()
        return result

    def close(self) -> None:
        """End it; one that did not finish frees its blocks and those it came to read."""
        leg = self._leg
        if leg and leg.is_owed and not leg.is_allocated and not self._transfers.is_ended:
            leg.is_allocated = True
            self._read(0)
        self._give_back(0)

    def undo(self) -> None:
        """The reply did not reach its client: nobody will ask for what was kept."""
        if self._kept_id is not None:
            self._transfers.drop(self._kept_id)

    def _read(self, tokens: int) -> "asyncio.Task[None]":
        return self._spawn(self._transfers.read(self._session, self._params, tokens))

    def _tokens_to_keep(self, leg: Leg) -> int:
        job = self._job
        if leg.is_prefill:
            return len(job.prompt)
        if self._config.is_one_way or not self._params or self._params.get(PIN) is False:
            return 0
        self._hashed.extend(job.ids)
        # The KV of the last token is not written when the sequence ends.
        return len(self._hashed.ids) - 1

    def _sequenced(self, tokens: int) -> Sequenced:
        return Sequenced(tokens, self._hashed.hashes, self._hashed.tail_hash)

    def _give_back(self, kept_blocks: int) -> None:
        self._transfers.running_count -= self._held_blocks > 0
        self._transfers.pool.give(self._held_blocks - kept_blocks)
        self._held_blocks = 0
