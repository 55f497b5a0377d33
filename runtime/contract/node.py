"""What one vLLM node and the router need to know; every model is frozen and strict."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Port = Annotated[int, Field(ge=1024, le=65_535)]
Url = Annotated[str, Field(pattern=r"^https?://[^/\s]+")]
Role = Literal["prefill", "decode"]

P_EXPIRY_GUARD_S = 5
"""A prefill node declines a handle this close to its end (vLLM pull_worker.py)."""


class Frozen(BaseModel):
    """Base of all contract models: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class KvTransferSpec(Frozen):
    """How KV moves between nodes; equal on every node of a deployment."""

    decoder_kv_blocks_ttl_s: int = Field(default=480, ge=1)
    """How long D keeps a finished turn's blocks. Longer pins more of D's KV cache."""
    kv_recompute_threshold_tokens: int = Field(default=64, ge=1)
    """Below this many tokens P recomputes in place of pulling."""
    kv_lease_duration_s: int = Field(default=30, ge=12)
    """How long P keeps a prompt's blocks for D without a heartbeat."""
    handle_deadline_margin_s: int = Field(default=10, ge=6)
    """The router stops using a handle this long before D's TTL ends."""
    backends: tuple[Literal["UCX", "LIBFABRIC"], ...] = ("UCX",)
    """NIXL transports."""
    block_size_tokens: Literal[16, 32, 64, 128] = 32
    """Tokens per KV block. CPU engines want multiples of 32."""
    prefix_hash_algorithm: Literal["sha256", "sha256_cbor"] = "sha256_cbor"
    """Block hash. Verification compares these hashes across nodes."""
    prefix_hash_seed: int = Field(default=0, ge=0, le=4_294_967_295)
    """PYTHONHASHSEED of every engine: the root of the hash chain."""

    @model_validator(mode="after")
    def _ttl_leaves_time_to_use_a_handle(self) -> Self:
        least = self.handle_deadline_margin_s + P_EXPIRY_GUARD_S
        if self.decoder_kv_blocks_ttl_s < least:
            raise ValueError(
                f"decoder_kv_blocks_ttl_s must be at least {least} s: "
                f"handle_deadline_margin_s {self.handle_deadline_margin_s} s + "
                f"{P_EXPIRY_GUARD_S} s in which P declines"
            )
        return self

    @property
    def handle_lifetime_s(self) -> int:
        """Seconds the router may use a handle, from its receipt."""
        return self.decoder_kv_blocks_ttl_s - self.handle_deadline_margin_s


class ServingSpec(Frozen):
    """One vLLM API server."""

    model: Path
    """Folder of the model."""
    served_model_name: str
    """Name clients send."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    tensor_parallel_size: int = Field(default=1, ge=1)
    max_model_len: int = Field(ge=64)
    """Longest prompt plus answer, in tokens."""
    max_num_seqs: int = Field(default=8, ge=1)
    """Most requests in one step."""
    enable_prefix_caching: bool = True
    port: Port


class CpuSpec(Frozen):
    """Where a CPU engine runs."""

    cores: tuple[int, ...] = Field(min_length=1)
    """Cores its threads are bound to."""
    kv_cache_gib: int = Field(ge=1)
    """Memory for KV blocks."""


class NodeSpec(Frozen):
    """Everything that starts one engine."""

    role: Role
    serving: ServingSpec
    kv: KvTransferSpec
    cpu: CpuSpec
    host: str = "127.0.0.1"
    """Address of the API server and of the NIXL side channel; must be reachable by peers."""
    side_channel_port: Port

    @model_validator(mode="after")
    def _each_rank_has_a_core(self) -> Self:
        ranks = self.serving.tensor_parallel_size
        if len(self.cpu.cores) < ranks:
            raise ValueError(
                f"cpu.cores must name at least {ranks} cores, one for each of "
                f"serving.tensor_parallel_size ranks, not {len(self.cpu.cores)}"
            )
        return self


class RouterSpec(Frozen):
    """The router in front of the engines."""

    prefill_urls: tuple[Url, ...] = Field(min_length=1)
    decode_urls: tuple[Url, ...] = Field(min_length=1)
    host: str = "127.0.0.1"
    port: Port
    kv: KvTransferSpec
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence on either leg."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest client request."""
