"""Names shared with the engine: handle, record and receipt schema, metrics.

A *handle* is the `kv_transfer_params` a decode node returns; a *P dict* is what a
prefill node returns. Both have the same fields and differ in the two flags.
Source: vLLM 0.32 and 0.33, v1/nixl/pull_scheduler.py, `request_finished`.
"""

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from operator import countOf
from typing import Any, TypeGuard

KV_PARAMS = "kv_transfer_params"

# Keys that this kit adds to kv_transfer_params.
PIN = "turnback_pin"
RECORD = "turnback_record"
RECEIPT = "turnback_receipt"
RELEASE = "turnback_release"

RELEASE_PATH = "/v1/turnback/release"
"""POST a handle to the engine that owns its blocks, and it frees them."""

MAX_BLOCKS = 131_072
"""Upper bound on block ids in one dict: 4 Mi tokens at 32 a block."""

COLD_PREFILL: Mapping[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a prefill leg carries when no handle is attached."""

_REQUIRED_TEXT = ("remote_engine_id", "remote_request_id", "remote_host")
_REQUIRED_SIZES = ("tp_size", "dcp_size", "pp_size")
_PASSED_ON = (
    *("do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_num_tokens"),
    *(*_REQUIRED_TEXT, "remote_port", *_REQUIRED_SIZES),
    *("remote_blocks_expiry_time", "remote_registration_generation"),
)
_CACHED_TOKENS = "remote_prefill_cached_tokens"
_MAX_BLOCK_ID = 2**31 - 1
"""A greater one ends a stock engine's worker."""
_MAX_RANKS = 1024
_MAX_TEXT = 512


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a node did with an offered dict, and when.

    Counts are tokens; the times after arrival are milliseconds since it, and None for
    what did not happen.

    Attributes:
        offered_tokens: tokens that the dict said it holds.
        verified_tokens: leading tokens proven equal on both sides.
        local_tokens: leading tokens that the node's own prefix cache held.
        pulled_tokens: tokens read from the other node; they lie at positions
            local_tokens .. local_tokens + pulled_tokens - 1.
        reason: one of REASONS.
        arrival_unix_s: when the engine's scheduler got the request, by its own clock.
        pull_started_ms: the read was handed to the worker.
        pull_ended_ms: the worker said that it was done.
        scheduled_ms: the request was first scheduled for computation.
        finished_ms: its last token was there.
    """

    offered_tokens: int
    verified_tokens: int
    local_tokens: int
    pulled_tokens: int
    reason: str
    arrival_unix_s: float = 0.0
    pull_started_ms: float | None = None
    pull_ended_ms: float | None = None
    scheduled_ms: float | None = None
    finished_ms: float | None = None

    def to_dict(self) -> dict[str, int | float | str | None]:
        """The receipt as plain JSON."""
        return asdict(self)

    def stages_ms(self) -> dict[str, float | None]:
        """Milliseconds in the engine: `queue`, `pull` (the read and the wait after it), `compute`.

        The three add up to the time from arrival to end; None for what is not known.
        """
        started, scheduled, end = self.pull_started_ms, self.scheduled_ms, self.finished_ms
        pull = None if started is None or scheduled is None else scheduled - started
        compute = None if scheduled is None or end is None else end - scheduled
        return {
            "queue": scheduled if started is None else started,
            "pull": pull,
            "compute": compute,
        }

    @classmethod
    def from_dict(cls, raw: Any) -> "Receipt | None":
        """Read a receipt out of an engine reply; None when it has another shape."""
        if not isinstance(raw, Mapping) or set(raw) != set(cls.__slots__):
            return None
        if not all(is_count(raw[name]) for name in cls.__slots__[:4]):
            return None
        if not isinstance(raw["reason"], str) or raw["reason"] not in REASONS:
            return None
        times = [raw[name] for name in cls.__slots__[6:] if raw[name] is not None]
        if not all(_is_moment(value) for value in [raw["arrival_unix_s"], *times]):
            return None
        return cls(**raw)


REASONS = {
    "pulled": "the verified prefix was read from the other node",
    "local_hit": "the node's own prefix cache held the verified prefix",
    "below_threshold": "the verified prefix beyond the local cache is below the threshold",
    "none_offered": "the request brought no handle and no P dict",
    "no_match": "the first block already differs",
    "no_record": "there is no verification record (a stock peer)",
    "bad_record": "the record has another version or a broken shape",
    "other_hash": "hash algorithm or seed differ between the two nodes",
    "other_block_size": "block sizes differ between the two nodes",
    "several_groups": "KV of sliding windows is read whole or not at all, and not all is verified",
    "recompute_asked": "the request must compute its whole prompt (prompt logprobs)",
    "spent": "this node has been given the same dict before",
    "malformed": "the dict's fields do not fit each other",
}
"""Reason words of a receipt and what they mean."""


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value out of JSON is an integer >= 0; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_moment(value: Any) -> bool:
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    return is_number and abs(value) < 1e15


def _block_ids_problem(groups: Any) -> str | None:
    if not isinstance(groups, list | tuple) or not groups:
        return "remote_block_ids must be a non-empty list of lists"
    if not all(isinstance(group, list | tuple) for group in groups):
        return "remote_block_ids must hold one list per KV-cache group"
    if sum(len(group) for group in groups) > MAX_BLOCKS:
        return f"remote_block_ids holds more than {MAX_BLOCKS} ids"
    filled = [group for group in groups if group]
    if not filled:
        return "remote_block_ids holds no block"
    if not all(map(_are_block_ids, filled)):
        return f"remote_block_ids must hold integers in 0..{_MAX_BLOCK_ID}"
    return None


def _are_block_ids(group: Sequence[Any]) -> bool:
    """Whether all are integers in range; a handle of 100,000 tokens has thousands of them."""
    if countOf(map(type, group), int) != len(group):
        return False
    try:
        values = array("I", group)  # quicker than min() and max(): 0..2**32 - 1
    except OverflowError:
        return False
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()[3::4].isascii()  # of each the highest byte: below 2**31


def block_count_problem(
    params: Mapping[str, Any], block_size_tokens: int, windows_tokens: Sequence[int] = (0,)
) -> str | None:
    """Say why a dict's block ids do not fit its token count, or None when they do.

    Args:
        params: a dict that `transfer_params_problem` has passed.
        block_size_tokens: tokens per KV block.
        windows_tokens: attention window of each KV-cache group, 0 for full attention.

    Source:
        A group hands over its window's blocks and one more (vLLM 0.32 and 0.33,
        nixl/base_scheduler.py, `blocks_per_sw`).
    """
    tokens, groups = params["remote_num_tokens"], params["remote_block_ids"]
    if len(groups) != len(windows_tokens):
        return f"remote_block_ids has {len(groups)} groups, this model {len(windows_tokens)}"
    whole = -(-tokens // block_size_tokens)
    for group, window in zip(groups, windows_tokens, strict=True):
        expected = min(whole, -(-window // block_size_tokens) + 1) if window else whole
        if len(group) != expected:
            return (
                f"{tokens} tokens need {expected} blocks of {block_size_tokens}, not {len(group)}"
            )
    return None


def transfer_params_problem(params: Any, *, block_size_tokens: int | None = None) -> str | None:
    """Say what is wrong with a handle or P dict, or None when it can be sent on.

    Stock engines end their process on several of these shapes, so nothing uses a
    dict before this has passed.

    Args:
        params: the `kv_transfer_params` an engine returned.
        block_size_tokens: tokens per KV block, to check the block count of a dict with
            one KV-cache group; None skips it.
    """
    if not isinstance(params, Mapping):
        return "kv_transfer_params must be an object"
    flags = [params.get("do_remote_prefill"), params.get("do_remote_decode")]
    if not any(flags[at] is True and flags[1 - at] is False for at in (0, 1)):
        return "exactly one of do_remote_prefill and do_remote_decode must be true"
    problem = (
        _address_problem(params)
        or _block_ids_problem(params.get("remote_block_ids"))
        or _numbers_problem(params)
    )
    if problem is None and block_size_tokens is not None and len(params["remote_block_ids"]) == 1:
        return block_count_problem(params, block_size_tokens)
    return problem


def _address_problem(params: Mapping[str, Any]) -> str | None:
    for name in _REQUIRED_TEXT:
        value = params.get(name)
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _MAX_TEXT:
            return f"{name} must be a printable string of 1..{_MAX_TEXT} characters"
    port = params.get("remote_port")
    if not is_count(port) or not 1 <= port <= 65_535:
        return "remote_port must be an integer in 1..65535"
    for name in _REQUIRED_SIZES:
        if not is_count(params.get(name)) or not 1 <= params[name] <= _MAX_RANKS:
            return f"{name} must be an integer in 1..{_MAX_RANKS}"
    return None


def known_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an engine reads, less the record; all others are dropped.

    They travel to the engine's workers with each request: a field that nothing has looked
    at could end them.

    Args:
        params: a dict that `transfer_params_problem` has passed.
    """
    kept = {name: params[name] for name in _PASSED_ON if name in params}
    if is_count(params.get(_CACHED_TOKENS)):
        kept[_CACHED_TOKENS] = params[_CACHED_TOKENS]
    if params.get(PIN) is False:
        kept[PIN] = False
    return kept


