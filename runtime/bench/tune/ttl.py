"""How long D should keep a turn's blocks. Pure."""

import math
from dataclasses import dataclass
from statistics import fmean

from runtime.bench.tune.gaps import Gaps
from runtime.contract.node import P_EXPIRY_GUARD_S


@dataclass(frozen=True)
class Budget:
    """What D may pin, and what comes to it.

    Attributes:
        capacity_tokens: KV cache of all D together.
        pin_share: of it for handles.
        turns_per_s: turns that finish, on all D together.
        tokens_per_turn: that the handle of each holds, at least one.
        returning_share: of them is followed by another turn; the others pin to the end.
    """

    capacity_tokens: int
    pin_share: float
    turns_per_s: float
    tokens_per_turn: tuple[int, ...]
    returning_share: float

    @property
    def tokens(self) -> float:
        """Most that may be pinned."""
        return self.capacity_tokens * self.pin_share

    def pinned_tokens(self, gaps: Gaps, ttl_s: float) -> float:
        """Mean tokens pinned.

        Source: Little's law: those present are those that come in a second times the
        seconds that each stays.
        """
        return self._handles(gaps, ttl_s) * fmean(self.tokens_per_turn)

    def peak_tokens(self, gaps: Gaps, ttl_s: float) -> float:
        """What is pinned at most in 95 % of moments.

        Source: M/G/infinity: with Poisson arrivals the handles present are Poisson
        distributed, so the variance of their tokens is their number times the mean square.
        """
        squares = fmean(tokens**2 for tokens in self.tokens_per_turn)
        variance = self._handles(gaps, ttl_s) * squares
        return self.pinned_tokens(gaps, ttl_s) + 1.645 * math.sqrt(variance)

    def _handles(self, gaps: Gaps, ttl_s: float) -> float:
        returns_s = self.returning_share * gaps.mean_pinned_s(ttl_s)
        return self.turns_per_s * (returns_s + (1 - self.returning_share) * ttl_s)


@dataclass(frozen=True)
class Ttl:
    """What the gaps say about `decoder_kv_blocks_ttl_s`.

    Attributes:
        seconds: the setting; None: keep what is set.
        kept_share: of returns that find their handle with it; None without a setting.
        wanted_s: the setting that would keep the wanted share.
        ci95_s: 95 % interval of `wanted_s`; its upper end is None where it is not bounded.
        pinned_tokens: mean with `seconds`; None where the budget is not known.
        peak_tokens: not exceeded in 95 % of moments.
        is_bounded: the budget does not hold `wanted_s`.
        why: the choice in a sentence.
    """

    seconds: int | None
    kept_share: float | None
    wanted_s: int | None
    ci95_s: tuple[int, int | None] | None
    pinned_tokens: float | None
    peak_tokens: float | None
    is_bounded: bool
    why: str


def no_ttl(why: str) -> Ttl:
    """There is nothing to choose it by."""
    return Ttl(None, None, None, None, None, None, is_bounded=False, why=why)


def find_ttl(gaps: Gaps, keep_share: float, margin_s: int, budget: Budget | None) -> Ttl:
    """The shortest TTL that keeps a share of returns, or the longest that the budget holds.

    Args:
        gaps: between the turns of a conversation.
        keep_share: of returns, above 0 and below 1.
        margin_s: the router uses no handle so long before its end.
        budget: None: not known, and not kept.
    """
    if gaps.n is not None and gaps.n < gaps.least_n(keep_share):
        return no_ttl(
            f"{gaps.n} gaps ({gaps.source}); to keep {keep_share:.0%} of returns takes at least "
            f"{gaps.least_n(keep_share)}"
        )
    least_s = margin_s + P_EXPIRY_GUARD_S

    def ttl_for(gap_s: float) -> int:
        return max(least_s, math.ceil(gap_s + margin_s))

    wanted_s = ttl_for(gaps.quantile_s(keep_share))
    ends = gaps.quantile_ci95_s(keep_share)
    ci95_s = ends and (ttl_for(ends[0]), None if ends[1] is None else ttl_for(ends[1]))
    seconds = wanted_s if budget is None else _longest_held(gaps, budget, least_s, wanted_s)
    if budget is not None and budget.pinned_tokens(gaps, seconds) > budget.tokens:
        return no_ttl(
            f"even a TTL of {seconds} s, the shortest allowed, pins "
            f"{budget.pinned_tokens(gaps, seconds):.0f} tokens on average; {budget.tokens:.0f} may "
            "be pinned: add decode nodes, or return less"
        )
    kept = gaps.share_within(seconds - margin_s)
    pinned = None if budget is None else budget.pinned_tokens(gaps, seconds)
    peak = None if budget is None else budget.peak_tokens(gaps, seconds)
    why = f"keeps {kept:.1%} of returns ({gaps.source})"
    if seconds < wanted_s:
        why += f"; {wanted_s} s for {keep_share:.0%} would pin more than the budget"
    return Ttl(seconds, kept, wanted_s, ci95_s, pinned, peak, seconds < wanted_s, why)


def _longest_held(gaps: Gaps, budget: Budget, least_s: int, wanted_s: int) -> int:
    """The longest TTL up to the wanted one whose pins the budget holds; `least_s` if none does."""
    low_s, high_s = least_s, wanted_s
    while low_s < high_s:
        middle_s = (low_s + high_s + 1) // 2
        if budget.pinned_tokens(gaps, middle_s) <= budget.tokens:
            low_s = middle_s
        else:
            high_s = middle_s - 1
    return low_s
