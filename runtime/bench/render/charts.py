"""The charts: each fills a figure from one pass. Colours are the tones' stand-ins."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runtime.bench.render.data import (
    Bar,
    Group,
    Json,
    Server,
    arms_of,
    by_turn,
    five_numbers,
    good,
    groups,
    is_sweep,
    thinned,
)
from runtime.bench.render.palette import ARM_LOOKS, INK, MUTED, PARTS, STAGES, PartLook
from runtime.bench.turn import Arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 800
"""Of each arm in a scatter; more only make the page heavy."""
MOST_ROWS = 16
_NARROW_IN = 6.0


def ttft_by_length(figure: "Figure", one: Json) -> None:
    """TTFT against prompt length: requests, and medians joined by a line."""
    axes = figure.subplots()
    parts = groups(one)
    for arm in arms_of(one):
        look = ARM_LOOKS[arm]
        shown = thinned(good(one, arm), MOST_POINTS)
        _scatter(axes, arm, [(e["prompt_tokens"], e["ttft_ms"]) for e in shown])
        line = [(part.prompt_tokens(arm), part.ttft_ms(arm)) for part in parts]
        known = sorted((x, y) for x, y in line if x is not None and y is not None)
        axes.plot(
            [x for x, _ in known],
            [y for _, y in known],
            color=look.tone.stand_in,
            linestyle=look.line,
            marker=look.marker,
            markersize=7,
            linewidth=1.8,
            label=f"{look.label}, median",
        )
    _ms(axes)
    _few_ticks(axes)
    axes.set_xlabel("prompt tokens")
    _legend(figure, axes)


def ttft_by_turn(figure: "Figure", one: Json) -> None:
    """Median TTFT of each turn with its quartiles; the README's chart."""
    axes = figure.subplots()
    parts = by_turn(one)
    for at, arm in enumerate(arms_of(one)):
        look, xs, quartiles = ARM_LOOKS[arm], [], []
        for turn, part in enumerate(parts, start=1):
            if values := [each["ttft_ms"] for each in part.arms[arm]]:
                xs.append(turn + 0.06 * (2 * at - 1))
                quartiles.append(five_numbers(values)[1:4])
        if not xs:
            continue
        middles = [middle for _, middle, _ in quartiles]
        spans = [[m - low for low, m, _ in quartiles], [high - m for _, m, high in quartiles]]
        axes.errorbar(
            *(xs, middles, spans),
            color=look.tone.stand_in,
            linestyle=look.line,
            marker=look.marker,
            markersize=7,
            linewidth=1.8,
            elinewidth=1.2,
            capsize=3,
            label=f"{look.label}, median and quartiles",
        )
    _ms(axes)
    axes.set_xlabel("turn")
    _whole_numbers(axes)
    _legend(figure, axes)


def breakdown(figure: "Figure", one: Json) -> None:
    """Stacked medians of the stages, one bar for each arm of a turn or prefix length."""
    axes = figure.subplots()
    rows = [(part, arm) for part in thinned(groups(one), MOST_ROWS) for arm in arms_of(one)]
    for row, (part, arm) in enumerate(rows):
        begin_ms = 0.0
        for stage, ms in part.stages_ms(arm).items():
            if ms is not None and ms > 0:
                _part(axes, PARTS[stage], row, begin_ms, ms)
                begin_ms += ms
    axes.set_yticks(range(len(rows)), [f"{part.label}, {_short(arm)}" for part, arm in rows])
    _downwards(axes, len(rows))
    axes.set_xlabel("ms to the first token, medians")
    _part_legend(figure, list(STAGES.values()))


