"""What a user asks of a result, and what of it was missed. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bars:
    """What a result must reach; None: nothing is asked.

    Attributes:
        min_speedup: overall one-way TTFT over bidirectional TTFT, turns 2 and later.
        slo_ttft_p90_ms: of the bidirectional arm, turns 2 and later, each turn's p90.
    """

    min_speedup: float | None = None
    slo_ttft_p90_ms: float | None = None


def missed(report: Mapping[str, Any], bars: Bars) -> list[str]:
    """What the main pass of a report does not reach, a sentence each.

    A figure that could not be computed is missed: a bar is a promise, not a hope.

    Args:
        report: schema_version 1.
        bars: what is asked.
    """
    return [*_speedup(report, bars.min_speedup), *_ttft(report, bars.slo_ttft_p90_ms)]


def _speedup(report: Mapping[str, Any], least: float | None) -> Iterator[str]:
    got = report["speedup"]["overall"]["ratio"]
    if least is not None and (got is None or got < least):
        shown = "no speed-up could be measured" if got is None else f"speed-up {got:.2f}"
        yield f"{shown}, at least {least:g} is asked"


def _ttft(report: Mapping[str, Any], most_ms: float | None) -> Iterator[str]:
    if most_ms is None:
        return
    arm = report["arms"].get("bidirectional")
    if arm is None:
        yield "no p90 of TTFT could be measured: the pass has no bidirectional arm"
        return
    for turn in arm["turns"][1:]:
        got, n = turn["ttft_ms"]["p90"], turn["n"]
        if got is None:
            yield f"turn {turn['turn']}: no p90 of TTFT from {n} turns, at least 10 are needed"
        elif got > most_ms:
            yield f"turn {turn['turn']}: p90 of TTFT {got:.1f} ms, at most {most_ms:g} is asked"
