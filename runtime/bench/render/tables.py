"""The tables of the report: one under each chart, and those that stand alone. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.bench.render.charts import speedup_rows
from runtime.bench.render.data import (
    Bar,
    Json,
    Server,
    arms_of,
    by_turn,
    five_numbers,
    groups,
    is_sweep,
    median,
)
from runtime.bench.render.palette import ARM_LOOKS, PARTS, STAGES
from runtime.bench.render.words import number


@dataclass(frozen=True)
class Table:
    """Text of cells, not yet escaped; the first column names the row."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def _place(one: Json) -> str:
    return "own prefix, tokens" if is_sweep(one) else "turn"


def turns(one: Json) -> Table:
    """Latency, sizes and counts per turn and arm."""
    arms = {arm: one["arms"][arm]["turns"] for arm in arms_of(one)}
    head = ("turn", "arm", "prompt tokens", "TTFT p50 ms", "p90", "p99", "TPOT p50 ms")
    counts = ("pulled tokens, prompt / answer", "n", "errored", "incomplete", "aborted")
    rows = [
        (
            str(told["turn"]),
            ARM_LOOKS[arm].label,
            number(told["prompt_tokens"], 0),
            *(number(told["ttft_ms"][rank]) for rank in ("p50", "p90", "p99")),
            number(told["tpot_ms"]["p50"]),
            f"{told['pulled_prompt_tokens']:,} / {told['pulled_answer_tokens']:,}",
            *(str(told[count]) for count in counts[1:]),
        )
        for each in zip(*arms.values(), strict=True)
        for arm, told in zip(arms, each, strict=True)
    ]
    return Table((*head, *counts), rows)


def ttft_by_length(one: Json) -> Table:
    """Medians of TTFT beside those of the prompt's length."""
    head = (_place(one), "arm", "prompt tokens, median", "TTFT p50 ms", "n")
    rows = [
        (
            part.label.removeprefix("turn "),
            ARM_LOOKS[arm].label,
            number(part.prompt_tokens(arm), 0),
            number(part.ttft_ms(arm)),
            str(len(part.arms[arm])),
        )
        for part in groups(one)
        for arm in arms_of(one)
    ]
    return Table(head, rows)


def breakdown(one: Json) -> Table:
    """Median of each stage."""
    labels = tuple(look.label for look in STAGES.values())
    rows = [
        (
            part.label.removeprefix("turn "),
            ARM_LOOKS[arm].label,
            *(number(ms) for ms in part.stages_ms(arm).values()),
            number(part.ttft_ms(arm)),
        )
        for part in groups(one)
        for arm in arms_of(one)
    ]
    return Table((_place(one), "arm", *labels, "TTFT p50 ms"), rows)


def boxes(one: Json) -> Table:
    """What the boxes are drawn from."""
    rows = []
    for part in by_turn(one):
        for arm, requests in part.arms.items():
            values = [each["ttft_ms"] for each in requests]
            drawn = five_numbers(values) if values else (None,) * 5
            label = part.label.removeprefix("turn ")
            rows.append((label, ARM_LOOKS[arm].label, *map(number, drawn), str(len(values))))
    head = ("turn", "arm", "least ms", "lower quartile", "median", "upper quartile", "most", "n")
    return Table(head, rows)


def speedup(one: Json) -> Table:
    """Ratios with their intervals."""
    rows = []
    for label, told in speedup_rows(one):
        ends = ("-", "-") if told["ci95"] is None else tuple(f"{end:.2f}" for end in told["ci95"])
        value = "-" if told["ratio"] is None else f"{told['ratio']:.2f}"
        rows.append((label, value, *ends, told["method"] or "-", str(told["n"])))
    return Table(("turns", "ratio", "95 % from", "to", "method", "conversations"), rows)


def conversation(bars: Sequence[Bar], one: Json, place: tuple[int, int]) -> Table:
    """Milliseconds of each part, the true ones of cut think times too."""
    think_s = {
        (each["arm"], each["turn"]): each["think_s"]
        for each in one["requests"]
        if (each["repeat"], each["conversation"]) == place and not each["is_again"]
    }
    parts = {(bar.arm, bar.turn, bar.kind): bar.length_s for bar in bars}
    kinds = [kind for kind in PARTS if kind != "think"]
    rows = [
        (
            str(turn),
            ARM_LOOKS[arm].label,
            number(think_s[arm, turn], 2),
            *(number(1000 * parts.get((arm, turn, kind), 0.0)) for kind in kinds),
        )
        for arm, turn in dict.fromkeys((bar.arm, bar.turn) for bar in bars)
    ]
    labels = (f"{PARTS[kind].label} ms" for kind in kinds)
    return Table(("turn", "arm", "think s", *labels), rows)


