"""What one vLLM node and the router need to know; every model is frozen and strict."""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from runtime.contract.versions import SUPPORTED_ENGINES


def _with_a_port(url: str) -> str:
    """Refuse a port that no machine has."""
    if urlsplit(url).port == 0:  # one above 65535 raises by itself
        raise ValueError("the port must be in 1..65535")
    return url


def _supported(version: str) -> str:
    """Refuse an engine that the plugin would refuse at start."""
    if version not in SUPPORTED_ENGINES:
        raise ValueError(f"must be one of {', '.join(SUPPORTED_ENGINES)}")
    return version


EngineVersion = Annotated[str, AfterValidator(_supported)]
Port = Annotated[int, Field(ge=1024, le=65_535)]
Url = Annotated[str, Field(pattern=r"^https?://[^/\s?#@]+/?$"), AfterValidator(_with_a_port)]
Role = Literal["prefill", "decode"]

P_EXPIRY_GUARD_S = 5
"""A prefill node declines a handle this close to its end (vLLM pull_worker.py)."""


class Frozen(BaseModel):
    """Base of all contract models: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class KvTransferSpec(Frozen):
    """How KV moves between nodes; equal on every node of a deployment."""

    bidirectional: bool = True
    """False: vLLM's own connector, from P to D alone and unverified; the baseline of the
    published runs, for a benchmark's pass."""
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


class TransportSpec(Frozen):
    """What KV may travel over between machines."""

    provider: Literal["efa"] = "efa"
    """libfabric provider."""
    allow_tcp: bool = False
    """Whether a node may serve when the provider is not to be had."""
    efa_devices: int = Field(ge=1)
    """EFA devices a node must have before its engine starts."""


class ImageSpec(Frozen):
    """What a machine image must say of itself before a node boots from it."""

    format: Literal[1] = 1
    """Of the agreement between image and kit: paths, units, /etc/turnback/image.json."""
    engine_version: EngineVersion
    """Minor version of vLLM in the image."""


DRAIN_S = 900
"""How long requests of a node whose capacity ends may still run."""

OWN_ADDRESS = "node"
"""As NodeSpec.host: the node's own private address, which boot fills in (`at`)."""


class NodeSpec(Frozen):
    """Everything that starts one engine."""

    role: Role
    serving: ServingSpec
    kv: KvTransferSpec
    cpu: CpuSpec | None = None
    """Of a CPU engine; None: GPUs."""
    transport: TransportSpec | None = None
    """None: peers on this machine."""
    image: ImageSpec | None = None
    """None: nothing is checked."""
    generation: str = Field(default="", pattern=r"^[0-9a-f]*$")
    """Changes with anything in the spec; a running node's is compared with its parameter's."""
    host: str = "127.0.0.1"
    """Address of the API server and of the NIXL side channel; must be reachable by peers."""
    side_channel_port: Port
    drains_at: AwareDatetime | None = None
    """Of a Capacity Block: from then on it is sent nothing new, and ends at most DRAIN_S
    later. None: its capacity has no end."""

    def at(self, address: str) -> Self:
        """The spec of the node with this address."""
        return self.model_copy(update={"host": address})

    @model_validator(mode="after")
    def _each_rank_has_a_core(self) -> Self:
        ranks = self.serving.tensor_parallel_size
        if self.cpu is None:
            return self
        if len(self.cpu.cores) < ranks:
            raise ValueError(
                f"cpu.cores must name at least {ranks} cores, one for each of "
                f"serving.tensor_parallel_size ranks, not {len(self.cpu.cores)}"
            )
        return self


class NodeAddress(Frozen):
    """One engine as the router reaches it."""

    role: Role
    url: Url
    generation: str = ""
    """Of the deployment; left out, the engine's version counts. P and D must agree."""
    draining: bool = False
    """Takes no new turns; what it holds is still read."""


class _Listed(Frozen):
    url: Url
    generation: str = ""
    draining: bool = False


