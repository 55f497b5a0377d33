"""One turn of one arm: what is asked and what came of it."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from runtime.contract.bench import ARMS as ARMS
from runtime.contract.bench import Arm as Arm
from runtime.engine_api import Receipt

Outcome = Literal["successful", "errored", "incomplete", "aborted"]
"""`aborted`: the client left on purpose, as a share of clients does."""

Message = dict[str, Any]
"""An OpenAI chat message."""


@dataclass(frozen=True)
class TurnRequest:
    """One streamed chat request.

    Attributes:
        conversation: index of the conversation.
        turn: 1 for the first.
        messages: history and the new messages.
        answer_tokens: tokens to generate, exactly.
        allowed_token_ids: the only ids the answer may hold; empty: all.
        conversation_key: value of X-Conversation-ID and of cache_salt; one for all
            turns of a (conversation, arm), so that no arm uses the other's caches.
        timeout_s: longest time for the whole turn.
        tools: as the OpenAI field; empty: none.
        abort_after_tokens: the client leaves after so many; None: it stays.
        is_again: an A/A repeat of a one-way turn.
        is_edited: its history differs from what the turns before had.
        point: prefix length of the sweep that the conversation belongs to, in tokens.
        repeat: which repeat of the whole workload, from 0.
        block: which block of one arm, from 0.
        think_s: how long the client waited before it, on purpose.
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
    tools: tuple[dict[str, Any], ...] = ()
    abort_after_tokens: int | None = None
    is_again: bool = False
    is_edited: bool = False
    point: int = 0
    repeat: int = 0
    block: int = 0
    think_s: float = 0.0


@dataclass(frozen=True)
class TurnResult:
    """What one turn gave; nothing is dropped, whatever the outcome.

    Attributes:
        error: what went wrong; None when successful or aborted.
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
        is_again, is_edited, point, repeat, block, think_s: as in its TurnRequest.
        started_s: when it was sent, since the pass began.
        ended_s: when it was over, since the pass began.
        cached_tokens: prompt tokens that D's usage calls cached; None: not told.
        router_ms: the router's Server-Timing: `queue`, `take`, `prefill`, `first_byte`.
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
    is_again: bool = False
    is_edited: bool = False
    point: int = 0
    repeat: int = 0
    block: int = 0
    think_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    cached_tokens: int | None = None
    router_ms: dict[str, float] = field(default_factory=dict)

    @property
    def is_successful(self) -> bool:
        """Whether its times and tokens count."""
        return self.outcome == "successful"

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds per token after the first; None for fewer than two tokens."""
        if self.ttft_ms is None or self.e2e_ms is None or len(self.token_ids) < 2:
            return None
        return (self.e2e_ms - self.ttft_ms) / (len(self.token_ids) - 1)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return asdict(self)
