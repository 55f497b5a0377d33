"""What the report says, in plain words; the same on the page, in the summary, in the terminal."""

from collections.abc import Iterator

from runtime.bench.render.data import Json, arms_of, good, median
from runtime.bench.render.palette import ARM_LOOKS

VERDICTS = {
    "equal": "Answers are the same in both arms",
    "within_noise": "Answers differ between the arms no more often than one arm's do when repeated",
    "more_than_noise": "ANSWERS DIFFER between the arms more often than one arm's do when repeated",
    "not_compared": "Answers were not compared",
}


def number(value: float | None, digits: int = 1) -> str:
    """With thousands marked; a dash for what is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(interval: Json) -> str:
    """A ratio with its interval."""
    if interval["ratio"] is None:
        return "-"
    shown = f"{interval['ratio']:.2f}x"
    if interval["ci95"] is None:
        return f"{shown} (no interval)"
    low, high = interval["ci95"]
    return f"{shown} ({low:.2f}..{high:.2f})"


def notices(report: Json) -> list[str]:
    """What a reader must know before any figure."""
    told = []
    if not report["complete"]:
        told.append(f"PARTIAL REPORT: stopped by {report['stopped_by']}")
    if report["environment"].get("engine") == "mock":
        told.append("MOCK ENGINE: these times say nothing about real serving")
    told += [problem for problem in report["problems"] if not _is_of_partial(problem)]
    for one in report["other_passes"]:
        name = f"pass {one['pass']['name']}"
        if not one["complete"]:
            told.append(f"PARTIAL: {name} was stopped by {one['stopped_by']}")
        told += [f"{name}: {problem}" for problem in one["problems"] if not _is_of_partial(problem)]
    return told


def _is_of_partial(problem: str) -> bool:
    return problem.startswith("the pass is partial")  # the first line says so already


def verdicts(one: Json) -> list[str]:
    """The findings of one pass, each a sentence."""
    lines = [*_speedup(one), *_saved_ms(one), exactness(one), outcomes(one)]
    lines += [*_savings(one), *goodput(one), *slopes(one), *stability(one), *_attribution(one)]
    return lines


def _speedup(one: Json) -> Iterator[str]:
    if not one["pass"]["is_feature_on"]:
        yield "The feature is off on both servers: one arm, nothing to compare within this pass."
        return
    overall = one["speedup"]["overall"]
    if overall["ratio"] is None:
        yield "No speed-up can be told: no turn from the second on succeeded in both arms."
        return
    yield (
        f"From turn 2 on the first token came {overall['ratio']:.2f} times as fast with "
        f"bidirectional KV transfer as one-way{_range(overall)}: {_meaning(overall)}."
    )


def _range(interval: Json) -> str:
    if interval["ci95"] is None:
        return " (one conversation, so no interval)"
    low, high = interval["ci95"]
    return f" (95 % interval {low:.2f} to {high:.2f}, {interval['n']} conversations)"


def _meaning(interval: Json) -> str:
    if interval["ci95"] is None:
        return "what another would give is unknown"
    low, high = interval["ci95"]
    if low > 1:
        return "a gain"
    return "a loss" if high < 1 else "no difference is shown"


def _saved_ms(one: Json) -> Iterator[str]:
    middles = {
        arm: median([e["ttft_ms"] for e in good(one, arm) if e["turn"] > 1]) for arm in arms_of(one)
    }
    before, after = middles.get("one_way"), middles.get("bidirectional")
    if before is not None and after is not None:
        change = "less" if after <= before else "more"
        yield (
            f"Median TTFT from turn 2 on: {before:,.1f} ms one-way, {after:,.1f} ms "
            f"bidirectional: {abs(before - after):,.1f} ms {change}."
        )


def exactness(one: Json) -> str:
    """Whether the answers are the same."""
    told = one["exactness"]
    counts = (
        f"{told['compared']} turns compared, {told['equal']} equal, {told['ties']} ties, "
        f"{len(told['differences'])} differences"
    )
    again = told["again"]
    if again["compared"]:
        counts += (
            f"; the same arm repeated: {again['compared']} compared, "
            f"{again['differences']} differences"
        )
    return f"{VERDICTS[told['verdict']]}: {counts}."


def outcomes(one: Json) -> str:
    """How the requests of each arm ended."""
    arms = []
    for arm in arms_of(one):
        told = one["arms"][arm]["outcomes"]
        ends = ", ".join(f"{told[end]} {end}" for end in ("errored", "incomplete", "aborted"))
        arms.append(f"{ARM_LOOKS[arm].label} {told['successful']} successful, {ends}")
    return f"Requests: {'; '.join(arms)}."


def _savings(one: Json) -> Iterator[str]:
    told = one["savings"]
    if told is not None:
        gpus = one["pass"]["bench"]["price"]["gpus_per_node"]
        yield (
            f"Prefill saved: {_sums(told)}; per 1,000 turns {_sums(told['per_1000_turns'])} "
            f"(counted as {gpus} GPU(s) a node)."
        )


def _sums(told: Json) -> str:
    usd = told["prefill_usd"]
    shown = "no price set" if usd is None else f"{usd:,.4f} USD"
    return (
        f"{number(told['prefill_tokens'], 0)} tokens, "
        f"{number(told['prefill_gpu_s'], 2)} GPU-seconds, {shown}"
    )


def goodput(one: Json) -> Iterator[str]:
    """Share of turns within the objectives."""
    told = {arm: one["arms"][arm]["goodput"] for arm in arms_of(one)}
    shown = [
        f"{ARM_LOOKS[arm].label} {100 * good['share']:.1f} % of {good['n']}"
        for arm, good in told.items()
        if good is not None and good["share"] is not None
    ]
    if shown:
        asked = next(good for good in told.values() if good is not None)
        limits = [
            f"{name} up to {asked[key]:g} ms"
            for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"))
            if asked[key] is not None
        ]
        yield f"Within the objectives ({', '.join(limits)}): {'; '.join(shown)}."


def slopes(one: Json) -> Iterator[str]:
    """What a longer history costs."""
    shown = []
    for arm in arms_of(one):
        told = one["arms"][arm]["slope_ms_per_1000_tokens"]
        if told is not None and told["value"] is not None:
            span = told["ci95"]
            between = "" if span is None else f" ({span[0]:.1f}..{span[1]:.1f})"
            shown.append(f"{ARM_LOOKS[arm].label} {told['value']:.1f} ms{between}")
    if shown:
        yield f"TTFT for each 1,000 tokens more of history: {'; '.join(shown)}."


def stability(one: Json) -> Iterator[str]:
    """Whether repeats agree, and what the same arm twice gives."""
    told = one["stability"]
    if told["is_stable"] is not None:
        yield (
            f"{told['repeats']} repeats: {'stable' if told['is_stable'] else 'NOT STABLE'}, "
            f"the ratio varies by {number(told['cv_percent'])} %."
        )
    if told["again"]["ratio"] is not None:
        yield f"The same arm twice gives {ratio(told['again'])}, where 1.00x is expected."


def _attribution(one: Json) -> Iterator[str]:
    told = one["attribution"]
    if told["n"]:
        yield (
            f"Stages add up to TTFT within max(5 %, 5 ms) in {told['within']} of {told['n']} turns."
        )
