"""What the servers' metrics say about a pass. Pure; runtime/bench/scrape.py reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.bench.folder import Sample
from runtime.bench.scrape import CAPACITY, COUNTERS, PINNED, difference

MOST_ENTRIES = 500
"""Of a timeline; beyond it readings are left out evenly."""

ENGINE_ROLES = ("prefill", "decode")
_NOW = ("kv_usage", "running", "waiting")


def engine_counters(samples: Sequence[Sample]) -> dict[str, dict[str, float] | None] | None:
    """What the engines counted over the pass, summed over the servers of a role.

    From the last reading before the first measured turn, or the first there is, to the
    last one. None for a role of which a server was read less than twice or began to
    count anew: then nobody knows.
    """
    found: dict[str, dict[str, float] | None] = {}
    for role in ENGINE_ROLES:
        servers = [_over_pass(own) for own in _by_url(samples, role).values()]
        if servers:
            known = [counted for counted in servers if counted is not None]
            is_whole = len(known) == len(servers)
            found[role] = (
                {name: sum(each[name] for each in known) for name in COUNTERS} if is_whole else None
            )
    return found or None


def kv_capacity_tokens(samples: Sequence[Sample], role: str) -> int | None:
    """Tokens that the KV caches of a role's servers hold together; None where one tells none."""
    largest = [
        max((one.values.get(CAPACITY, 0.0) for one in own), default=0.0)
        for own in _by_url(samples, role).values()
    ]
    return int(sum(largest)) if largest and min(largest) > 0 else None


def timeline(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """KV usage and load of each server over time, and the share of D's KV that is pinned."""
    answered = sorted((one for one in samples if one.values), key=lambda one: one.at_s)
    capacity = kv_capacity_tokens(answered, "decode") or 0
    return [
        {
            "at_s": one.at_s,
            "role": one.role,
            "url": one.url,
            **{name: one.values.get(name) for name in _NOW},
            "pinned_share": _share(one.values.get(PINNED), capacity),
        }
        for one in _thinned(answered)
    ]


def reading_problems(samples: Sequence[Sample]) -> list[str]:
    """Servers that did not always answer, or counted anew."""
    lines = []
    for role in (*ENGINE_ROLES, "router"):
        for url, own in _by_url(samples, role).items():
            if missed := sum(not one.values for one in own):
                lines.append(f"{role} {url}: {missed} of {len(own)} readings were not answered")
            if role != "router" and _over_pass(own) is None:
                lines.append(f"{role} {url}: its counters do not cover the pass")
    return lines


def _by_url(samples: Sequence[Sample], role: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for one in sorted(samples, key=lambda one: one.at_s):
        if one.role == role:
            found.setdefault(one.url, []).append(one)
    return found


def _over_pass(own: Sequence[Sample]) -> Mapping[str, float] | None:
    read = [one for one in own if one.values.keys() >= COUNTERS.keys()]
    if len(read) < 2:
        return None
    before = [one for one in read[:-1] if one.at_s <= 0]
    first = before[-1] if before else read[0]
    counted = difference(first.values, read[-1].values)
    return None if counted is None or min(counted.values()) < 0 else counted


def _share(pinned_tokens: float | None, capacity_tokens: float) -> float | None:
    if pinned_tokens is None or capacity_tokens <= 0:
        return None
    return pinned_tokens / capacity_tokens


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Whole rounds of readings are left out, so that every server keeps as many moments."""
    servers = {(one.role, one.url) for one in samples}
    if len(samples) <= MOST_ENTRIES:
        return samples
    each = max(1, MOST_ENTRIES // max(1, len(servers)))
    kept = []
    for server in servers:
        own = [one for one in samples if (one.role, one.url) == server]
        step = max(1, -(-len(own) // each))
        kept += own[::step]
    return sorted(kept, key=lambda one: (one.at_s, one.role, one.url))[:MOST_ENTRIES]
