"""What an engine can take of a conversation, and the warm-up that is made of others. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.bench.workloads.message import text_of

TEMPLATE_TOKENS = 8
"""Added to every message by a chat template, at most; Qwen's adds 5."""
TOOLS_TOKENS = 256
"""Added by a chat template that explains how tools are called."""
WARMUP_TURNS = 2
"""The second turn is the first that can take a handle."""


def fitting(
    conversation: Conversation, most_tokens: int, count: Callable[[str], int]
) -> Conversation | None:
    """Leave out the turns from the first on that does not fit.

    Args:
        conversation: as planned.
        most_tokens: of prompt and answer together.
        count: tokens of a text; asked only where the number of bytes does not decide.

    Returns:
        The conversation, shorter or as it was; None when its first turn does not fit.
    """
    if _kept(conversation, most_tokens, _bytes) == len(conversation.turns):
        return conversation
    kept = _kept(conversation, most_tokens, count)
    return replace(conversation, turns=conversation.turns[:kept]) if kept else None


def _kept(conversation: Conversation, most_tokens: int, count: Callable[[str], int]) -> int:
    total = sum(_size(message, count) for message in conversation.opening)
    if conversation.tools:
        total += count(json.dumps(conversation.tools)) + TOOLS_TOKENS
    answer = 0
    for at, turn in enumerate(conversation.turns):
        if turn.said is not None:
            answer = count(turn.said)
        calls = count(json.dumps(turn.tool_calls)) if turn.tool_calls else 0
        total += answer + calls + sum(_size(message, count) for message in turn.messages)
        total += TEMPLATE_TOKENS  # the answer's own
        answer = turn.answer_tokens
        if total + answer > most_tokens:
            return at
    return len(conversation.turns)


def _size(message: Message, count: Callable[[str], int]) -> int:
    return count(text_of(message["content"])) + TEMPLATE_TOKENS


def _bytes(text: str) -> int:
    """No tokenizer makes more tokens of a text."""
    return len(text.encode())


def warmup_of(conversations: Sequence[Conversation], count: int) -> list[Conversation]:
    """Warm-up conversations of the same shapes, with texts that no other conversation has.

    Every text has its words the other way round and a beginning of its own. Pauses are
    left out.

    Args:
        conversations: measured ones, at least one.
        count: how many; shapes repeat where there are fewer.
    """
    shapes = [each for each in conversations if len(each.turns) > 1] or list(conversations)
    return [_warmup(shapes[at % len(shapes)], at) for at in range(count)]


def _warmup(shape: Conversation, index: int) -> Conversation:
    def other(messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple({**each, "content": _other(each["content"], index)} for each in messages)

    turns = tuple(
        PlannedTurn(
            messages=other(turn.messages),
            answer_tokens=turn.answer_tokens,
            tool_calls=turn.tool_calls,
            said=None if turn.said is None else _other(turn.said, index),
        )
        for turn in shape.turns[:WARMUP_TURNS]
    )
    return replace(
        shape, index=index, is_warmup=True, opening=other(shape.opening), turns=turns, point=0
    )


def _other(content: Any, index: int) -> str:
    return " ".join([f"Warm-up {index}:", *reversed(text_of(content).split(" "))])
