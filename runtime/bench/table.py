"""The report as rich tables. Pure."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_COLUMNS = (
    "turn",
    "prompt\ntokens",
    "one-way\nTTFT p50 ms",
    "bidirectional\nTTFT p50 ms",
    "speed-up\n(95 % interval)",
    "pulled tokens\nprompt / answer",
    "n / errored / incomplete\none-way, bidirectional",
)


def render(report: Mapping[str, Any]) -> RenderableType:
    """The report for a terminal: one row per turn, then what holds for the whole run."""
    parts: list[RenderableType] = [Text(line, style="bold yellow") for line in _notices(report)]
    parts.append(_turns(report))
    parts.extend(Text(line) for line in (_overall(report), *_exactness(report), *_engine(report)))
    return Group(*parts)


def _notices(report: Mapping[str, Any]) -> list[str]:
    notices = []
    if not report["complete"]:
        notices.append(f"PARTIAL REPORT: stopped by {report['stopped_by']}")
    if report["environment"].get("engine") == "mock":
        notices.append("MOCK ENGINE: these times say nothing about real serving")
    return notices


def _turns(report: Mapping[str, Any]) -> Table:
    table = Table(title="Time to first token, per turn")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    speedup = report["speedup"]
    ratios = [speedup["turn_1"], *speedup["turns"]]
    arms = report["arms"]
    for one_way, both, ratio in zip(
        arms["one_way"]["turns"], arms["bidirectional"]["turns"], ratios, strict=True
    ):
        table.add_row(
            str(both["turn"]),
            _number(both["prompt_tokens"], 0),
            _number(one_way["ttft_ms"]["p50"], 1),
            _number(both["ttft_ms"]["p50"], 1),
            _ratio(ratio),
            f"{both['pulled_prompt_tokens']} / {both['pulled_answer_tokens']}",
            f"{_counts(one_way)}, {_counts(both)}",
        )
    return table


def _counts(turn: Mapping[str, Any]) -> str:
    return f"{turn['n']}/{turn['errored']}/{turn['incomplete']}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(interval: Mapping[str, Any]) -> str:
    if interval["ratio"] is None:
        return "-"
    shown = f"{interval['ratio']:.2f}x"
    if interval["ci95"] is None:
        return f"{shown} (no interval)"
    low, high = interval["ci95"]
    return f"{shown} ({low:.2f}..{high:.2f})"


def _overall(report: Mapping[str, Any]) -> str:
    overall = report["speedup"]["overall"]
    if overall["ratio"] is None:
        return "Overall, turns 2 and later: nothing to compare"
    return (
        f"Overall, turns 2 and later: {_ratio(overall)}, "
        f"one-way TTFT over bidirectional TTFT, {overall['n']} conversation(s)"
    )


def _exactness(report: Mapping[str, Any]) -> list[str]:
    exactness = report["exactness"]
    differences = exactness["differences"]
    lines = [
        f"Answers: {exactness['compared']} turns compared, {exactness['equal']} equal, "
        f"{exactness['ties']} ties, {len(differences)} differences"
    ]
    if differences:
        first = differences[0]
        lines.append(
            f"  first: conversation {first['conversation']}, turn {first['turn']}, "
            f"position {first['position']} ({first['kind']})"
        )
    return lines


def _engine(report: Mapping[str, Any]) -> list[str]:
    if report["engine"] is None:
        return ["Engine counters: not scraped"]
    lines = []
    for role, counters in report["engine"].items():
        if counters is None:
            lines.append(f"{role} engine: counters could not be read")
            continue
        lines.append(
            f"{role} engine: {counters['nixl_reads']:.0f} NIXL reads, "
            f"{counters['nixl_bytes'] / 2**20:.1f} MiB in {counters['nixl_seconds']:.3f} s, "
            f"{counters['failed_transfers']:.0f} failed transfers, "
            f"{counters['reads_after_free']:.0f} reads after free"
        )
    return lines
