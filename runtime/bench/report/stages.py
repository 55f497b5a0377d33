"""Where a turn's TTFT went: the router's Server-Timing and the receipts of both nodes. Pure.

    client | queue take |        prefill leg        |      decode leg      | client
                        | P: queue pull compute |   | D: queue pull | step |

`queue` is waiting before P begins, `hand_over` all between P's end and D's first step
(P's reply, D's wait and its read of P's blocks; also P's HTTP and tokenising, which no
clock tells apart), `first_decode` D's HTTP, tokenising and first step.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from runtime.bench.stats import percentile
from runtime.bench.turn import TurnResult

STAGES = ("queue", "pull", "prefill", "hand_over", "first_decode")
"""They follow each other in this order and share no moment."""

SHARE, LEAST_MS = 0.05, 5.0
"""Stages and TTFT agree within the greater of the two."""


def stages_ms(result: TurnResult) -> dict[str, float] | None:
    """Milliseconds of STAGES, and `unattributed`: what the TTFT has beyond them.

    None where the router or a node has not told its times. After a leg that failed and
    was run again, the failed one's time is in `hand_over`.
    """
    router, prefill, decode = result.router_ms, result.receipt, result.decode_receipt
    if result.ttft_ms is None or prefill is None or decode is None:
        return None
    taken = prefill.stages_ms()
    if not {"queue", "prefill", "first_byte"} <= router.keys() or taken["compute"] is None:
        return None
    if prefill.finished_ms is None or decode.scheduled_ms is None:
        return None
    found = {
        # A turn that may not take a handle has no `take`.
        "queue": router["queue"] + router.get("take", 0.0) + (taken["queue"] or 0.0),
        "pull": taken["pull"] or 0.0,
        "prefill": taken["compute"],
        "hand_over": router["prefill"] - prefill.finished_ms + decode.scheduled_ms,
        "first_decode": router["first_byte"] - decode.scheduled_ms,
    }
    return found | {"unattributed": result.ttft_ms - sum(found.values())}


def is_within(ttft_ms: float, sum_ms: float) -> bool:
    """Whether the stages explain the TTFT."""
    return abs(ttft_ms - sum_ms) <= max(SHARE * ttft_ms, LEAST_MS)


def medians_ms(results: Iterable[TurnResult]) -> dict[str, float | None]:
    """Median of each stage, and of what is left over."""
    known = [found for result in results if (found := stages_ms(result)) is not None]
    return {
        name: percentile([found[name] for found in known], 50) for name in (*STAGES, "unattributed")
    }


def attribution(results: Sequence[TurnResult]) -> dict[str, Any]:
    """How many turns' stages add up to their TTFT, and which do not.

    Args:
        results: successful turns. One whose times were not told counts as not within.
    """
    left = []
    for result in results:
        if result.ttft_ms is None:
            continue
        found = stages_ms(result)
        sum_ms = None if found is None else result.ttft_ms - found["unattributed"]
        if sum_ms is None or not is_within(result.ttft_ms, sum_ms):
            left.append(
                {
                    "conversation": result.conversation,
                    "turn": result.turn,
                    "arm": result.arm,
                    "ttft_ms": result.ttft_ms,
                    "sum_ms": sum_ms,
                }
            )
    n = len(results)
    return {
        "n": n,
        "within": n - len(left),
        "share_within": (n - len(left)) / n if n else None,
        "unattributed": left,
    }