def _numbers_problem(params: Mapping[str, Any]) -> str | None:
    tokens = params.get("remote_num_tokens")
    if not is_count(tokens) or tokens < 1:
        return "remote_num_tokens must be an integer >= 1"
    expiry = params.get("remote_blocks_expiry_time")
    # Without it P could not tell that D's blocks are anyone's by now.
    is_handle = params["do_remote_decode"]
    if not _is_moment(expiry) and (is_handle or expiry is not None):
        return f"remote_blocks_expiry_time must be a finite number{'' if is_handle else ' or null'}"
    if not is_count(params.get("remote_registration_generation", 0)):
        return "remote_registration_generation must be an integer >= 0"
    return None


# Counters of vLLM's /metrics that the kit reads.
NIXL_READS = "vllm:nixl_xfer_time_seconds_count"
NIXL_SECONDS = "vllm:nixl_xfer_time_seconds_sum"
NIXL_BYTES = "vllm:nixl_bytes_transferred_sum"
NIXL_FAILED = "vllm:nixl_num_failed_transfers_total"
NIXL_AFTER_EXPIRY = "vllm:nixl_num_notifications_after_expiry_total"
"""On the owner of the blocks: a reader finished after the blocks had been freed."""
NIXL_EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
"""On the owner: its TTL or lease ended unread; on P also: it declined an expired handle."""
EXTERNAL_HIT_TOKENS = "vllm:external_prefix_cache_hits_total"
"""On a prefill node: tokens pulled from decode nodes."""
PREEMPTIONS = "vllm:num_preemptions_total"
KV_USAGE = "vllm:kv_cache_usage_perc"
"""From 0 to 1."""
REQUESTS_RUNNING = "vllm:num_requests_running"
REQUESTS_WAITING = "vllm:num_requests_waiting"
_CACHE_CONFIG = "vllm:cache_config_info"

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.ASCII)


