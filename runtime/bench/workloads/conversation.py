"""One conversation of a workload, whatever it was made from. Pure."""

from dataclasses import dataclass
from typing import Any

from runtime.bench.turn import Message


@dataclass(frozen=True)
class PlannedTurn:
    """What a client sends in one turn, after what has been said so far.

    Attributes:
        messages: appended to the history and sent; a user message, or results of tools.
        answer_tokens: to generate, exactly.
        think_s: the client waits so long after the answer before.
        tool_calls: that the answer before is made to hold in the history, as the OpenAI
            field; results in `messages` answer them.
        said: the answer before, in place of the engine's; None: the engine's.
        edit: (index from 0 of an earlier turn, its messages from here on); None: nothing changes.
    """

    messages: tuple[Message, ...]
    answer_tokens: int
    think_s: float = 0.0
    tool_calls: tuple[dict[str, Any], ...] = ()
    said: str | None = None
    edit: tuple[int, tuple[Message, ...]] | None = None


@dataclass(frozen=True)
class Conversation:
    """One conversation; its answers come from the engine.

    Attributes:
        index: counts from 0, over the whole workload, warm-up conversations apart.
        opening: messages before the first turn's; a system message, or none.
        turns: in order, at least one.
        tools: as the OpenAI field; sent with every turn, with `tool_choice` none: engines
            without a tool parser refuse any other, and templates show them all the same.
        point: its prefix length in a sweep, in tokens; 0 where there is no sweep.
    """

    index: int
    is_warmup: bool
    opening: tuple[Message, ...]
    turns: tuple[PlannedTurn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    point: int = 0