def ttft_boxes(figure: "Figure", one: Json) -> None:
    """Boxes of TTFT, quartiles and extremes, one for each arm of a turn."""
    axes = figure.subplots()
    arms = arms_of(one)
    parts = by_turn(one)
    for at, arm in enumerate(arms):
        look, boxes, places = ARM_LOOKS[arm], [], []
        for turn, part in enumerate(parts, start=1):
            if values := [each["ttft_ms"] for each in part.arms[arm]]:
                names = ("whislo", "q1", "med", "q3", "whishi")
                boxes.append(dict(zip(names, five_numbers(values), strict=True)))
                places.append(turn + 0.2 * (2 * at - len(arms) + 1))
        line = {"color": look.tone.stand_in, "linewidth": 1.3}
        drawn = axes.bxp(
            boxes,
            positions=places,
            widths=0.32,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={
                "facecolor": "none",
                "edgecolor": look.tone.stand_in,
                "hatch": look.hatch,
                "linewidth": 1.3,
            },
            medianprops={"color": INK.stand_in, "linewidth": 2.2},
            whiskerprops=line,
            capprops=line,
        )
        if drawn["boxes"]:
            drawn["boxes"][0].set_label(look.label)
    _ms(axes)
    axes.set_xlabel("turn")
    _whole_numbers(axes)
    _legend(figure, axes)


def speedup_rows(one: Json) -> list[tuple[str, Json]]:
    """(label, interval) of turn 1, of the later turns, of a sweep's points and of all."""
    told = one["speedup"]
    rows = [("turn 1", told["turn_1"])]
    rows += [(f"turn {each['turn']}", each) for each in told["turns"]]
    if is_sweep(one):
        rows += [(f"{p['own_prefix_tokens']:,} tokens", p["speedup"]) for p in one["points"]]
    return [*rows, ("from turn 2 on", told["overall"])]


def speedup(figure: "Figure", one: Json) -> None:
    """Ratios with their 95 % intervals, and the line where nothing is gained."""
    axes = figure.subplots()
    rows = [row for row in speedup_rows(one) if row[1]["ratio"] is not None]
    *front, last = rows
    rows = [*thinned(front, 2 * MOST_ROWS), last]
    tone = ARM_LOOKS["bidirectional"].tone.stand_in
    for row, (label, interval) in enumerate(rows):
        ratio = interval["ratio"]
        low, high = interval["ci95"] or (ratio, ratio)
        is_first = label == "turn 1"
        axes.errorbar(
            *([ratio], [row]),
            xerr=[[max(0.0, ratio - low)], [max(0.0, high - ratio)]],
            color=MUTED.stand_in if is_first else tone,
            marker="s" if label == "from turn 2 on" else "o",
            markerfacecolor="none" if is_first else tone,
            markersize=8,
            capsize=4,
            linewidth=1.8,
        )
    axes.axvline(1.0, color=INK.stand_in, linestyle=":", linewidth=1.6)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    _downwards(axes, len(rows))
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.8), max(right, 1.2))
    axes.set_xlabel("one-way TTFT / bidirectional TTFT")
    axes.annotate(
        "no gain",
        xy=(1.0, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -2),
        textcoords="offset points",
        va="top",
        color=INK.stand_in,
    )


def conversation(figure: "Figure", one: Json, bars: Sequence[Bar]) -> None:
    """One conversation over time, an arm in a lane: thinking, the stages, the answer."""
    axes = figure.subplots()
    arms = [arm for arm in arms_of(one) if any(bar.arm == arm for bar in bars)]
    for bar in bars:
        lane = arms.index(bar.arm)
        _part(axes, PARTS[bar.kind], lane, bar.begin_s, bar.length_s, height=0.5)
        if bar.is_cut:
            middle_s = bar.begin_s + bar.length_s / 2
            axes.text(middle_s, lane, "//", ha="center", va="center", color=INK.stand_in)
    for lane, arm in enumerate(arms):
        _number_turns(axes, lane, [bar for bar in bars if bar.arm == arm])
    axes.set_yticks(range(len(arms)), [_short(arm) for arm in arms])
    _downwards(axes, len(arms))
    is_any_cut = any(bar.is_cut for bar in bars)
    axes.set_xlabel("s, cut at //" if is_any_cut else "s since the first turn was sent")
    kinds = {bar.kind for bar in bars}
    _part_legend(figure, [look for kind, look in PARTS.items() if kind in kinds])


