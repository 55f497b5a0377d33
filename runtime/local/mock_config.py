"""How a mock engine behaves, and what it is told to do wrong."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from runtime.contract.node import Role


@dataclass(frozen=True)
class MockConfig:
    """How a mock engine behaves; times are what it sleeps.

    Attributes:
        ttl_s: how long D keeps the blocks of a handle.
        is_one_way: D returns no handle, as a stock engine without the flag.
        lease_s: how long P keeps the blocks of a P dict.
        num_blocks: size of the KV pool of each rank; a request that does not fit waits.
        data_parallel_size: ranks, each with books and an engine id of its own.
        version: what GET /version says.
        keep_requests: how many of the last requests to remember; None for all.
    """

    role: Role
    model: Path
    served_model_name: str
    port: int = 0
    host: str = "127.0.0.1"
    block_size_tokens: int = 32
    threshold_tokens: int = 64
    is_one_way: bool = False
    ttl_s: float = 480.0
    lease_s: float = 30.0
    num_blocks: int = 100_000
    data_parallel_size: int = 1
    version: str = "0.32.0"
    prefill_us_per_token: float = 20.0
    token_ms: float = 1.0
    keep_requests: int | None = None


@dataclass(frozen=True)
class Seen:
    """A request for tokens as it arrived."""

    headers: Mapping[str, str]
    body: dict[str, Any]
    path: str = "/v1/chat/completions"


@dataclass
class Faults:
    """What to do wrong; a test sets these, each counts down as it is used.

    Attributes:
        fail_next: statuses of the next replies.
        reset_next: how many connections to drop before any reply.
        garbage_next: how many requests to answer with HTTP 200 and nonsense.
        stall_next: how many requests never to answer.
        slow_next: seconds that the next requests wait before anything is sent.
        early_close_next: how many replies to end in their middle: headers and half of the
            body, or of the first event, then the connection closes.
        huge_event_next: how many streams get one event of 1 MB.
        die_after_chunks: drop the next stream after so many chunks; None is never.
        spoil_next: fields to put into the next kv_transfer_params returned; a whole
            replacement under the key `replace`.
        is_sick: GET /health gives 503 for as long as this is set.
    """

    fail_next: list[int] = field(default_factory=list)
    reset_next: int = 0
    garbage_next: int = 0
    stall_next: int = 0
    slow_next: list[float] = field(default_factory=list)
    early_close_next: int = 0
    huge_event_next: int = 0
    die_after_chunks: int | None = None
    spoil_next: list[dict[str, Any]] = field(default_factory=list)
    is_sick: bool = False

    def use(self, name: str) -> bool:
        """Count one of the `*_next` counts down; False when none is left."""
        left: int = getattr(self, name)
        if left:
            setattr(self, name, left - 1)
        return left > 0

    def update(self, changes: Any) -> str | None:
        """Set fields from JSON; says what is wrong with it, or None when all is set."""
        if not isinstance(changes, Mapping):
            return "the faults must be a JSON object"
        names = [one.name for one in fields(self)]
        if unknown := sorted(set(changes) - set(names)):
            return f"unknown faults {', '.join(unknown)}; allowed: {', '.join(names)}"
        try:
            checked = TypeAdapter(Faults).validate_python(asdict(self) | dict(changes))
        except ValidationError as error:
            return str(error)
        for name in changes:
            setattr(self, name, getattr(checked, name))
        return None