def load(shown: Sequence[Server]) -> Table:
    """Each server's readings summed up."""

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{100 * share:.1f} %"

    rows = []
    for server in shown:
        usage = [share for share in server.kv_usage if share == share]
        pinned = [share for share in server.pinned if share == share]
        tops = (max(usage, default=None), median(pinned), max(pinned, default=None))
        cells = map(percent, (median(usage), *tops))
        rows.append((server.label, server.url, str(len(server.at_s)), *cells))
    head = ("server", "address", "readings", "KV p50", "KV most", "pinned p50", "pinned most")
    return Table(head, rows)


def published(told: Json) -> Table:
    """Published figures beside ours; means of all turns, as published."""
    rows = []
    for row in told["rows"]:
        theirs, ours = row["published"], row["ours"]
        rows.append(
            (
                f"{row['own_prefix_tokens']:,}",
                *(number(theirs[key], 0) for key in ("off_ms", "on_ms")),
                _times(theirs["ratio"]),
                *(number(ours[key], 0) for key in ("off_ms", "one_way_ms", "on_ms")),
                _times(ours["ratio"]),
                *(
                    number(side[key], 0)
                    for side in (theirs, ours)
                    for key in ("off_prefill_ms", "on_prefill_ms")
                ),
            )
        )
    theirs_head = ("published: off ms", "on ms", "off / on")
    ours_head = ("here: off ms", "one-way ms", "on ms", "off / on")
    part_head = ("prefill part, published: off ms", "on ms", "here: off ms", "on ms")
    return Table(("own prefix, tokens", *theirs_head, *ours_head, *part_head), rows)


def published_pull(told: Json) -> str:
    """Published pulls beside ours."""
    theirs, ours = told["pull_ms"]["published"], told["pull_ms"]["ours"]
    here = "none was told" if ours is None else f"{ours[0]:,.0f} to {ours[1]:,.0f} ms"
    return f"KV pull: published {theirs[0]:g} to {theirs[1]:g} ms, here {here}."


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def engine(one: Json) -> Table:
    """Counters of the engines over the pass."""
    told: Mapping[str, Mapping[str, float] | None] = one["engine"] or {}
    names = list(dict.fromkeys(name for counters in told.values() for name in counters or ()))
    rows = [
        (name.replace("_", " "), *(_count(counters, name) for counters in told.values()))
        for name in names
    ]
    return Table(("counted over the pass", *told), rows)


def _count(counters: Mapping[str, float] | None, name: str) -> str:
    if counters is None or counters.get(name) is None:
        return "not read"
    return number(counters[name], 3 if name.endswith("seconds") else 0)


def costs(one: Json) -> Table:
    """What each arm had prefill do, and how fast it went."""
    head = ("arm", "prefill tokens", "GPU-seconds", "USD", "requests/s", "answer tokens/s")
    keys = {"prefill_tokens": 0, "prefill_gpu_s": 2, "prefill_usd": 4}
    keys |= {"requests_per_s": 2, "answer_tokens_per_s": 1}
    rows = [
        (
            ARM_LOOKS[arm].label,
            *(number(one["arms"][arm][key], digits) for key, digits in keys.items()),
        )
        for arm in arms_of(one)
    ]
    return Table(head, rows)


def differences(one: Json, most: int = 20) -> Table:
    """The first answers that differ."""
    rows = [
        tuple(str(each[key]) for key in ("conversation", "turn", "position", "kind"))
        for each in one["exactness"]["differences"][:most]
    ]
    return Table(("conversation", "turn", "position", "kind"), rows)


def failures(one: Json, most: int = 20) -> Table:
    """Errors with how often each was met, most frequent first."""
    counted: dict[tuple[str, str, str], int] = {}
    for each in one["requests"]:
        if each["outcome"] in ("errored", "incomplete"):
            what = (ARM_LOOKS[each["arm"]].label, each["outcome"], each["error"] or "-")
            counted[what] = counted.get(what, 0) + 1
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:most]
    return Table(("arm", "outcome", "error", "requests"), [(*what, str(n)) for what, n in ranked])


def settings(told: Json, prefix: str = "") -> Table:
    """Nested settings as dotted names."""
    rows: list[tuple[str, ...]] = []
    for name, value in told.items():
        if isinstance(value, Mapping):
            rows += settings(value, f"{prefix}{name}.").rows
        else:
            rows.append((f"{prefix}{name}", "-" if value is None else str(value)))
    return Table(("setting", "value"), rows)
