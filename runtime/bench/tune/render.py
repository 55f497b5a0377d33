"""A tuning for a terminal. Pure."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runtime.bench.tune.tuning import THRESHOLD_KEY, TTL_KEY, Effect, Tuning


def render(tuned: Tuning) -> RenderableType:
    """Warnings, the two settings with what they rest on, the effect, the lines."""
    parts: list[RenderableType] = [Text(line, style="bold yellow") for line in tuned.warnings]
    parts += [_settings(tuned), _effects(tuned), *map(Text, _notes(tuned)), Text("")]
    return Group(*parts)


def settings_lines(tuned: Tuning) -> str:
    """What to put into deployment.toml; empty where nothing is suggested."""
    comments = {TTL_KEY: tuned.ttl.why, THRESHOLD_KEY: tuned.threshold.why}
    lines = [f"{key} = {value} # {comments[key]}" for key, value in tuned.settings.items()]
    return "\n".join(["[kv]", *lines]) + "\n" if lines else ""


def _settings(tuned: Tuning) -> Table:
    table = Table(title=f"Settings by pass {tuned.seen.name}")
    for column in ("[kv]", "ran with", "suggested", "95 % interval"):
        table.add_column(column)
    kv, ttl, threshold = tuned.seen.kv, tuned.ttl, tuned.threshold
    table.add_row(
        TTL_KEY,
        f"{kv.decoder_kv_blocks_ttl_s} s",
        "keep" if ttl.seconds is None else f"{ttl.seconds} s",
        _ends(ttl.ci95_s, "s"),
    )
    table.add_row(
        THRESHOLD_KEY,
        f"{kv.kv_recompute_threshold_tokens} tokens",
        "keep" if threshold.tokens is None else f"{threshold.tokens} tokens",
        _ends(threshold.ci95, "tokens"),
    )
    return table


def _effects(tuned: Tuning) -> Table:
    table = Table(title="Expected effect: an estimate from the fit, not a measurement")
    for column in ("settings", "returns kept", "returns that pull", "TTFT saved per return"):
        table.add_column(column, justify="left" if column == "settings" else "right")
    for name, effect in (("ran with", tuned.now), ("suggested", tuned.then)):
        words = f"{name}: TTL {effect.ttl_s} s, threshold {effect.threshold_tokens}"
        kept, warm = (
            "-" if share is None else f"{share:.1%}"
            for share in (effect.kept_share, effect.warm_share)
        )
        table.add_row(words, kept, warm, _saved(effect))
    return table


def _saved(effect: Effect) -> str:
    if effect.saved_ms is None or effect.ci95_ms is None:
        return "-"
    low, high = effect.ci95_ms
    return f"{effect.saved_ms:.1f} ms ({low:.1f}..{high:.1f})"


def _ends(ends: tuple[float | None, float | None] | None, unit: str) -> str:
    if ends is None:
        return "-"
    low, high = ("not bounded" if end is None else f"{end:.0f} {unit}" for end in ends)
    return f"{low}..{high}"


def _notes(tuned: Tuning) -> Iterator[str]:
    yield f"TTL: {tuned.ttl.why}"
    yield f"Threshold: {tuned.threshold.why}"
    fitted = tuned.threshold.fit
    if fitted is not None:
        a, b, c, d, e = fitted.theta
        bend = f" + {e:.3g} per token and token before" if e else ""
        yield (
            f"Fit: pull {a:.2f} ms + {1000 * b:.2f} ms per 1,000 tokens; "
            f"prefill {c:.2f} ms + {1000 * d:.2f} ms per 1,000 tokens{bend}"
        )
        yield (
            f"  {fitted.pulls} pulls of {fitted.pulled_range[0]} to {fitted.pulled_range[1]} "
            f"tokens, {fitted.prefills} prefills, {fitted.conversations} conversations, "
            f"{fitted.outliers} outlier(s) left out"
        )
    budget, ttl = tuned.budget, tuned.ttl
    if budget is not None and ttl.pinned_tokens is not None and ttl.peak_tokens is not None:
        yield (
            f"Pinned on D: {ttl.pinned_tokens:.0f} tokens on average, at most "
            f"{ttl.peak_tokens:.0f} in 95 % of moments; {budget.tokens:.0f} may be "
            f"({budget.capacity_tokens} tokens, share {budget.pin_share:g}, "
            f"{budget.turns_per_s:.3g} turns/s, {budget.returning_share:.0%} of them return)"
        )
