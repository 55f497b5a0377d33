"""The verified NIXL connector: KV is read only for the tokens it was computed from.

Loaded by `kv_connector_module_path`; the class keeps the stock name because vLLM
compares connector names.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import (
    NixlBaseConnector,
    NixlPullConnector,
)
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from runtime.vllm_plugin.manners import sharing_cores
from runtime.vllm_plugin.scheduler import VerifiedScheduler
from runtime.vllm_plugin.worker import ReleasingWorker

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


def refuse_bad_config(transfer: Any, *, is_cpu: bool) -> None:
    """Raise ValueError on settings that stock vLLM ignores or hangs on.

    Args:
        transfer: vLLM's KVTransferConfig.
        is_cpu: the engine computes on CPU.
    """
    extra: Mapping[str, Any] = transfer.kv_connector_extra_config
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
    if transfer.kv_load_failure_policy != "fail":
        raise ValueError(
            "a failed read under this policy parks the request for ever\n"
            f"  got:     kv_load_failure_policy = {transfer.kv_load_failure_policy!r}\n"
            "  allowed: fail\n"
            "  fix:     set it to fail; the router retries such a turn cold"
        )
    if transfer.kv_buffer_device == "cpu" and not is_cpu:
        raise ValueError(
            "a prefill node with a host buffer never starts the read of a handle\n"
            "  got:     kv_buffer_device = 'cpu' on a GPU\n"
            "  allowed: the GPU's own device\n"
            "  fix:     remove kv_buffer_device"
        )
    if transfer.kv_role == "kv_producer":
        raise ValueError(
            "a kv_producer frees blocks that a step in flight may still write\n"
            "  got:     kv_role = 'kv_producer'\n"
            "  allowed: kv_both, kv_consumer\n"
            "  fix:     set it to kv_both"
        )


PROVEN_SPECS = frozenset({FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec})
"""Layers whose KV was shown to survive the way; subclasses of them keep other blocks."""


def refuse_unproven_model(vllm_config: Any, kv_cache_config: Any, *, is_cpu: bool) -> None:
    """Raise ValueError on a model whose KV this connector cannot hand over unchanged.

    Args:
        vllm_config: vLLM's VllmConfig.
        kv_cache_config: vLLM's KVCacheConfig.
        is_cpu: the engine computes on CPU.
    """
    parallel = vllm_config.parallel_config
    groups = kv_cache_config.kv_cache_groups
    sizes = {group.kv_cache_spec.block_size for group in groups}
    specs = {type(spec) for group in groups for spec in iter_layer_specs(group.kv_cache_spec)}
    unit = vllm_config.cache_config.prefix_match_unit
    is_plain = vllm_config.scheduler_config.disable_hybrid_kv_cache_manager
    if others := sorted(one.__name__ for one in specs - PROVEN_SPECS):
        problem = f"layers whose KV was not proven: {', '.join(others)}"
    elif SlidingWindowSpec in specs and is_plain:
        problem = "sliding windows without the hybrid KV cache manager: their start is lost"
    elif unit not in (None, vllm_config.cache_config.block_size):
        problem = f"prefix_match_unit {unit}: hashes of other lengths than a block"
    elif max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size) > 1:
        problem = "context parallelism: its block slices are not verified"
    elif sizes != {vllm_config.cache_config.block_size}:
        problem = f"KV-cache groups with block sizes {sorted(sizes)}: hashes cover one size"
    elif is_cpu and vllm_config.model_config.use_mla:
        # Seen on vLLM 0.32: a prefill on top of pulled, verified KV gives wrong tokens.
        problem = "an MLA model on CPU: vLLM's CPU backend computes wrongly on pulled KV"
    else:
        return
    raise ValueError(
        "the verified connector cannot serve this model\n"
        f"  got:     {problem}\n"
        "  allowed: full and sliding-window attention with one block size, without context\n"
        "           parallelism; MLA on GPU\n"
        "  fix:     start without kv_connector_module_path for one-way serving by vLLM's own\n"
        "           connector"
    )


class NixlConnector(NixlPullConnector):
    """The stock pull connector with a verifying scheduler half."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        is_cpu = current_platform.is_cpu()
        refuse_bad_config(vllm_config.kv_transfer_config, is_cpu=is_cpu)
        refuse_unproven_model(vllm_config, kv_cache_config, is_cpu=is_cpu)
        # Not the pull connector's own, which would build the stock halves.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = VerifiedScheduler(
                vllm_config, self.engine_id, kv_cache_config
            )
            return
        with sharing_cores() if is_cpu else nullcontext():
            self.connector_worker = ReleasingWorker(vllm_config, self.engine_id, kv_cache_config)
