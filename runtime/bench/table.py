"""The report as rich tables. Pure."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runtime.bench.render.data import Json, arms_of, is_sweep, passes
from runtime.bench.render.palette import ARM_LOOKS
from runtime.bench.render.words import notices, number, ratio, verdicts

_SPEEDUP = "speed-up\n(95 %\ninterval)"
_WIDTHS = {_SPEEDUP: 12}
"""Narrower, and its figures would be cut."""


def render(report: Json) -> RenderableType:
    """The report for a terminal: of each pass one row per turn, then its findings."""
    parts: list[RenderableType] = [Text(line, style="bold yellow") for line in notices(report)]
    told = passes(report)
    for one in told:
        parts += _pass(one, "" if len(told) == 1 else f", pass {one['pass']['name']}")
    return Group(*parts)


def _pass(one: Json, which: str) -> Iterator[RenderableType]:
    yield _turns(one, which)
    if is_sweep(one):
        yield _points(one, which)
    yield from (Text(line) for line in (*verdicts(one), *_difference(one), *_engine(one)))


def _turns(one: Json, which: str) -> Table:
    arms = arms_of(one)
    labels = [ARM_LOOKS[arm].label for arm in arms]
    table = Table(title=f"TTFT per turn{which}", title_justify="left")
    for column in (
        *("turn", "prompt\ntokens"),
        *(f"{label}\nTTFT p50\nms" for label in labels),
        *((_SPEEDUP, "pulled\nprompt\nanswer") if arms[1:] else ()),
        "n,\nfailed",
    ):
        table.add_column(column, justify="right", min_width=_WIDTHS.get(column))
    ratios = [one["speedup"]["turn_1"], *one["speedup"]["turns"]]
    turns = [one["arms"][arm]["turns"] for arm in arms]
    for interval, *each in zip(ratios, *turns, strict=True):
        last = each[-1]
        pulled = f"{last['pulled_prompt_tokens']:,}\n{last['pulled_answer_tokens']:,}"
        table.add_row(
            str(last["turn"]),
            number(last["prompt_tokens"], 0),
            *(number(told["ttft_ms"]["p50"]) for told in each),
            *((_two_lines(interval), pulled) if arms[1:] else ()),
            "\n".join(map(_counts, each)),
        )
    return table


def _points(one: Json, which: str) -> Table:
    arms = arms_of(one)
    table = Table(title=f"Turns from the second on, by own prefix{which}", title_justify="left")
    labels = (f"{ARM_LOOKS[arm].label}\nTTFT p50 ms" for arm in arms)
    for column in ("own prefix\ntokens", *labels, _SPEEDUP):
        table.add_column(column, justify="right", min_width=_WIDTHS.get(column))
    for point in one["points"]:
        medians = (number(point["arms"][arm]["ttft_ms"]["p50"]) for arm in arms)
        table.add_row(f"{point['own_prefix_tokens']:,}", *medians, _two_lines(point["speedup"]))
    return table


def _two_lines(interval: Json) -> str:
    """The ratio, and below it the interval."""
    return ratio(interval).replace(" (", "\n(")


def _counts(turn: Json) -> str:
    failed = sum(turn[name] for name in ("errored", "incomplete", "aborted"))
    return f"{turn['n']}, {failed}"


def _difference(one: Json) -> Iterator[str]:
    for first in one["exactness"]["differences"][:1]:
        yield (
            f"  first difference: conversation {first['conversation']}, turn {first['turn']}, "
            f"position {first['position']} ({first['kind']})"
        )


def _engine(one: Json) -> Iterator[str]:
    if one["engine"] is None:
        yield "Engine counters: not scraped"
    for role, counters in (one["engine"] or {}).items():
        if counters is None:
            yield f"{role} engine: counters could not be read"
            continue
        yield (
            f"{role} engine: {counters['nixl_reads']:.0f} NIXL reads, "
            f"{counters['nixl_bytes'] / 2**20:.1f} MiB in {counters['nixl_seconds']:.3f} s, "
            f"{counters['failed_transfers']:.0f} failed transfers, "
            f"{counters['reads_after_free']:.0f} reads after free"
        )
