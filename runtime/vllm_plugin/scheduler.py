"""Scheduler half of the verified connector: records out, comparison in.

Source of the extended behaviour: vLLM 0.32 and 0.33, distributed/kv_transfer/
kv_connector/v1/nixl/pull_scheduler.py.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from runtime.engine_api import PIN, RECEIPT, RECORD, RELEASE
from runtime.verification.leg import Gate, Leg, SpentDicts
from runtime.verification.record import HashScheme, Record, Sequenced

logger = logging.getLogger("vllm.turnback")

_REBIND_S = 0.05
"""Pause before the handshake listener takes its address again."""

RELEASED = float("-inf")
"""Deadline that tells the worker half to free blocks at once, as if they had been read."""


class VerifiedScheduler(NixlPullConnectorScheduler):
    """Lets a request read another node's KV only for the tokens it was computed from."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        specs = [group.kv_cache_spec for group in kv_cache_config.transfer_groups]
        self._windows_tokens: tuple[int, ...] = tuple(
            spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 0 for spec in specs
        )
        self._algorithm: str = vllm_config.cache_config.prefix_caching_hash_algo
        self._hash: Callable[[Any], bytes] = get_hash_fn_by_name(self._algorithm)
        self._gate: Gate | None = None
        self._legs: dict[str, Leg] = {}
        self._pinned: set[str] = set()

    @staticmethod
    def _nixl_handshake_listener(
        encoded_data: Any, ready_event: Any, stop_event: Any, host: str, port: int
    ) -> None:
        """Answer peers' handshakes, whatever one of them has sent.

        The stock listener ends at the first message that it cannot answer (a rank that is
        not there, another shape), and no new peer can read from this engine any more.
        """
        while not stop_event.is_set():
            try:
                NixlPullConnectorScheduler._nixl_handshake_listener(
                    encoded_data, ready_event, stop_event, host, port
                )
            except Exception:  # of any peer's message; the thread must live on
                if not ready_event.is_set():
                    raise  # the address cannot be used: no message has come yet
                logger.warning("A handshake message could not be answered.", exc_info=True)
                stop_event.wait(_REBIND_S)

    def on_new_request(self, request: Any) -> None:
        """Check what a request offers once, before anything can use it."""
        params = request.kv_transfer_params
        if params is not None and not isinstance(params, dict):
            logger.warning(
                "kv_transfer_params of request %s refused: %s is no object.",
                request.request_id,
                type(params).__name__,
            )
            params = request.kv_transfer_params = None
        if params:
            # Internal marks of the stock scheduler: no client may set them.
            for name in [name for name in params if name.startswith("_")]:
                del params[name]
            if params.get(RELEASE):
                self._release(params)
                params.clear()
            else:
                self._legs[request.request_id] = self._admit(request, params)
        super().on_new_request(request)

    def _release(self, handle: Mapping[str, Any]) -> None:
        """Free a handle's blocks; one that is not pinned here is left alone."""
        request_id = handle.get("remote_request_id")
        is_mine = handle.get("remote_engine_id") == self.engine_id
        if is_mine and isinstance(request_id, str) and request_id in self._pinned:
            self._pinned.discard(request_id)
            self._reqs_need_send[request_id] = RELEASED

    def _admit(self, request: Any, params: dict[str, Any]) -> Leg:
        usable = self._get_remote_prefill_token_count(request.num_tokens)
        leg = self._open_gate().admit(params, self._sequenced(request, usable))
        if leg.verdict.detail:
            logger.warning(
                "kv_transfer_params of request %s refused: %s. The prompt is computed here.",
                request.request_id,
                leg.verdict.detail,
            )
        return leg

    def _open_gate(self) -> Gate:
        # Late: vLLM sets the root of the hash chain after it has built the scheduler.
        if self._gate is None:
            root = bytes(kv_cache_utils.NONE_HASH)
            fingerprint = hashlib.sha256(self._algorithm.encode() + root).hexdigest()[:16]
            scheme = HashScheme(self._algorithm, fingerprint, self.block_size)
            spent = SpentDicts(keep_s=float(self.decoder_kv_blocks_ttl))
            self._gate = Gate(
                self.engine_id, scheme, self._windows_tokens, self.transfer_tp_size, spent
            )
        return self._gate

    def _sequenced(self, request: Any, tokens: int) -> Sequenced:
        """A request's leading tokens as vLLM hashes them; the tail as if it were a block."""

        def tail_hash(start: int, end: int) -> bytes:
            extra, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, 0)
            block = start // self.block_size
            parent = request.block_hashes[block - 1] if block else None
            ids = request.all_token_ids[start:end]
            return bytes(kv_cache_utils.hash_block_tokens(self._hash, parent, ids, extra))

        return Sequenced(tokens, request.block_hashes, tail_hash)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Offer the verified tokens beyond the local cache, or nothing.

        Args:
            request: vLLM's Request.
            num_computed_tokens: tokens that the local prefix cache holds, whole blocks.
        """
        leg = self._legs.get(request.request_id)
        # After a preemption or a failed read the dict is spent: the prompt is computed.
        if leg is None or request.kv_transfer_params.get("_remote_blocks_processed"):
            return 0, False
        if request.get_skip_reading_prefix_cache():
            leg.refuse("recompute_asked")
            return 0, False
        count = leg.match(num_computed_tokens, self.kv_recompute_threshold)
        # With nothing to pull, the stock code notifies the owner, which frees its blocks.
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note when the pull or the computation begins."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if leg := self._legs.get(request.request_id):
            leg.allocated(num_external_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """Note which pulls have ended and which pins are gone."""
        super().update_connector_output(connector_output)
        for request_id in connector_output.finished_recving or ():
            if leg := self._legs.get(request_id):
                leg.pull_ended_s = time.perf_counter()
        self._pinned.difference_update(connector_output.finished_sending or ())

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Give out blocks with their record, or free them; either way with the receipt."""
        leg = self._legs.pop(request.request_id, None)
        params = request.kv_transfer_params
        if leg is None:
            return False, None
        receipt = {RECEIPT: leg.receipt().to_dict()}
        if leg.is_owed and not leg.is_allocated:
            # Ended before it was scheduled: the owner still waits for a word. Only
            # decode legs get it from the stock code.
            self._stop_heartbeat(request.request_id)
            self._reqs_need_recv[request.request_id] = (request, [], (), False)
            params["do_remote_prefill"] = False
            return False, None
        tokens = self._kept_tokens(request)
        unwanted = not leg.is_prefill and (not params or params.get(PIN) is False)
        if unwanted or tokens < 1:
            self._stop_heartbeat(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, receipt
        delay_free, reply = super().request_finished(request, self._leading(block_ids, tokens))
        if reply is None:
            return delay_free, None
        if delay_free:
            self._pinned.add(request.request_id)
            reply["remote_num_tokens"] = tokens
            sequence = self._sequenced(request, tokens)
            reply[RECORD] = Record.of_sequence(sequence, self._open_gate().scheme).to_dict()
        return delay_free, reply | receipt

    def _kept_tokens(self, request: Any) -> int:
        """Tokens whose KV is there and can be handed over: never the last one's; 0 for none.

        Under async scheduling vLLM counts a step's tokens when it is scheduled, drafts
        included, so `num_computed_tokens` can run ahead of what has been written. Accepted
        drafts beyond a stop token are dropped, but sliding windows have moved on with them:
        the blocks that the kept tokens need are gone.
        """
        written: int = request.num_computed_tokens - request.num_in_flight_tokens
        most: int = request.num_tokens - 1
        return 0 if written > most and any(self._windows_tokens) else min(written, most)

    def _leading(self, block_ids: Any, tokens: int) -> tuple[list[int], ...]:
        """The blocks of the leading tokens, for each group."""
        return tuple(list(ids[: -(-tokens // self.block_size)]) for ids in block_ids)
