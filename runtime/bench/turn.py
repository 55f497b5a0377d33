"""One turn of one arm: what is asked and what came of it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from runtime.engine_api import Receipt

Arm = Literal["one_way", "bidirectional"]
ARMS: tuple[Arm, Arm] = ("one_way", "bidirectional")
"""Baseline first: ratios and differences are read from the first to the second."""

Outcome = Literal["successful", "errored", "incomplete"]
Message = dict[str, str]


@dataclass(frozen=True)
class TurnRequest:
    """One streamed chat request.

    Attributes:
        conversation: index of the conversation.
        turn: 1 for the first.
        messages: history and the new user message.
        answer_tokens: tokens to generate, exactly.
        allowed_token_ids: the only ids the answer may hold.
        conversation_key: value of X-Conversation-ID and of cache_salt; one for all
            turns of a (conversation, arm), so that no arm uses the other's caches.
        timeout_s: longest time for the whole turn.
    """

    conversation: int
    turn: int
    arm: Arm
    model: str
    messages: tuple[Message, ...]
    answer_tokens: int
    allowed_token_ids: tuple[int, ...]
    conversation_key: str
    timeout_s: float = 300.0


@dataclass(frozen=True)
class TurnResult:
    """What one turn gave; nothing is dropped, whatever the outcome.

    Attributes:
        error: what went wrong; None when successful.
        ttft_ms: from just before sending to the first chunk with a token; None
            unless successful.
        e2e_ms: to the end of the answer; None unless successful.
        prompt_tokens: as the engine counted them.
        token_ids: of the answer, length n.
        logprobs: of the chosen tokens, length n.
        top2: the best two logprobs at each position, best first, length n.
        receipt: what the prefill node did with a handle.
        path: how the router served the turn.
        decode_receipt: what the decode node did with the P dict.
    """

    conversation: int
    turn: int
    arm: Arm
    outcome: Outcome
    error: str | None
    ttft_ms: float | None
    e2e_ms: float | None
    prompt_tokens: int | None
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top2: tuple[tuple[float, ...], ...]
    receipt: Receipt | None
    path: str | None
    decode_receipt: Receipt | None = None

    @property
    def is_successful(self) -> bool:
        """Whether its times and tokens count."""
        return self.outcome == "successful"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return asdict(self)
