"""Why a figure is missing, or must not be trusted. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime.bench.folder import Sample
from runtime.bench.report.evidence import reading_problems
from runtime.bench.report.ratios import STEADY_CV_PERCENT

MANY_FAILURES = 0.05
"""Above this share of failed turns the rest is no fair sample: long turns fail first."""

_LEAST_SHARE_WITHIN = 0.95


def problems(report: Mapping[str, Any], samples: Sequence[Sample]) -> list[str]:
    """One sentence each.

    Args:
        report: of one pass, all other keys of it.
        samples: of the pass.
    """
    return [
        *_about_arms(report),
        *_about_ratios(report),
        *_about_answers(report["exactness"]),
        *_about_engines(report["engine"] or {}),
        *_about_stages(report["attribution"]),
        *reading_problems(samples),
    ]


def _about_arms(report: Mapping[str, Any]) -> Iterator[str]:
    if report["stopped_by"] is not None:
        yield f"the pass is partial: stopped by {report['stopped_by']}"
    for name, arm in report["arms"].items():
        outcomes = arm["outcomes"]
        failed = outcomes["errored"] + outcomes["incomplete"]
        if not outcomes["successful"]:
            yield f"{name}: no turn succeeded, so there is no ratio" + _first_error(report, name)
        elif failed > MANY_FAILURES * (arm["requests"] - outcomes["aborted"]):
            yield (
                f"{name}: {failed} of {arm['requests']} turns failed; figures are of the "
                f"{outcomes['successful']} that did not{_first_error(report, name)}"
            )


def _first_error(report: Mapping[str, Any], arm: str) -> str:
    errors = (row["error"] for row in report["requests"] if row["arm"] == arm and row["error"])
    first = next(errors, None)
    return "" if first is None else f" (first: {first})"


def _about_ratios(report: Mapping[str, Any]) -> Iterator[str]:
    overall, stability = report["speedup"]["overall"], report["stability"]
    if not report["pass"]["is_feature_on"]:
        return
    if overall["ratio"] is not None and overall["ci95"] is None:
        yield f"speed-up: {overall['n']} conversation is too few for an interval"
    if stability["is_stable"] is False:
        yield (
            f"repeats: their speed-ups vary by {stability['cv_percent']:.1f} % "
            f"(steady: up to {STEADY_CV_PERCENT:g} %)"
        )
    ends = stability["again"]["ci95"]
    if ends is not None and not ends[0] <= 1 <= ends[1]:
        yield (
            f"A/A: the same turns run twice differ in TTFT by a ratio of "
            f"{stability['again']['ratio']:.2f} ({ends[0]:.2f}..{ends[1]:.2f}), 1 expected"
        )


def _about_answers(exactness: Mapping[str, Any]) -> Iterator[str]:
    differing, again = len(exactness["differences"]), exactness["again"]
    if exactness["verdict"] == "more_than_noise":
        told = (
            f"of their repeats {again['differences']} of {again['compared']} do"
            if again["compared"]
            else "no turn was run twice to tell noise from error"
        )
        yield f"answers: {differing} of {exactness['compared']} turns differ; {told}"


def _about_engines(engine: Mapping[str, Mapping[str, float] | None]) -> Iterator[str]:
    told = {
        "failed_transfers": "transfers failed",
        "reads_after_free": "reads ended after their blocks had been freed",
        "expired": "pins or leases expired",
    }
    for role, counters in engine.items():
        for name, text in told.items():
            if counters is not None and counters.get(name, 0.0) > 0:
                yield f"{role}: {counters[name]:.0f} {text}"


def _about_stages(attribution: Mapping[str, Any]) -> Iterator[str]:
    share = attribution["share_within"]
    if share is not None and share < _LEAST_SHARE_WITHIN:
        yield (
            f"stages: they add up to the TTFT in {attribution['within']} of {attribution['n']} "
            "turns only"
        )
