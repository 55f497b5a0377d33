"""A request with kv_transfer_params: whether it may read KV, and what became of it."""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.engine_api import COLD_PREFILL, Receipt, known_params, transfer_params_problem
from runtime.verification.record import HashScheme, Sequenced, Verdict, clip, judge

_OFFER = ("remote_engine_id", "remote_request_id", "remote_block_ids")
"""Fields of a dict that offers blocks; other routers send them as null when cold."""

_NOTHING = Verdict(0, 0, "none_offered")


@dataclass(slots=True)
class Leg:
    """One request with kv_transfer_params, from its arrival to its end.

    Attributes:
        is_prefill: it computes a prompt for a decode node, and may bring a handle.
        verdict: what verification said about the offered dict.
        is_owed: the owner of the offered blocks waits to be read or told.
        is_allocated: it has been scheduled, so that the owner was read or told.
        local_tokens: leading tokens that the local prefix cache held.
        pulled_tokens: tokens that were read from the owner.
        reason: one of runtime.engine_api.REASONS.
    """

    is_prefill: bool
    verdict: Verdict = _NOTHING
    is_owed: bool = False
    is_allocated: bool = False
    local_tokens: int = 0
    pulled_tokens: int = 0
    reason: str = field(init=False)
    arrival_unix_s: float = field(default_factory=time.time)
    arrived_s: float = field(default_factory=time.perf_counter)
    pull_started_s: float | None = None
    pull_ended_s: float | None = None
    scheduled_s: float | None = None

    def __post_init__(self) -> None:
        self.reason = self.verdict.refusal or ""

    def refuse(self, reason: str) -> None:
        """Decide against the pull for a reason other than the verdict's."""
        if self.verdict.refusal is None:
            self.reason = reason

    def match(self, local_tokens: int, threshold_tokens: int) -> int:
        """Tokens to pull beyond the local cache; asked again while the request waits.

        Args:
            local_tokens: leading tokens that the local prefix cache holds.
            threshold_tokens: spares P a smaller read; D reads whatever P has computed.
        """
        self.local_tokens = local_tokens
        if self.verdict.refusal is not None:
            return 0
        count = self.verdict.verified_tokens - local_tokens
        if count >= (max(1, threshold_tokens) if self.is_prefill else 1):
            self.reason = "pulled"
            return count
        self.reason = "below_threshold" if count > 0 else "local_hit"
        return 0

    def allocated(self, external_tokens: int) -> None:
        """The scheduler gave it blocks, for a pull or for computation."""
        now_s = time.perf_counter()
        if not self.is_allocated:
            self.is_allocated = True
            self.pulled_tokens = external_tokens
            if not external_tokens and self.reason == "pulled":
                self.reason = "local_hit"  # the cache held part of a block more
        if external_tokens:
            self.pull_started_s = now_s
        elif self.scheduled_s is None:
            self.scheduled_s = now_s

    def receipt(self) -> Receipt:
        """What happened, once the request has finished."""
        return Receipt(
            offered_tokens=self.verdict.offered_tokens,
            verified_tokens=self.verdict.verified_tokens,
            local_tokens=self.local_tokens,
            pulled_tokens=self.pulled_tokens,
            reason=self.reason,
            arrival_unix_s=round(self.arrival_unix_s, 3),
            pull_started_ms=self._ms(self.pull_started_s),
            pull_ended_ms=self._ms(self.pull_ended_s),
            scheduled_ms=self._ms(self.scheduled_s),
            finished_ms=self._ms(time.perf_counter()),
        )

    def _ms(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else round((moment_s - self.arrived_s) * 1000, 3)


class SpentDicts:
    """Dicts that came to this engine within one TTL: their blocks may be anyone's now.

    Args:
        keep_s: how long the owner could have kept the blocks.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def take(self, engine_id: str, request_id: str) -> bool:
        """Use up a dict; False when it was used up before."""
        now_s = time.perf_counter()
        while self._until and next(iter(self._until.values())) <= now_s:
            self._until.popitem(last=False)
        key = (engine_id, request_id)
        if key in self._until:
            return False
        self._until[key] = now_s + self._keep_s
        return True


@dataclass(frozen=True, slots=True)
class Gate:
    """Admits requests to one engine: at most what is proven may be read.

    Attributes:
        engine_id: of this engine.
        scheme: how it hashes blocks.
        windows_tokens: attention window of each KV-cache group, 0 for full attention.
        tp_size: tensor-parallel ranks of this engine.
        spent: dicts that were used before.
    """

    engine_id: str
    scheme: HashScheme
    windows_tokens: Sequence[int]
    tp_size: int
    spent: SpentDicts

    def admit(self, params: dict[str, Any], mine: Sequenced) -> Leg:
        """Check a request's kv_transfer_params and cut them to what may be used.

        A dict that cannot even be used to tell its owner is emptied.

        Args:
            params: as they arrived; changed in place.
            mine: the request's prompt.
        """
        is_prefill = params.get("do_remote_decode") is True and not params.get("do_remote_prefill")
        offers = any(params.get(name) is not None for name in _OFFER)
        if is_prefill and not offers:
            params.clear()
            params.update(COLD_PREFILL)
            return Leg(is_prefill=True)
        problem = transfer_params_problem(params) or self._peer_problem(params)
        if problem is not None:
            verdict = Verdict(0, 0, "malformed", problem)
        elif not self.spent.take(params["remote_engine_id"], params["remote_request_id"]):
            verdict = Verdict(params["remote_num_tokens"], 0, "spent")
        else:
            verdict = judge(params, mine, self.scheme, self.windows_tokens)
            known = known_params(params)
            if verdict.refusal is None:
                clip(known, verdict.verified_tokens, self.scheme.block_size_tokens)
            params.clear()
            params.update(known)
            return Leg(is_prefill, verdict, is_owed=True)
        params.clear()
        params.update(COLD_PREFILL if is_prefill else {})
        return Leg(is_prefill, verdict)

    def _peer_problem(self, params: Mapping[str, Any]) -> str | None:
        if params["remote_engine_id"] == self.engine_id:
            return "these are this engine's own blocks"
        small, large = sorted((params["tp_size"], self.tp_size))
        if large % small:
            return f"tp_size {params['tp_size']} does not fit this engine's {self.tp_size}"
        if params["dcp_size"] != 1 or params["pp_size"] != 1:
            return (
                f"dcp_size {params['dcp_size']}, pp_size {params['pp_size']}: "
                "context and pipeline parallelism are not supported"
            )
        return None
