"""Clients that change what was said before: regenerated, trimmed or corrected histories. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.distributions import chosen


def with_edits(
    conversations: Sequence[Conversation], share: float, seed: int
) -> list[Conversation]:
    """Let a share of the turns from the second on change an earlier message.

    The message keeps its beginning, so that some of its KV can still be used. Warm-up
    conversations stay as they are. The same arguments give the same edits: both arms
    play the same list.

    Args:
        conversations: of a workload.
        share: of such turns, 0 to 1; the nearest whole number of them, at least one
            when it is above 0.
        seed: of which turns, and which earlier ones they change.
    """
    rng = np.random.default_rng(seed)
    places = [
        (at, turn)
        for at, conversation in enumerate(conversations)
        if not conversation.is_warmup
        for turn in range(1, len(conversation.turns))
    ]
    edited = chosen(rng, places, share)
    return [
        _edited(conversation, {turn for place, turn in edited if place == at}, rng)
        for at, conversation in enumerate(conversations)
    ]


def _edited(conversation: Conversation, edited: set[int], rng: np.random.Generator) -> Conversation:
    turns = list(conversation.turns)
    said = [turn.messages for turn in turns]
    for turn in sorted(edited):
        earlier = int(rng.integers(turn))
        said[earlier] = changed(said[earlier])
        turns[turn] = replace(turns[turn], edit=(earlier, said[earlier]))
    return replace(conversation, turns=tuple(turns))


def changed(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with another end of the last one's text."""
    *before, last = messages
    content: Any = last["content"]
    if isinstance(content, str):
        content = _changed_text(content)
    elif content:
        *parts, part = content
        content = [*parts, {**part, "text": _changed_text(part["text"])}]
    else:
        content = _changed_text("")
    return (*before, {**last, "content": content})


def _changed_text(text: str) -> str:
    """The same words, those of the second half the other way round; one more if that is alike."""
    words = text.split(" ")
    half = (len(words) + 1) // 2
    turned = " ".join([*words[:half], *reversed(words[half:])])
    return turned if turned != text else f"{text} again"
