"""Medians, spreads, ratios and bars. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Run = Mapping[str, float]
"""Figures of one repeat of one case at one target."""

FIGURES = ("req_s", "p50_ms", "p99_ms", "cpu_ms")
ROUTERS = ("turnback", "vllm_router")

SHARES = ("router_share", "router_core_share", "other_core_share", "others_share")
_COUNTS = (
    *("answers", "errored", "incomplete", "leaks"),
    *("prefill", "warm", "decode", "with_p_dict", "releases"),
)

LARGE_BODY = "stream, c=1, 100 KB body"

_MIN_RATE_RATIO = 1.0
_MAX_FIRST_BYTE_EXTRA_MS = 0.5
_MAX_CPU_RATIO = 1.1
_MAX_LARGE_BODY_RATIO = 1.3


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def spread(values: Sequence[float]) -> float:
    """(max - min) / median; NaN when the median is 0."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else math.nan


def summarized(runs: Sequence[Run]) -> dict[str, Any]:
    """Median and spread of each figure over the repeats; counts are summed.

    Where `router_core_share` is well below 1, the router was not what limited the rate.
    """
    names = (*FIGURES, "total_p50_ms", *SHARES)
    columns = {name: [run[name] for run in runs if name in run] for name in names}
    columns = {name: values for name, values in columns.items() if values}
    figures: dict[str, Any] = {name: statistics.median(of) for name, of in columns.items()}
    figures["spread"] = {name: spread(values) for name, values in columns.items()}
    for name in _COUNTS:
        figures[name] = sum(int(run.get(name, 0)) for run in runs)
    return figures


def row(case: str, clients: int, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """One case: both routers, the engine without a router, and turnback / vllm-router.

    Args:
        case: its name.
        clients: conversations at a time.
        runs: repeats per target: `turnback`, `vllm_router`, `direct`.
    """
    told: dict[str, Any] = {"case": case, "clients": clients}
    told |= {target: summarized(repeats) for target, repeats in runs.items()}
    mine, theirs = (told[router] for router in ROUTERS)
    told["ratio"] = {name: mine[name] / theirs[name] for name in FIGURES}
    return told


@dataclass(frozen=True)
class Bar:
    """One limit.

    Attributes:
        bar: what is measured.
        limit: `<=` or `>=` and a number.
        measured: the value held against it; NaN never holds.
    """

    bar: str
    limit: str
    measured: float

    @property
    def holds(self) -> bool:
        """Whether the measured value keeps the limit."""
        sign, _, number = self.limit.partition(" ")
        limit = float(number)
        return self.measured <= limit if sign == "<=" else self.measured >= limit

    def to_dict(self) -> dict[str, Any]:
        """The bar as plain JSON."""
        return asdict(self) | {"holds": self.holds}


def bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """All limits of a run, from the rows of all its cases."""
    found = []
    for told in rows:
        case, ratio = told["case"], told["ratio"]
        mine, theirs = told["turnback"], told["vllm_router"]
        if told["clients"] > 1:
            limit = f">= {_MIN_RATE_RATIO}"
            found.append(Bar(f"req/s over vllm-router's: {case}", limit, ratio["req_s"]))
        elif case != LARGE_BODY:
            extra_ms = mine["p50_ms"] - theirs["p50_ms"]
            limit = f"<= {_MAX_FIRST_BYTE_EXTRA_MS}"
            found.append(Bar(f"p50 first byte beyond vllm-router's, ms: {case}", limit, extra_ms))
        limit = f"<= {_MAX_CPU_RATIO}"
        found.append(Bar(f"CPU per request over vllm-router's: {case}", limit, ratio["cpu_ms"]))
        if case == LARGE_BODY:
            limit = f"<= {_MAX_LARGE_BODY_RATIO}"
            for what, field in (("the first byte", "p50_ms"), ("the whole answer", "total_p50_ms")):
                added = added_ratio(mine, theirs, told["direct"], field)
                found.append(Bar(f"time added to {what} over vllm-router's: {case}", limit, added))
    failed = sum(
        told[target][kind]
        for told in rows
        for target in (*ROUTERS, "direct")
        for kind in ("errored", "incomplete")
    )
    leaks = sum(told["turnback"]["leaks"] for told in rows)
    return [
        *found,
        Bar("answers that failed, differed or did not end", "<= 0", float(failed)),
        Bar("handles that reached a client of turnback", "<= 0", float(leaks)),
    ]


def added_ratio(
    mine: Mapping[str, float], theirs: Mapping[str, float], direct: Mapping[str, float], field: str
) -> float:
    """Time (ms, `field`) that one router adds over what the other adds; NaN when it adds none."""
    theirs_ms = theirs[field] - direct[field]
    return (mine[field] - direct[field]) / theirs_ms if theirs_ms > 0 else math.nan


def growth(samples_mib: Sequence[float]) -> dict[str, float]:
    """How memory changed over samples a second apart.

    Returns:
        `first_mib`, `max_mib`, `growth` (max over first, less 1) and `slope_mib_per_min`
        (least squares).
    """
    if len(samples_mib) < 2:
        return dict.fromkeys(("first_mib", "max_mib", "growth", "slope_mib_per_min"), math.nan)
    slope = statistics.linear_regression(range(len(samples_mib)), samples_mib).slope
    first, highest = samples_mib[0], max(samples_mib)
    return {
        "first_mib": first,
        "max_mib": highest,
        "growth": highest / first - 1,
        "slope_mib_per_min": slope * 60,
    }
