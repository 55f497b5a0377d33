"""What a run has shown. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.bench.bars import Bars, missed
from runtime.bench.render.data import good
from runtime.bench.stats import percentile
from runtime.bench.turn import ARMS, Arm, TurnResult
from runtime.contract import operations as names
from runtime.contract.operations import Metric
from runtime.errors import EngineDied

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MOST_TOLD = 6
"""Bars of each turn that are told."""
_FEW_FACTOR = 1.001
"""Bytes are summed as floats."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """How large a model's KV is.

    Attributes:
        bytes_per_token: over all layers, on all ranks together.
        block_size_tokens: what is moved is whole blocks.
        copies: how often ranks hold one head, where there are more ranks than heads.
    """

    bytes_per_token: int
    block_size_tokens: int
    copies: int = 1


def kv_size(
    config: Mapping[str, Any], dtype: str, block_size_tokens: int, tensor_parallel_size: int
) -> KvSize | None:
    """From a model's config.json; None where it does not say.

    Source:
        vLLM: keys and values of every layer and KV head, or, for multi-head latent
        attention, one latent and one rotary part a layer, on each rank (v1/kv_cache_interface.py).
    """
    text = config.get("text_config", config)
    stored = str(text.get("torch_dtype") or text.get("dtype") or "")
    size = _DTYPE_BYTES.get(stored if dtype == "auto" else dtype)
    layers = text.get("num_hidden_layers")
    heads = text.get("num_attention_heads")
    if not size or not layers or not heads:
        return None
    if latent := text.get("kv_lora_rank"):
        width = latent + text.get("qk_rope_head_dim", 0)
        return KvSize(layers * width * size, block_size_tokens, tensor_parallel_size)
    kv_heads = text.get("num_key_value_heads") or heads
    width = text.get("head_dim") or text.get("hidden_size", 0) // heads
    copies = max(1, tensor_parallel_size // kv_heads)
    return KvSize(2 * layers * kv_heads * width * size, block_size_tokens, copies)


def judge_transport(
    report: Mapping[str, Any], results: Sequence[TurnResult], size: KvSize | None
) -> dict[str, Any]:
    """Has KV moved between the engines, whole and without a failure?

    Args:
        report: of the run.
        results: its turns, all of them.
        size: of the model's KV; None: bytes are told and not judged.

    Returns:
        What was seen, as JSON.

    Raises:
        EngineDied: it has not.
    """
    problems = []
    failed = [each for each in results if not each.is_successful]
    if failed:
        problems.append(f"{len(failed)} of {len(results)} turns failed: {failed[0].error}")
    later = [each for each in results if each.arm == "bidirectional" and each.turn > 1]
    cold = [each for each in later if not (each.receipt and each.receipt.pulled_tokens)]
    if not later or cold:
        told = {each.receipt.reason if each.receipt else str(each.path) for each in cold} or {
            "none was played"
        }
        problems.append(
            f"{len(cold)} of {len(later)} later turns pulled nothing from D: {', '.join(told)}"
        )
    counters = report.get("engine") or {}
    for role in ("prefill", "decode"):
        problems += _counted(role, counters.get(role))
    moved = sum(_of(counters, role, "nixl_bytes") for role in ("prefill", "decode"))
    low, high = expected_bytes(results, size) if size else (0, 0)
    if size and not low / _FEW_FACTOR <= moved <= high * _FEW_FACTOR:
        problems.append(f"{moved:.0f} bytes were moved, {low} to {high} are those tokens' KV")
    if problems:
        raise EngineDied(
            "KV does not move between the engines as it should",
            got="; ".join(problems),
            allowed="every turn answered, every later one with tokens pulled; transfers on both "
            "roles, none failed; as many bytes as the tokens' KV has",
            fix="turnback doctor NAME --window-s 60 while turns run; docs/doctor.md",
        )
    return {
        "turns": len(results),
        "transfers": sum(_of(counters, role, "nixl_reads") for role in ("prefill", "decode")),
        "failed_transfers": 0,
        "bytes": moved,
        "expected_bytes": [low, high] if size else None,
    }


def _counted(role: str, counted: Mapping[str, float] | None) -> list[str]:
    if not counted:
        return [f"the {role} engines' counters cannot be read"]
    problems = []
    if not counted["nixl_reads"]:
        problems.append(f"no transfer was read by a {role} engine")
    if counted["failed_transfers"]:
        problems.append(f"{counted['failed_transfers']:.0f} transfers failed on {role} engines")
    return problems


def _of(counters: Mapping[str, Any], role: str, name: str) -> float:
    return float((counters.get(role) or {}).get(name) or 0)


def expected_bytes(results: Sequence[TurnResult], size: KvSize) -> tuple[int, int]:
    """Least and most bytes of the KV that receipts say was pulled: blocks are moved whole."""
    pulled = [
        receipt.pulled_tokens
        for each in results
        for receipt in (each.receipt, each.decode_receipt)
        if receipt is not None and receipt.pulled_tokens
    ]
    block = size.block_size_tokens
    low = sum(pulled) * size.bytes_per_token
    high = sum((-(-tokens // block) + 1) * block for tokens in pulled) * size.bytes_per_token
    return low, high * size.copies


def judge_exactness(report: Mapping[str, Any]) -> dict[str, Any]:
    """Do the answers of both arms agree, up to the noise of equal runs?

    Raises:
        EngineDied: they do not, or none could be compared.
    """
    found = report["exactness"]
    told = {name: found[name] for name in ("compared", "equal", "ties", "verdict")}
    told |= {"differences": len(found["differences"]), "again": found["again"]}
    if found["verdict"] not in ("equal", "within_noise"):
        raise EngineDied(
            "returned KV changes answers",
            got=", ".join(f"{name} {value}" for name, value in told.items()),
            allowed="verdict equal or within_noise",
            fix="turnback reuse off stops returns now; keep the run folder and report it",
        )
    return told


def summary(report: Mapping[str, Any], address: str, bars: Bars) -> dict[str, Any]:
    """The result in short, as it goes into messages: at most 2 kB.

    Args:
        report: of the run.
        address: where it lies.
        bars: of the user.
    """
    overall, exact = report["speedup"]["overall"], report["exactness"]
    told = {
        "mode": "validate",
        "complete": report["complete"],
        "speedup": {name: overall[name] for name in ("ratio", "ci95", "n")},
        "ttft_ms": {arm: _later_ttft(report, arm) for arm in ARMS},
        "pulled_share_percent": pulled_share_percent(report),
        "failed_turns": _failed(report),
        "answers": {"compared": exact["compared"], "different": len(exact["differences"])},
        "exactness": exact["verdict"],
        "report": address,
    }
    below = missed(report, bars)
    shown = [*below[:_MOST_TOLD], *(["and more"] if len(below) > _MOST_TOLD else [])]
    return {"verdict": names.BELOW_BAR if below else names.GOOD, "missed": shown, **told}


def _later_ttft(report: Mapping[str, Any], arm: Arm) -> dict[str, Any]:
    return _ttft([row for row in good(report, arm) if row["turn"] > 1])


def _ttft(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As the report's, to a microsecond."""
    ranks = {f"p{p}": percentile([row["ttft_ms"] for row in rows], p) for p in (50, 90)}
    shown = {name: None if ms is None else round(ms, 3) for name, ms in ranks.items()}
    return {"n": len(rows), **shown}


