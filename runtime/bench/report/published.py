"""Our passes beside published figures, with each difference of set-up named. Pure."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from runtime.bench.folder import PassInfo
from runtime.bench.report.select import measured
from runtime.bench.turn import Arm, TurnResult
from runtime.contract.published import Published, PublishedRow

_TOLD_BELOW = ("baseline", "turn_1")
"""Facts of a published set-up that have a sentence of their own."""

Turns = tuple[PassInfo, Sequence[TurnResult]]


def published_comparison(
    published: Published | None, main: Turns, others: Sequence[Turns]
) -> dict[str, Any] | None:
    """The published rows beside ours.

    Means over all turns, the first too, since the published figures are such. `off_ms`
    is of the pass with the feature off on both servers, which is what the published
    baseline is; `one_way_ms` is of the main pass: the same fleet without the return.

    Args:
        published: figures of the main pass's profile; None: there are none.
        main: the pass with both arms.
        others: passes beside it.
    """
    if published is None or published.profile != main[0].profile.name:
        return None
    off = next((turns for turns in others if not turns[0].is_feature_on), None)
    return {
        "profile": published.profile,
        "rows": [_row(row, main[1], None if off is None else off[1]) for row in published.rows],
        "differences": _differences(published, main, off),
    }


def _row(
    row: PublishedRow, main: Sequence[TurnResult], off: Sequence[TurnResult] | None
) -> dict[str, Any]:
    point = row.own_prefix_tokens
    off_ms = None if off is None else _mean_ms(off, "one_way", point)
    on_ms = _mean_ms(main, "bidirectional", point)
    return {
        "own_prefix_tokens": point,
        "published": {
            "off_ms": row.off_ms,
            "on_ms": row.on_ms,
            "ratio": row.ratio,
        },
        "ours": {
            "off_ms": off_ms,
            "on_ms": on_ms,
            "one_way_ms": _mean_ms(main, "one_way", point),
            "ratio": off_ms / on_ms if off_ms and on_ms else None,
        },
    }


def _mean_ms(results: Sequence[TurnResult], arm: Arm, point: int) -> float | None:
    known = [r.ttft_ms for r in measured(results, arm) if r.point == point and r.ttft_ms]
    return fmean(known) if known else None


def _differences(published: Published, main: Turns, off: Turns | None) -> list[str]:
    """Sentences: what differs between their set-up and ours."""
    info, ours = main[0], _setup(main[0])
    lines = [
        f"{name}: published {theirs}, here {ours.get(name, 'not told')}"
        for name, theirs in published.setup.items()
        if name not in _TOLD_BELOW and theirs.lower() != ours.get(name, "not told").lower()
    ]
    if off is None:
        lines.append(
            "baseline: published with the feature off on both servers; here no such pass was run, "
            "one_way is the same fleet without the return"
        )
    else:
        lines.append(
            "baseline: published, and off_ms here, with the feature off on both servers; "
            "one_way is the same fleet without the return"
        )
        lines += _unlike(info, off[0])
    lines.append(
        "turn 1: in the means of this table, as published; in no speed-up elsewhere in this report"
    )
    return lines


def _unlike(on: PassInfo, off: PassInfo) -> list[str]:
    """What the pass with the feature off does not have in common with the main pass."""
    pairs = {
        "prefill prefix caching": (on.prefill_prefix_caching, off.prefill_prefix_caching),
        "workload": (on.workload, off.workload),
        "clients": (on.bench.clients, off.bench.clients),
        "repeats": (on.bench.repeats, off.bench.repeats),
    }
    return [
        f"{name}: {a} in the main pass, {b} in the pass with the feature off"
        for name, (a, b) in pairs.items()
        if a != b
    ]


def _setup(info: PassInfo) -> dict[str, str]:
    """Our set-up under the names of the published one; what nobody knows is left out."""
    serving, kv, work = info.profile.serving, info.profile.kv, info.profile.workload
    known = info.environment.items()
    told: dict[str, Any] = {
        **{name: value for name, value in known if isinstance(value, str | int | float)},
        "dtype": serving.dtype,
        "max_model_len": serving.max_model_len,
        "max_num_seqs": serving.max_num_seqs,
        "backends": ", ".join(kv.backends),
        "decoder_kv_blocks_ttl_s": f"{kv.decoder_kv_blocks_ttl_s:g}",
        "kv_recompute_threshold_tokens": kv.kv_recompute_threshold_tokens,
        "prefill_prefix_caching": "on" if info.prefill_prefix_caching else "off",
        "connector": "with verification",
        "conversations": work.conversations,
        "clients": info.bench.clients,
        "user_turns": work.turns,
        "user_tokens": work.user_tokens,
        "answer_tokens": f"{work.answer_tokens}, enforced",
        "common_prefix_tokens": work.common_prefix_tokens,
        "repeats": info.bench.repeats,
        "intervals": "95 %, by conversations",
        "outputs_compared": "yes",
        "settle_between_points_s": "0; the TTL and the router bound what stays pinned",
        "prefill_part_from": "receipts of the same turns, which add up",
    }
    return {name: str(value) for name, value in told.items()}