def samples(text: str) -> Iterator[tuple[str, float]]:
    """Name and value of each sample of a Prometheus text page that is a finite number."""
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            try:
                value = float(match[2])
            except ValueError:
                continue
            if isfinite(value):
                yield match[1], value


def parse_metrics(text: str, names: Iterable[str]) -> dict[str, float]:
    """Sum the named samples of a Prometheus text page over their labels.

    Args:
        text: body of GET /metrics.
        names: full sample names.

    Returns:
        One value per name; 0.0 for a name that the page does not have, since vLLM
        shows most NIXL series only after the first transfer.
    """
    totals = dict.fromkeys(names, 0.0)
    for name, value in samples(text):
        if name in totals:
            totals[name] += value
    return totals


def mean_metric(text: str, name: str) -> float:
    """Mean of a sample over its labels: a share that each data-parallel rank has; 0.0 for none."""
    found = [value for shown, value in samples(text) if shown == name]
    return sum(found) / len(found) if found else 0.0


def kv_capacity_tokens(text: str) -> float:
    """Tokens that an engine's KV blocks hold; 0.0 where the page does not say.

    Args:
        text: body of GET /metrics. Every data-parallel rank shows the sum over all ranks.
    """
    lines = (line for line in text.splitlines() if line.startswith(f"{_CACHE_CONFIG}{{"))
    for line in lines:
        blocks, size = (
            re.search(rf'[{{,]{name}="(\d+)"', line) for name in ("num_gpu_blocks", "block_size")
        )
        if blocks and size:
            return float(int(blocks[1]) * int(size[1]))
    return 0.0
