"""Where a turn's prompt tokens came from, by P's receipt. Pure."""

from runtime.bench.turn import TurnResult


def split_pull(
    *, local_tokens: int, pulled_tokens: int, previous_prompt_tokens: int | None
) -> tuple[int, int]:
    """Split pulled tokens into (of the previous prompt, of the previous answer).

    Args:
        local_tokens: position of the first pulled token.
        pulled_tokens: how many were pulled from there.
        previous_prompt_tokens: prompt of the turn before; its answer follows it.
            None (no turn before): all count as prompt.
    """
    if previous_prompt_tokens is None:
        return pulled_tokens, 0
    prompt = min(pulled_tokens, max(0, previous_prompt_tokens - local_tokens))
    return prompt, pulled_tokens - prompt


def computed_tokens(result: TurnResult) -> int | None:
    """Prompt tokens that P computed: neither pulled nor in its own cache.

    None where P's receipt or the prompt's length is not known: then nobody has said.
    """
    if result.receipt is None or result.prompt_tokens is None:
        return None
    told = result.receipt
    return max(0, result.prompt_tokens - told.local_tokens - told.pulled_tokens)


def compute_s(result: TurnResult) -> float | None:
    """Seconds from P's first step for this prompt to its last; None where not known."""
    taken = None if result.receipt is None else result.receipt.stages_ms()["compute"]
    return None if taken is None else taken / 1000
