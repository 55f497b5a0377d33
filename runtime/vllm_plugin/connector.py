"""The verified NIXL connector: KV is read only for the tokens it was computed from.

Loaded by `kv_connector_module_path`; the class keeps the stock name because vLLM
compares connector names. Source of the extended behaviour: vLLM 0.32,
distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.v1.core import kv_cache_utils

from runtime.engine_api import PIN, RECEIPT, RECORD, Receipt, Record
from runtime.vllm_plugin.verify import HashScheme, Verdict, carries_handle, clip, discard, judge

logger = logging.getLogger("vllm.turnback")

KNOWN_EXTRA_CONFIG = frozenset(
    {
        "bidirectional_kv_xfer",
        "kv_recompute_threshold",
        "decoder_kv_blocks_ttl",
        "kv_lease_duration",
        "backends",
        "num_threads",
        "engine_ttl",
    }
)
"""Keys the stock connector reads and this kit allows.

`enforce_handshake_compat` is left out on purpose: it lets unequal engines exchange KV.
"""


def refuse_bad_config(extra: Mapping[str, Any], failure_policy: str) -> None:
    """Raise ValueError on settings that stock vLLM ignores or hangs on.

    Args:
        extra: kv_connector_extra_config.
        failure_policy: kv_load_failure_policy.
    """
    if unknown := sorted(set(extra) - KNOWN_EXTRA_CONFIG):
        raise ValueError(
            "kv_connector_extra_config has keys that nothing reads\n"
            f"  got:     {', '.join(unknown)}\n"
            f"  allowed: {', '.join(sorted(KNOWN_EXTRA_CONFIG))}\n"
            "  fix:     remove or correct them"
        )
    if extra.get("bidirectional_kv_xfer") is not True:
        raise ValueError(
            "the verified connector returns KV in both directions; a prefill node without the "
            "flag hangs on the first handle\n"
            f"  got:     bidirectional_kv_xfer = {extra.get('bidirectional_kv_xfer')!r}\n"
            "  allowed: true\n"
            "  fix:     set it, or start without kv_connector_module_path for one-way serving"
        )
    if failure_policy != "fail":
        raise ValueError(
            "a failed read under this policy parks the request for ever\n"
            f"  got:     kv_load_failure_policy = {failure_policy!r}\n"
            "  allowed: fail\n"
            "  fix:     set it to fail; the router retries such a turn cold"
        )


class VerifiedScheduler(NixlPullConnectorScheduler):
    """Scheduler half: records on the owner's side, comparison on the reader's."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._one_group = len(kv_cache_config.kv_cache_groups) == 1
        self._algorithm: str = vllm_config.cache_config.prefix_caching_hash_algo
        self._scheme: HashScheme | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._receipts: dict[str, Receipt] = {}

    def _hash_scheme(self) -> HashScheme:
        # Late: vLLM sets the root of the hash chain after it has built the scheduler.
        if self._scheme is None:
            root = bytes(kv_cache_utils.NONE_HASH)
            fingerprint = hashlib.sha256(self._algorithm.encode() + root).hexdigest()[:16]
            self._scheme = HashScheme(self._algorithm, fingerprint, self.block_size)
        return self._scheme

    def on_new_request(self, request: Any) -> None:
        """Verify an offered handle once, before anything can use it."""
        params = request.kv_transfer_params
        if carries_handle(params):
            self._verdicts[request.request_id] = self._verify(params, request)
        super().on_new_request(request)

    def _verify(self, params: dict[str, Any], request: Any) -> Verdict:
        scheme = self._hash_scheme()
        verdict = judge(params, request.block_hashes, scheme)
        if verdict.refusal == "malformed":
            logger.warning(
                "Handle of request %s refused: %s. The prompt is computed here.",
                request.request_id,
                verdict.detail,
            )
            discard(params)
        elif verdict.refusal is None:
            clip(params, verdict.verified_tokens, scheme.block_size_tokens)
        return verdict

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Offer the verified tokens beyond the local cache, or nothing.

        Args:
            request: vLLM's Request.
            num_computed_tokens: tokens that the local prefix cache holds, whole blocks.
        """
        verdict = self._verdicts.get(request.request_id)
        if verdict is None:
            count, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
            return count, is_async
        if request.kv_transfer_params.get("_remote_blocks_processed"):
            # Its handle is spent: after a preemption the prompt is computed here.
            return 0, False
        count, reason = self._pull_size(verdict, num_computed_tokens)
        self._receipts[request.request_id] = Receipt(
            offered_tokens=verdict.offered_tokens,
            verified_tokens=verdict.verified_tokens,
            local_tokens=num_computed_tokens,
            pulled_tokens=count,
            reason=reason,
        )
        # With nothing to pull, the stock code notifies the owner, which frees its blocks.
        return count, count > 0

    def _pull_size(self, verdict: Verdict, local_tokens: int) -> tuple[int, str]:
        if verdict.refusal is not None:
            return 0, verdict.refusal
        if not self._one_group:
            return 0, "several_groups"
        count = verdict.verified_tokens - local_tokens
        if count <= 0:
            return 0, "local_hit"
        if count < self.kv_recompute_threshold:
            return 0, "below_threshold"
        return count, "pulled"

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Add the record to a handle, the receipt to a P dict, or pin nothing at all."""
        self._verdicts.pop(request.request_id, None)
        receipt = self._receipts.pop(request.request_id, None)
        params = request.kv_transfer_params
        if params and _wants_no_pin(params):
            self._stop_heartbeat(request.request_id)
            self._reqs_not_processed.add(request.request_id)
            return False, None
        delay_free, reply = super().request_finished(request, block_ids)
        if reply is None:
            return delay_free, None
        if receipt is not None:
            reply[RECEIPT] = receipt.to_dict()
        if reply["do_remote_decode"] and delay_free and self._one_group:
            reply[RECORD] = self._record(request)
        return delay_free, reply

    def _record(self, request: Any) -> dict[str, int | str]:
        scheme = self._hash_scheme()
        return Record.of_blocks(
            request.block_hashes,
            sequence_tokens=request.num_tokens,
            block_size_tokens=scheme.block_size_tokens,
            algorithm=scheme.algorithm,
            seed_fingerprint=scheme.seed_fingerprint,
        ).to_dict()


def _wants_no_pin(params: Mapping[str, Any]) -> bool:
    """A decode request that asked to leave no handle and has read its P dict.

    One that was aborted before it was scheduled still owes P a notification, which
    the stock code sends.
    """
    is_decode_leg = not params.get("do_remote_decode")
    return is_decode_leg and params.get(PIN) is False and not params.get("do_remote_prefill")


class NixlConnector(NixlPullConnector):
    """The stock pull connector with a verifying scheduler half."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        transfer = vllm_config.kv_transfer_config
        refuse_bad_config(transfer.kv_connector_extra_config, transfer.kv_load_failure_policy)
        cores = os.sched_getaffinity(0)
        super().__init__(vllm_config, role, kv_cache_config)
        # On CPU the stock worker moves the model's thread to the last core of its NUMA
        # node (nixl/base_worker.py), so that P and D of one machine share a core.
        os.sched_setaffinity(0, cores)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = VerifiedScheduler(
                vllm_config, self.engine_id, kv_cache_config
            )
