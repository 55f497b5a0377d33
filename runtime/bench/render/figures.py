"""What a pass shows, in order: each chart with its words and the table under it. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runtime.bench.render import charts, tables
from runtime.bench.render.data import (
    Json,
    arms_of,
    conversation_bars,
    good,
    groups,
    is_sweep,
    servers,
    shown_conversation,
)
from runtime.bench.render.svg import Draw
from runtime.bench.render.tables import Table

NO_TURN = "No turn succeeded, so there is nothing to draw."
MOST_SERVERS = 8
MOST_TURNS = 10


@dataclass(frozen=True)
class Figure:
    """One chart of a pass.

    Attributes:
        name: a word for ids.
        says: what is drawn and how to read it.
        draw: None: there is nothing to draw, and `instead` says why.
        height_px: of the chart, in its wide form and in its narrow one.
    """

    name: str
    title: str
    says: str
    draw: Draw | None
    instead: str
    table: Table | None
    height_px: tuple[int, int]


def figures(one: Json) -> list[Figure]:
    """All charts of a pass."""
    return [make(one) for make in _ALL]


def _ttft_by_length(one: Json) -> Figure:
    medians = "prefix length, turns from the second on" if is_sweep(one) else "turn"
    return Figure(
        "length",
        "TTFT against prompt length",
        f"Each mark is a request; the lines join the medians of each {medians}.",
        _draws(charts.ttft_by_length, one),
        NO_TURN,
        tables.ttft_by_length(one),
        (360, 330),
    )


def _breakdown(one: Json) -> Figure:
    parts = groups(one)
    told = [part.stages_ms(arm) for part in parts for arm in part.arms]
    is_told = any(ms is not None for stages in told for ms in stages.values())
    height = charts.height_of_rows(charts.breakdown_rows(parts, len(arms_of(one))))
    by = "prefix length in tokens, turns from the second on" if is_sweep(one) else "turn"
    return Figure(
        "stages",
        "Where the time to the first token goes",
        f"Medians of each stage by {by}. Medians of parts add up to about the median of the sum.",
        partial(charts.breakdown, one=one) if is_told else None,
        "Neither the router nor the engines told the times of any turn, so there is no breakdown.",
        tables.breakdown(one),
        (height, height + 40),
    )


def _boxes(one: Json) -> Figure:
    mixed = " All prefix lengths together." if is_sweep(one) else ""
    return Figure(
        "boxes",
        "Spread of TTFT by turn",
        "Boxes hold the middle half, the thick line is the median, whiskers reach the least and "
        f"the most.{mixed}",
        _draws(charts.ttft_boxes, one),
        NO_TURN,
        tables.boxes(one),
        (340, 320),
    )


def _speedup(one: Json) -> Figure:
    rows = charts.speedup_rows(one)
    known = sum(told["ratio"] is not None for _, told in rows)
    instead = (
        "No turn succeeded in both arms, so there is no ratio."
        if one["pass"]["is_feature_on"]
        else "This pass has one arm: a ratio is only made within a pass."
    )
    return Figure(
        "speedup",
        "Speed-up",
        "One-way TTFT over bidirectional TTFT, geometric mean over conversations, with 95 % "
        "intervals; right of the dotted line is faster. Turn 1, which has no handle, is hollow "
        "and stands apart.",
        partial(charts.speedup, one=one) if known else None,
        instead,
        tables.speedup(one),
        (70 + 30 * min(known, 33), 70 + 30 * min(known, 33)),
    )


def _conversation(one: Json) -> Figure:
    place = shown_conversation(one)
    title = "One conversation over time"
    if place is None:
        instead = "No conversation has a successful turn in every arm."
        return Figure("timeline", title, "", None, instead, None, (0, 0))
    bars = conversation_bars(one, place)
    turns = sorted({bar.turn for bar in bars})
    drawn = [bar for bar in bars if bar.turn in turns[:MOST_TURNS]]
    left_out = f"; the first {MOST_TURNS} of {len(turns)}" if turns[MOST_TURNS:] else ""
    return Figure(
        "timeline",
        title,
        f"Conversation {place[1]}: each arm from its first turn; numbers are turns{left_out}. "
        "Gaps are other conversations' time or repeats of turns.",
        partial(charts.conversation, one=one, bars=drawn),
        "",
        tables.conversation(bars, one, place),
        (230, 270),
    )


def _load(one: Json) -> Figure:
    shown = servers(one)
    drawn = shown[:MOST_SERVERS]
    left_out = "" if drawn == shown else f" The first {MOST_SERVERS} of {len(shown)} servers."
    return Figure(
        "load",
        "KV cache and pins over time",
        f"Share of each server's KV cache in use, and the share that handles pin.{left_out}",
        partial(charts.load, shown=drawn) if drawn else None,
        "The servers' metrics were not read, so there is no usage over time.",
        tables.load(shown) if shown else None,
        (320, 330),
    )


_ALL: tuple[Callable[[Json], Figure], ...] = (
    *(_speedup, _ttft_by_length, _breakdown, _boxes, _conversation, _load),
)


def _draws(draw: Callable[..., None], one: Json) -> Draw | None:
    has_any = any(good(one, arm) for arm in arms_of(one))
    return partial(draw, one=one) if has_any else None
