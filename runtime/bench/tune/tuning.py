"""A report and think times -> the settings, their effect, and what they rest on. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from runtime.bench.stats import t_quantile_975
from runtime.bench.tune.gaps import Gaps, observed
from runtime.bench.tune.observations import Observations
from runtime.bench.tune.threshold import Threshold, find_threshold
from runtime.bench.tune.ttl import Budget, Ttl, find_ttl, no_ttl
from runtime.bench.turn import ARMS

TTL_KEY, THRESHOLD_KEY = "decoder_kv_blocks_ttl_s", "kv_recompute_threshold_tokens"
"""Of [kv] in deployment.toml."""


@dataclass(frozen=True)
class Wishes:
    """What the user gives beside the report; None: the report's own.

    Attributes:
        gaps: between turns.
        keep_share: of returns that shall find their handle.
        kv_capacity_tokens: of all D together.
        pin_share: of it for handles.
        turns_per_s: that finish, on all D together.
    """

    gaps: Gaps | None = None
    keep_share: float = 0.95
    kv_capacity_tokens: int | None = None
    pin_share: float = 0.5
    turns_per_s: float | None = None


@dataclass(frozen=True)
class Effect:
    """What settings give, by the fit: an estimate, not a measurement.

    Attributes:
        ttl_s, threshold_tokens: the settings.
        kept_share: of returns that find their handle; None: no gaps are known, and the
            other figures are of returns in time.
        warm_share: of returns that pull.
        saved_ms: TTFT per return, mean; negative: it costs. None without a fit.
        ci95_ms: its 95 % interval.
    """

    ttl_s: int
    threshold_tokens: int
    kept_share: float | None
    warm_share: float | None
    saved_ms: float | None
    ci95_ms: tuple[float, float] | None


@dataclass(frozen=True)
class Tuning:
    """All of it.

    Attributes:
        seen: the pass it rests on.
        gaps: between turns; None: not known.
        budget: what D may pin; None: not known.
        now: effect of the settings the pass ran with.
        then: effect of the suggested ones; where one is not suggested, the pass's stays.
        warnings: why figures must be taken with care.
    """

    seen: Observations
    threshold: Threshold
    ttl: Ttl
    gaps: Gaps | None
    budget: Budget | None
    now: Effect
    then: Effect
    warnings: tuple[str, ...]

    @property
    def settings(self) -> dict[str, int]:
        """Keys of [kv] with their suggested values; those with none are left out."""
        both = {TTL_KEY: self.ttl.seconds, THRESHOLD_KEY: self.threshold.tokens}
        return {key: value for key, value in both.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        threshold, ttl, fitted = asdict(self.threshold), asdict(self.ttl), self.threshold.fit
        threshold["fit"] = fitted and {
            "pull_ms": {"fixed": fitted.theta[0], "per_token": fitted.theta[1]},
            "prefill_ms": {
                "fixed": fitted.theta[2],
                "per_token": fitted.theta[3],
                "per_token_and_token_before": fitted.theta[4],
            },
            "pulls": fitted.pulls,
            "prefills": fitted.prefills,
            "conversations": fitted.conversations,
            "outliers": fitted.outliers,
            "pulled_tokens": list(fitted.pulled_range),
        }
        budget = self.budget and {
            "capacity_tokens": self.budget.capacity_tokens,
            "pin_share": self.budget.pin_share,
            "tokens": self.budget.tokens,
            "turns_per_s": self.budget.turns_per_s,
            "tokens_per_turn": float(np.mean(self.budget.tokens_per_turn)),
            "returning_share": self.budget.returning_share,
        }
        return {
            "pass": self.seen.name,
            "settings": {f"kv.{key}": value for key, value in self.settings.items()},
            "threshold": threshold,
            "ttl": ttl,
            "gaps": self.gaps and {"source": self.gaps.source, "n": self.gaps.n},
            "budget": budget,
            "effect": {"now": asdict(self.now), "then": asdict(self.then)},
            "warnings": list(self.warnings),
        }


def tune(seen: Observations, wishes: Wishes) -> Tuning:
    """Find both settings.

    Args:
        seen: the pass to rest on.
        wishes: what the user gives.
    """
    gaps, warnings = _gaps(seen, wishes)
    budget = _budget(seen, wishes)
    if gaps is None:
        ttl = no_ttl(
            "no think times: the pass has none of its own; give --think-times or --think-mean-s"
        )
    else:
        ttl = find_ttl(gaps, wishes.keep_share, seen.kv.handle_deadline_margin_s, budget)
        warnings += _budget_warnings(seen, gaps, ttl, budget, wishes)
    threshold = find_threshold(seen)
    ran_with = seen.kv.decoder_kv_blocks_ttl_s, seen.kv.kv_recompute_threshold_tokens
    then = ttl.seconds or ran_with[0], threshold.tokens or ran_with[1]
    return Tuning(
        seen,
        threshold,
        ttl,
        gaps,
        budget,
        _effect(seen, threshold, gaps, *ran_with),
        _effect(seen, threshold, gaps, *then),
        (*_pass_warnings(seen), *warnings),
    )


def _gaps(seen: Observations, wishes: Wishes) -> tuple[Gaps | None, list[str]]:
    if wishes.gaps is not None:
        return wishes.gaps, []
    own_s = seen.gaps_s()
    if not own_s:
        return None, []
    scaled = "" if seen.think_scale == 1 else f", played at {seen.think_scale:g} times their length"
    return observed(own_s, f"{len(own_s)} gaps of this pass{scaled}"), [
        "the gaps are those of the benchmark's workload; yours may be others: --think-times"
    ]


def _budget(seen: Observations, wishes: Wishes) -> Budget | None:
    capacity = wishes.kv_capacity_tokens or seen.kv_capacity_tokens
    per_s = wishes.turns_per_s or seen.finished_per_s()
    tokens, returning = seen.pinned_tokens(), seen.returning_share()
    if capacity is None or per_s is None or not tokens or returning is None:
        return None
    return Budget(capacity, wishes.pin_share, per_s, tuple(tokens), returning)


def _budget_warnings(
    seen: Observations, gaps: Gaps, ttl: Ttl, budget: Budget | None, wishes: Wishes
) -> list[str]:
    if budget is None:
        return [
            "the TTL was not held against D's KV cache: its size or the rate of turns is not "
            "known: --kv-capacity-tokens (vLLM logs it as GPU KV cache size), --turns-per-s"
        ]
    told = []
    if wishes.turns_per_s is None:
        told.append(
            f"{budget.turns_per_s:.3g} turns per second are the benchmark's; "
            "give yours: --turns-per-s"
        )
    given_back = (
        f"{budget.tokens:.0f} may be: the router then gives the oldest handles back before their "
        "time, and fewer returns are kept than is said here"
    )
    ran_s = seen.kv.decoder_kv_blocks_ttl_s
    if (pinned := budget.pinned_tokens(gaps, ran_s)) > budget.tokens:
        told.append(f"a TTL of {ran_s} s would pin {pinned:.0f} tokens on average, {given_back}")
    if ttl.peak_tokens is not None and ttl.peak_tokens > budget.tokens:
        told.append(f"at peaks {ttl.peak_tokens:.0f} tokens would be pinned, {given_back}")
    return told


def _pass_warnings(seen: Observations) -> list[str]:
    told = []
    if seen.is_mock:
        told.append("MOCK ENGINE: these times say nothing about real serving")
    if seen.stopped_by is not None:
        told.append(f"PARTIAL REPORT: stopped by {seen.stopped_by}")
    arms = {row.arm for row in seen.rows}
    told += [f"the pass has no {arm} turn" for arm in ARMS if arm not in arms]
    return told


def _effect(
    seen: Observations, threshold: Threshold, gaps: Gaps | None, ttl_s: int, tokens: int
) -> Effect:
    rows = seen.warmable
    pulled = np.array([row.pulled_tokens or 0 for row in rows], float)
    counted = (pulled >= tokens).astype(float)
    lifetime_s = ttl_s - seen.kv.handle_deadline_margin_s
    kept = None if gaps is None else gaps.share_within(lifetime_s)
    share = 1.0 if kept is None else kept
    warm = None if not rows else share * float(counted.mean())
    if threshold.fit is None or not rows:
        return Effect(ttl_s, tokens, kept, warm, None, None)
    local = np.array([row.local_tokens or 0 for row in rows], float)
    mean, error = threshold.fit.mean_saved_ms(pulled, local, counted)
    share_error = 0.0 if gaps is None else gaps.share_error(share)
    half = t_quantile_975(threshold.fit.degrees) * float(
        np.hypot(share * error, mean * share_error)
    )
    saved = share * mean
    return Effect(ttl_s, tokens, kept, warm, saved, (saved - half, saved + half))
