"""Passes -> the report. Pure."""

from collections.abc import Sequence
from typing import Any

from runtime.bench.exactness import Exactness, compare, compare_again, noise_p, verdict
from runtime.bench.folder import PassInfo, Sample
from runtime.bench.report.arms import arm_figures
from runtime.bench.report.evidence import (
    ENGINE_ROLES,
    engine_counters,
    kv_capacity_tokens,
    timeline,
)
from runtime.bench.report.file import SCHEMA_VERSION
from runtime.bench.report.money import savings
from runtime.bench.report.problems import problems
from runtime.bench.report.published import published_comparison
from runtime.bench.report.ratios import points, speedup, stability
from runtime.bench.report.requests import request_rows
from runtime.bench.report.select import arm_pairs, measured
from runtime.bench.report.stages import attribution
from runtime.bench.turn import ARMS, TurnResult
from runtime.contract.published import Published

Passed = tuple[PassInfo, Sequence[TurnResult], Sequence[Sample]]
"""One pass as `PassFolder.read` gives it."""


def build_report(passes: Sequence[Passed], published: Published | None = None) -> dict[str, Any]:
    """Build the report of a benchmark, whole or partial.

    No figure mixes passes: each is built from its own turns, and a ratio from one pass.

    Args:
        passes: the main one first; at least one.
        published: figures of the main pass's profile, to stand beside ours.

    Returns:
        Plain JSON of SCHEMA_VERSION; docs/reference.md lists its keys.
    """
    (info, results, _), *others = passes
    beside = [(other, turns) for other, turns, _ in others]
    return {
        "schema_version": SCHEMA_VERSION,
        **_pass_report(passes[0]),
        "environment": dict(info.environment),
        "workload": info.profile.model_dump(mode="json"),
        "published": published_comparison(published, (info, results), beside),
        "other_passes": [_pass_report(one) for one in others],
    }


def _pass_report(passed: Passed) -> dict[str, Any]:
    info, results, samples = passed
    arms = ARMS if info.is_feature_on else ARMS[:1]
    turns = _turn_count(info, results)
    good = [result for arm in arms for result in measured(results, arm)]
    found, again = compare(results), compare_again(results)
    report = {
        "created_utc": info.created_utc,
        "complete": info.stopped_by is None,
        "stopped_by": info.stopped_by,
        "arms": {arm: arm_figures(info, results, arm, turns) for arm in arms},
        "speedup": speedup(results, turns),
        "exactness": _exactness(info, found, again),
        "engine": engine_counters(samples),
        "kv_capacity_tokens": {role: kv_capacity_tokens(samples, role) for role in ENGINE_ROLES},
        "pass": _about(info),
        "points": points(results, arms),
        "stability": stability(results, info.bench.repeats),
        "timeline": timeline(samples),
        "requests": request_rows(results),
        "attribution": attribution(good),
        "savings": savings(arm_pairs(results), info.bench.price),
    }
    of_client = info.environment.get("client", {}).get("warnings", [])
    return report | {"problems": [*problems(report, samples), *of_client]}


def _turn_count(info: PassInfo, results: Sequence[TurnResult]) -> int:
    """Of the longest conversation; of the profile's own workload also when it was cut short."""
    seen = max((result.turn for result in results), default=1)
    is_own = info.workload == info.profile.name
    return max(seen, info.profile.workload.turns) if is_own else seen


def _about(info: PassInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "prefill_prefix_caching": info.prefill_prefix_caching,
        "is_feature_on": info.is_feature_on,
        "workload": info.workload,
        "bench": info.bench.model_dump(mode="json"),
    }


def _exactness(info: PassInfo, found: Exactness, again: Exactness) -> dict[str, Any]:
    is_alone = info.bench.clients == 1 and info.bench.arrivals_per_s is None
    is_reproducible = is_alone and info.profile.serving.dtype == "float32"
    return found.to_dict() | {
        "again": {
            "compared": again.compared,
            "equal": again.equal,
            "ties": again.ties,
            "differences": len(again.differences),
        },
        "noise_p": noise_p(found, again),
        "verdict": verdict(found, again, is_reproducible=is_reproducible),
    }