def pulled_share_percent(report: Mapping[str, Any]) -> float | None:
    """Prompt tokens that P pulled, of those of bidirectional later turns."""
    rows = [row for row in good(report, "bidirectional") if row["turn"] > 1]
    prompt = sum(row["prompt_tokens"] or 0 for row in rows)
    pulled = sum(row["pulled_tokens"] or 0 for row in rows)
    return round(100 * pulled / prompt, 2) if prompt else None


def _failed(report: Mapping[str, Any]) -> int:
    return sum(row["outcome"] in ("errored", "incomplete") for row in report["requests"])


Datum = tuple[Metric, dict[str, str], float]
"""A metric, its dimensions beside the deployment, and its value."""


def metrics(report: Mapping[str, Any]) -> list[Datum]:
    """What a run puts into CloudWatch; what could not be had is left out."""
    overall, exact = report["speedup"]["overall"], report["exactness"]
    low, high = overall["ci95"] or (None, None)
    counters = report.get("engine") or {}

    def total(name: str) -> float:
        return sum(_of(counters, role, name) for role in ("prefill", "decode"))

    found: list[tuple[Metric, dict[str, str], float | None]] = [
        (names.SPEED_UP, {}, overall["ratio"]),
        (names.SPEED_UP_LOW, {}, low),
        (names.SPEED_UP_HIGH, {}, high),
        (names.PULLED_SHARE, {}, pulled_share_percent(report)),
        (names.FAILED_TURNS, {}, _failed(report)),
        (names.ANSWERS_COMPARED, {}, exact["compared"]),
        (names.ANSWERS_DIFFERENT, {}, len(exact["differences"])),
        (names.FAILED_TRANSFERS, {}, total("failed_transfers") if counters else None),
        (names.TRANSFERRED_BYTES, {}, total("nixl_bytes") if counters else None),
    ]
    for arm in report["arms"]:
        for turn in names.TURNS:
            ttft = _ttft([row for row in good(report, arm) if (row["turn"] == 1) == (turn == "1")])
            at = {names.ARM: arm, names.TURN: turn}
            found += [(names.TTFT_P50, at, ttft["p50"]), (names.TTFT_P90, at, ttft["p90"])]
    return [(metric, at, float(value)) for metric, at, value in found if value is not None]
