"""What the charts and their tables show, taken out of the report. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.bench.render.palette import STAGES
from runtime.bench.stats import percentile
from runtime.bench.turn import ARMS, Arm

Json = Mapping[str, Any]
"""The report, or what stands in it."""


def passes(report: Json) -> list[Json]:
    """All passes, the main one first; each has the keys from `pass` on, arms and speedup."""
    return [report, *report["other_passes"]]


def is_sweep(one: Json) -> bool:
    """Whether the pass has several prefix lengths."""
    return len(one["points"]) > 1


def arms_of(one: Json) -> list[Arm]:
    """The arms that the pass has; without the feature there is one."""
    return list(ARMS if one["pass"]["is_feature_on"] else ARMS[:1])


def good(one: Json, arm: Arm) -> list[Json]:
    """Requests whose times count: successful, and no A/A repeat."""
    return [
        each
        for each in one["requests"]
        if each["arm"] == arm
        and each["outcome"] == "successful"
        and not each["is_again"]
        and each["ttft_ms"] is not None
    ]


def median(values: Sequence[float | None]) -> float | None:
    """Nearest rank, of those that are known."""
    return percentile([value for value in values if value is not None], 50)


@dataclass(frozen=True)
class Group:
    """Requests that are summed up together: a turn, or a prefix length of a sweep.

    Attributes:
        label: short, for an axis.
        arms: requests whose times count; the second turn and later ones in a sweep.
    """

    label: str
    arms: dict[Arm, list[Json]]

    def ttft_ms(self, arm: Arm) -> float | None:
        """Median."""
        return median([each["ttft_ms"] for each in self.arms[arm]])

    def prompt_tokens(self, arm: Arm) -> float | None:
        """Median."""
        return median([each["prompt_tokens"] for each in self.arms[arm]])

    def stages_ms(self, arm: Arm) -> dict[str, float | None]:
        """Median of each stage; they add up to about the median of the sums."""
        told = [each["stages_ms"] for each in self.arms[arm] if each["stages_ms"] is not None]
        return {stage: median([each[stage] for each in told]) for stage in STAGES}


def groups(one: Json) -> list[Group]:
    """One per turn; in a sweep one per prefix length, over the turns from the second on."""
    requests = {arm: good(one, arm) for arm in arms_of(one)}
    if not is_sweep(one):
        return by_turn(one)
    return [
        Group(
            f"{point['own_prefix_tokens']:,}",
            {
                arm: [
                    each
                    for each in mine
                    if each["point"] == point["own_prefix_tokens"] and each["turn"] > 1
                ]
                for arm, mine in requests.items()
            },
        )
        for point in one["points"]
    ]


def by_turn(one: Json) -> list[Group]:
    """One per turn."""
    requests = {arm: good(one, arm) for arm in arms_of(one)}
    turns = sorted({each["turn"] for each in one["requests"]})
    return [
        Group(
            f"turn {turn}",
            {
                arm: [each for each in mine if each["turn"] == turn]
                for arm, mine in requests.items()
            },
        )
        for turn in turns
    ]


def five_numbers(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Least, quartiles (nearest rank) and most of at least one value."""
    ranked = sorted(values)
    at = [max(0, -(-share * len(ranked) // 4) - 1) for share in (0, 1, 2, 3, 4)]
    least, low, middle, high, most = (ranked[rank] for rank in at)
    return least, low, middle, high, most


def thinned(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(at * step)] for at in range(most)]


@dataclass(frozen=True)
class Bar:
    """A part of a turn on the timeline.

    Attributes:
        kind: `think`, a stage, or `decode`.
        begin_s: since the arm's conversation began.
        is_cut: drawn shorter than it lasted.
    """

    arm: Arm
    turn: int
    kind: str
    begin_s: float
    length_s: float
    is_cut: bool = False


def shown_conversation(one: Json) -> tuple[int, int] | None:
    """(repeat, conversation) of the timeline: the first with most turns good in every arm."""
    arms = arms_of(one)
    counts: dict[tuple[int, int], dict[Arm, int]] = {}
    for arm in arms:
        for each in good(one, arm):
            place = counts.setdefault((each["repeat"], each["conversation"]), {})
            place[arm] = place.get(arm, 0) + 1
    whole = {place: min(told.values()) for place, told in counts.items() if len(told) == len(arms)}
    return min(whole, key=lambda place: (-whole[place], place), default=None)


def conversation_bars(one: Json, place: tuple[int, int]) -> list[Bar]:
    """The parts of one conversation's turns, arm by arm.

    A think time longer than an average turn is cut to that, and what comes after moves up.
    """
    arms = {
        arm: sorted(
            (e for e in good(one, arm) if (e["repeat"], e["conversation"]) == place),
            key=lambda each: float(each["started_s"]),
        )
        for arm in arms_of(one)
    }
    busy_s = [(e["e2e_ms"] or e["ttft_ms"]) / 1000 for mine in arms.values() for e in mine]
    longest_s = sum(busy_s) / len(busy_s)
    return [bar for arm, mine in arms.items() for bar in _arm_bars(arm, mine, longest_s)]


def _arm_bars(arm: Arm, requests: Sequence[Json], longest_s: float) -> list[Bar]:
    bars: list[Bar] = []
    origin_s = float(requests[0]["started_s"])
    for at, each in enumerate(requests):
        turn, think_s = each["turn"], each["think_s"] if at else 0.0
        now_s = each["started_s"] - origin_s
        if think_s > 0:
            shown_s = min(think_s, longest_s)
            bars.append(Bar(arm, turn, "think", now_s - think_s, shown_s, shown_s < think_s))
            origin_s += think_s - shown_s
            now_s -= think_s - shown_s
        stages = each["stages_ms"] or {"unattributed": each["ttft_ms"]}
        for kind in STAGES:
            length_s = max(0.0, stages.get(kind) or 0.0) / 1000
            if length_s:
                bars.append(Bar(arm, turn, kind, now_s, length_s))
                now_s += length_s
        if each["e2e_ms"] is not None:
            bars.append(Bar(arm, turn, "decode", now_s, (each["e2e_ms"] - each["ttft_ms"]) / 1000))
    return bars


@dataclass(frozen=True)
class Server:
    """One server's readings over the pass.

    Attributes:
        label: its role, with a number where there are several.
        at_s: moments, length n.
        kv_usage: share of the KV cache in use, length n; NaN: not told.
        pinned: share that handles pin, length n; NaN: not told.
    """

    label: str
    role: str
    url: str
    at_s: list[float]
    kv_usage: list[float]
    pinned: list[float]


def servers(one: Json) -> list[Server]:
    """The engines of the timeline, P before D."""
    found: dict[tuple[str, str], list[Json]] = {}
    for entry in one["timeline"]:
        if entry["kv_usage"] is not None or entry["pinned_share"] is not None:
            found.setdefault((entry["role"], entry["url"]), []).append(entry)
    roles = [role for role, _ in found]
    counted: dict[str, int] = {}
    built = []
    for role, url in sorted(found, key=lambda one: (one[0] != "prefill", one)):
        counted[role] = counted.get(role, 0) + 1
        label = role if roles.count(role) == 1 else f"{role} {counted[role]}"
        entries = sorted(found[role, url], key=lambda entry: float(entry["at_s"]))
        built.append(
            Server(
                *(label, role, url),
                *(
                    [float("nan") if e[name] is None else float(e[name]) for e in entries]
                    for name in ("at_s", "kv_usage", "pinned_share")
                ),
            )
        )
    return built