class NodesFile(Frozen):
    """A TOML file that lists the nodes; the router follows its changes."""

    prefill: tuple[_Listed, ...] = ()
    decode: tuple[_Listed, ...] = ()

    def nodes(self) -> list[NodeAddress]:
        """All nodes of the file."""
        both: tuple[tuple[Role, tuple[_Listed, ...]], ...] = (
            ("prefill", self.prefill),
            ("decode", self.decode),
        )
        return [
            NodeAddress(role=role, **item.model_dump()) for role, listed in both for item in listed
        ]


class RouterSpec(Frozen):
    """The router in front of the engines."""

    prefill_urls: tuple[Url, ...] = ()
    """Prefill nodes that are always there."""
    decode_urls: tuple[Url, ...] = ()
    """Decode nodes that are always there."""
    nodes_file: Path | None = None
    """TOML file with further nodes; changes are followed."""
    deployment: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9-]*$")
    """Whose running EC2 instances to serve with (tag `turnback:deployment`); empty: none.
    Routers of one deployment share a store's handles."""
    host: str = Field(default="127.0.0.1", min_length=1)
    port: Port
    tls_certificate: Path | None = None
    """PEM file with the certificate chain; with it the router speaks HTTPS."""
    tls_key: Path | None = None
    """PEM file with its key."""
    kv: KvTransferSpec
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Longest wait for a connection to an engine."""
    prefill_timeout_s: float = Field(default=600.0, gt=0)
    """Longest prefill leg."""
    silence_timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence of a decode leg: until its first byte, and between any two."""
    turn_timeout_s: float = Field(default=3600.0, gt=0)
    """Longest turn."""
    client_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for a client: to send its body, or to read what was written to it."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest client request."""
    max_running_turns: int = Field(default=4096, ge=1)
    """Turns at once."""
    max_waiting_turns: int = Field(default=1024, ge=0)
    """Turns that wait for one of them to end, or for a usable node."""
    queue_timeout_s: float = Field(default=10.0, ge=0)
    """Longest wait in either queue; then 429 or 503."""
    drain_s: float = Field(default=30.0, ge=0)
    """How long a stopping router lets running turns end."""
    health_interval_s: float = Field(default=2.0, gt=0)
    """Between two health checks of a node."""
    breaker_failures: int = Field(default=5, ge=1)
    """Failures in a row after which a node is left alone."""
    breaker_open_s: float = Field(default=10.0, gt=0)
    """For how long; then one request tries it."""
    pin_share: float = Field(default=0.5, gt=0, le=1)
    """Share of a D's KV cache that may be pinned for next turns; beyond it the oldest
    handles are given back."""
    store_url: str | None = Field(default=None, pattern=r"^(valkey|redis)s?://")
    """Valkey or Redis >= 6.2 for handles that several routers share; None: own memory."""
    store_timeout_s: float = Field(default=0.025, gt=0, le=0.025)
    """Longest wait for the store; a turn asks it twice."""
    canary_share: float = Field(default=0.001, ge=0, le=1)
    """Share of greedy warm turns that are run again cold and compared."""
    canary_max_differences: int = Field(default=3, ge=1)
    """So many differences among the last 100 comparisons switch reuse off."""
    api_keys_file: Path | None = None
    """JSON file of API keys; None: every client is served, its Authorization is its tenant."""
    engine_api_key_file: Path | None = None
    """File with the key that engines want; None: the client's Authorization goes to them."""
    explain: bool = False
    """One log line per turn: what was decided and why."""

    @model_validator(mode="after")
    def _some_nodes_are_named(self) -> Self:
        if not self.nodes_file and not self.deployment:
            for field in ("prefill_urls", "decode_urls"):
                if not getattr(self, field):
                    raise ValueError(
                        f"{field} must name at least one node, unless nodes_file or "
                        "deployment lists them"
                    )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        return self

    def listed_nodes(self) -> list[NodeAddress]:
        """The nodes given by address."""
        prefills = [NodeAddress(role="prefill", url=url) for url in self.prefill_urls]
        return [*prefills, *(NodeAddress(role="decode", url=url) for url in self.decode_urls)]