def _number_turns(axes: "Axes", lane: int, bars: Sequence[Bar]) -> None:
    """Numbers above the turns of a lane, where there is room for one."""
    begins_s = {bar.turn: bar.begin_s for bar in reversed(bars) if bar.kind != "think"}
    room_s = axes.get_xlim()[1] * 16 / axes.figure.bbox.width
    last_s = -room_s
    for turn, begin_s in sorted(begins_s.items()):
        if begin_s - last_s >= room_s:
            axes.text(begin_s, lane - 0.29, str(turn), va="bottom", color=INK.stand_in)
            last_s = begin_s


def load(figure: "Figure", shown: Sequence[Server]) -> None:
    """KV cache in use on each server over the pass, and what handles pin of it."""
    axes = figure.subplots()
    tones = {"prefill": STAGES["prefill"].tone, "decode": STAGES["first_decode"].tone}
    lines = ("-", "--", "-.", ":")
    for at, server in enumerate(shown):
        look: dict[str, Any] = {
            "color": tones.get(server.role, MUTED).stand_in,
            "linestyle": lines[at % len(lines)],
            "markersize": 5,
            "markevery": max(1, len(server.at_s) // 8),
            "linewidth": 1.6,
        }
        if any(share == share for share in server.kv_usage):
            percents = [100 * share for share in server.kv_usage]
            axes.plot(server.at_s, percents, marker="os"[at % 2], label=server.label, **look)
        if any(share == share for share in server.pinned):
            look |= {"color": INK.stand_in, "linestyle": ":"}
            pinned = [100 * share for share in server.pinned]
            axes.plot(
                server.at_s, pinned, marker="x", label=f"pinned, by the {server.label}", **look
            )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s since the pass began")
    axes.set_ylabel("KV cache, %")
    _legend(figure, axes)


def _scatter(axes: "Axes", arm: Arm, points: Sequence[tuple[float | None, float]]) -> None:
    look = ARM_LOOKS[arm]
    known = [(x, y) for x, y in points if x is not None]
    axes.plot(
        [x for x, _ in known],
        [y for _, y in known],
        color=look.tone.stand_in,
        linestyle="none",
        marker=look.marker,
        markersize=4,
        markerfacecolor="none",
        markeredgewidth=0.8,
        alpha=0.55,
    )


def _part(
    axes: "Axes", look: PartLook, row: int, begin: float, length: float, height: float = 0.7
) -> None:
    axes.barh(
        row,
        length,
        left=begin,
        height=height,
        color=look.tone.stand_in,
        edgecolor=INK.stand_in,
        linewidth=0.6,
        hatch=look.hatch,
    )


def _part_legend(figure: "Figure", looks: Sequence[PartLook]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(
            facecolor=look.tone.stand_in,
            edgecolor=INK.stand_in,
            linewidth=0.6,
            hatch=look.hatch,
            label=look.label,
        )
        for look in looks
    ]
    columns = 3 if _is_narrow(figure) else 7
    figure.legend(handles=patches, loc="outside upper left", ncols=columns)


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if _is_narrow(figure) else 3
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)


def _is_narrow(figure: "Figure") -> bool:
    return bool(figure.get_figwidth() < _NARROW_IN)


def _downwards(axes: "Axes", rows: int) -> None:
    axes.set_ylim(rows - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    _few_ticks(axes)


def _few_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    most = 5 if axes.figure.bbox.width < 400 else 8
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,g}")


def _ms(axes: "Axes") -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel("TTFT, ms")
    axes.yaxis.set_major_formatter("{x:,g}")


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.grid(visible=False, axis="x")


def _short(arm: Arm) -> str:
    return ARM_LOOKS[arm].label


def height_of_rows(rows: int) -> int:
    """Pixels of a chart with so many rows, axes and legend included."""
    return 110 + 21 * rows


def breakdown_rows(parts: Sequence[Group], arms: int) -> int:
    """Bars that `breakdown` draws."""
    return min(len(parts), MOST_ROWS) * arms
