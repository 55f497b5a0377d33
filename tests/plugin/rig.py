"""vLLM's own scheduler with the verified connector, stepped by hand: no model, no server."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before vLLM is imported: nothing is looked up on the network, and no plugin is needed.
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": ""}

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from runtime.local.model import build_model

ROOT = Path(__file__).parents[2]
BLOCK = 32
STOP_ID = 7
WINDOW = 64
_BLOCKS = 200
_BUDGET = 8192
_SIZES: dict[str, Any] = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
_FULL = FullAttentionSpec(block_size=BLOCK, **_SIZES)
_WINDOW = SlidingWindowSpec(block_size=BLOCK, sliding_window=WINDOW, **_SIZES)


_TRANSFER: dict[str, Any] = {
    "kv_connector": "NixlConnector",
    "kv_connector_module_path": "runtime.vllm_plugin.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "fail",
    "kv_connector_extra_config": {"bidirectional_kv_xfer": True},
}


def _config(draft_tokens: int, *, caching: bool) -> Any:
    drafts = {"method": "ngram", "num_speculative_tokens": draft_tokens}
    config = EngineArgs(
        model=str(build_model(ROOT / "out" / "models")),
        dtype="float32",
        max_model_len=4096,
        max_num_batched_tokens=_BUDGET,
        max_num_seqs=8,
        block_size=BLOCK,
        enforce_eager=True,
        enable_prefix_caching=caching,
        prefix_caching_hash_algo="sha256_cbor",
        kv_transfer_config=_TRANSFER,
        disable_hybrid_kv_cache_manager=False,
        speculative_config=drafts if draft_tokens else None,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = _BLOCKS
    return config


class Rig:
    """One engine's scheduler.

    Args:
        is_async: schedule a step before the last one's tokens are known, as on GPU.
        draft_tokens: tokens to draft a step (n-gram speculation).
        caching: keep a prefix cache.
        windows: KV-cache groups of sliding-window layers beside the one of full attention.
    """

    def __init__(
        self,
        *,
        is_async: bool = False,
        draft_tokens: int = 0,
        caching: bool = True,
        windows: int = 0,
    ) -> None:
        config = _config(draft_tokens, caching=caching)
        config.scheduler_config.async_scheduling = is_async  # the CPU platform says no
        caches = KVCacheConfig(
            num_blocks=_BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec(["full"], _FULL),
                *(KVCacheGroupSpec([f"window{at}"], _WINDOW) for at in range(windows)),
            ],
            hash_block_size=BLOCK,
        )
        hash_function = get_hash_fn_by_name("sha256_cbor")
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK, hash_function)
        self.scheduler: Any = (AsyncScheduler if is_async else Scheduler)(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        self.is_async = is_async
        self.half = self.scheduler.connector.connector_scheduler
        self.metas: list[Any] = []
        self.replies: dict[str, Any] = {}

    def unscheduled(self, name: str, ids: list[int], build: Callable[[Any], None]) -> Any:
        """A request that the scheduler never sees, hashed after `build` has changed it."""
        request = Request(
            request_id=name,
            prompt_token_ids=list(ids),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
        )
        build(request)
        request.block_hashes = self._hasher(request)
        return request

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        count: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return count

    def add(
        self,
        name: str,
        ids: list[int],
        params: dict[str, Any] | None,
        *,
        max_tokens: int = 1,
        salt: str | None = None,
        **sampling: Any,
    ) -> Any:
        """Submit a request."""
        extra = {"kv_transfer_params": params} if params is not None else None
        wanted = SamplingParams(
            max_tokens=max_tokens, stop_token_ids=[STOP_ID], extra_args=extra, **sampling
        )
        request = Request(
            request_id=name,
            prompt_token_ids=list(ids),
            sampling_params=wanted,
            pooling_params=None,
            block_hasher=self._hasher,
            cache_salt=salt,
        )
        self.scheduler.add_request(request)
        return request

    def schedule(self) -> Any:
        """Plan one step; what goes to the worker is kept in `metas`."""
        step = self.scheduler.schedule()
        self.metas.append(step.kv_connector_metadata)
        return step

    def finish(
        self, step: Any, token: int = 9, tokens: list[int] | None = None, **worker: Any
    ) -> None:
        """End a step: each request that is not in mid-prompt gets a token, drafts are rejected.

        Args:
            step: what `schedule` returned.
            token: the token that is sampled.
            tokens: in its place, accepted drafts and the token after them.
            worker: fields of the worker half's KVConnectorOutput.
        """
        names = list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[
                [] if self.scheduler.requests[name].is_prefill_chunk else tokens or [token]
                for name in names
            ],
            kv_connector_output=KVConnectorOutput(**worker) if worker else None,
        )
        for outputs in self.scheduler.update_from_output(step, output).values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.replies[one.request_id] = one.kv_transfer_params

    def run(self, token: int = 9, **worker: Any) -> Any:
        """One step from plan to end."""
        step = self.schedule()
        self.finish(step, token, **worker)
        return step

    def preempt(self, request: Any) -> None:
        """Put a running request back to the queue, its blocks freed."""
        self.scheduler.running.remove(request)
        self.scheduler._preempt_request(request, 0.0)

    def abort(self, name: str) -> None:
        """As when a client goes away."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
