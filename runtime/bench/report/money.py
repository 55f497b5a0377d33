"""What prefill costs, and what the return saves. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from runtime.bench.report.select import Pair
from runtime.bench.report.tokens import compute_s, computed_tokens
from runtime.bench.turn import TurnResult
from runtime.contract.bench import Price

_FIGURES = ("prefill_tokens", "prefill_gpu_s", "prefill_usd")


def prefill_cost(results: Iterable[TurnResult], price: Price) -> dict[str, float | None]:
    """Tokens that P computed, its GPUs' seconds for them, and their price.

    Args:
        results: turns; of one without P's receipt nothing is counted.
        price: of a node, all of whose GPUs work on each prompt.
    """
    known = list(results)
    tokens = sum(computed_tokens(result) or 0 for result in known)
    seconds = sum(compute_s(result) or 0.0 for result in known)
    hourly = price.usd_per_node_hour
    return {
        "prefill_tokens": tokens,
        "prefill_gpu_s": seconds * price.gpus_per_node,
        "prefill_usd": None if hourly is None else seconds / 3600 * hourly,
    }


def savings(pairs: Sequence[Pair], price: Price) -> dict[str, Any] | None:
    """One-way less bidirectional, over turns of which P has told both times what it did.

    Args:
        pairs: turns that both arms finished.
        price: of a node.

    Returns:
        None without such a turn.
    """
    told = [pair for pair in pairs if _is_told(pair.first) and _is_told(pair.second)]
    if not told:
        return None
    one_way = prefill_cost((pair.first for pair in told), price)
    both = prefill_cost((pair.second for pair in told), price)
    saved = {name: _less(one_way[name], both[name]) for name in _FIGURES}
    scale = 1000 / len(told)
    each = {name: None if value is None else value * scale for name, value in saved.items()}
    return {**saved, "per_1000_turns": each, "n": len(told)}


def _is_told(result: TurnResult) -> bool:
    return computed_tokens(result) is not None and compute_s(result) is not None


def _less(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second
