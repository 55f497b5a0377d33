"""Recorded conversations, as OpenAI messages or as ShareGPT, into what a client plays. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.bench.workloads.message import (
    Unusable,
    cleaned,
    is_unicode,
    of_sharegpt,
    refuse,
    shown,
    text_of,
    think_s_of,
)
from runtime.contract.profile import WorkloadSpec
from runtime.errors import BadInput

LEAST_ANSWER_TOKENS = 2
"""A time per token needs two."""
_SHOWN_PROBLEMS = 5

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass
class _Answer:
    """What the assistant said between two turns; several messages of it are one answer."""

    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(text for text in self.texts if text)


@dataclass
class _Turn:
    """Messages that are sent together, and the answer that was recorded."""

    messages: list[Message] = field(default_factory=list)
    think_s: float = 0.0
    answer: _Answer | None = None


def read_conversations(
    items: Sequence[tuple[str, object]], source: str, workload: WorkloadSpec, count: Count
) -> list[Conversation]:
    """Turn recorded conversations into the measured ones of a workload.

    The engine's own answers make the history. A recorded one takes their place where
    `workload.answers` says so, or where tool results after it refer to its calls. Answers
    are as long as the recorded ones; `workload.answer_tokens` where none is recorded.

    Args:
        items: (place in the file, JSON value) of every conversation.
        source: the file's name, for messages.
        workload: how answers are made.
        count: tokens of a text.

    Raises:
        BadInput: conversations cannot be played; the first five are named.
    """
    built, problems = [], []
    for index, (place, item) in enumerate(items):
        try:
            built.append(_conversation(index, item, place, workload, count))
        except Unusable as unusable:
            problems.append(unusable.problem)
    if problems:
        shown = problems[:_SHOWN_PROBLEMS]
        raise BadInput(
            f"{source}: {len(problems)} of {len(items)} conversations cannot be played",
            got="; ".join(f"{each.field}: {each.got}" for each in shown),
            allowed="; ".join(dict.fromkeys(each.allowed for each in shown)),
            fix="; ".join(dict.fromkeys(each.fix for each in shown)),
        )
    return built


def _conversation(
    index: int, item: object, place: str, workload: WorkloadSpec, count: Count
) -> Conversation:
    messages, name = _messages(item, place)
    opening, turns = _split(messages, f"{place}.{name}")
    if name == "conversations":  # one that begins with an answer is the rest of another
        opening = [message for message in opening if message["role"] != "assistant"]
    if not turns:
        refuse(f"{place}.{name}", "no message of a user", "at least one", "leave it out")
    tools = item.get("tools") or () if isinstance(item, Mapping) else ()
    if not isinstance(tools, list | tuple) or not all(isinstance(each, dict) for each in tools):
        refuse(f"{place}.tools", shown(tools), "a list of OpenAI tools", "correct it")
    if not is_unicode(tools):
        refuse(f"{place}.tools", shown(tools), "valid Unicode", "leave out lone surrogates")
    answers = [None, *(turn.answer for turn in turns)]
    planned = [
        _planned(turn, before, workload, count)
        for turn, before in zip(turns, answers, strict=False)
    ]
    return Conversation(index, False, tuple(opening), tuple(planned), tuple(tools))


def _planned(
    turn: _Turn, before: _Answer | None, workload: WorkloadSpec, count: Count
) -> PlannedTurn:
    answer_tokens = workload.answer_tokens
    if turn.answer is not None:
        calls = json.dumps(turn.answer.calls) if turn.answer.calls else ""
        answer_tokens = max(count(turn.answer.text + calls), LEAST_ANSWER_TOKENS)
    is_answered = any(message["role"] == "tool" for message in turn.messages)
    planned = PlannedTurn(tuple(turn.messages), answer_tokens, turn.think_s)
    if before is None or not (is_answered or workload.answers == "recorded"):
        return planned
    return replace(planned, said=before.text, tool_calls=tuple(before.calls))


def _messages(item: object, place: str) -> tuple[list[Any], str]:
    """The list of messages and the name it has in the file; ShareGPT's become OpenAI's."""
    if not isinstance(item, Mapping):
        refuse(place, shown(item), "an object with messages or conversations", "correct it")
    if "messages" in item:
        messages, name = item["messages"], "messages"
    elif "conversations" in item:
        messages, name = item["conversations"], "conversations"
    else:
        got = f"an object with {', '.join(map(str, item)) or 'nothing'}"
        allowed = "an object with messages (OpenAI) or conversations (ShareGPT)"
        refuse(place, got, allowed, "see docs/workloads.md")
    if not isinstance(messages, list) or not messages:
        refuse(f"{place}.{name}", shown(messages), "a list of at least one message", "leave it out")
    if name == "messages":
        return messages, name
    turns = [of_sharegpt(raw, f"{place}.{name}[{at}]") for at, raw in enumerate(messages)]
    return turns, name


def _split(messages: list[Any], place: str) -> tuple[list[Message], list[_Turn]]:
    """What comes before the first user, and the turns."""
    opening: list[Message] = []
    turns: list[_Turn] = []
    open_calls: list[str] = []
    for at, raw in enumerate(messages):
        here = f"{place}[{at}]"
        message = cleaned(raw, here)
        if message["role"] == "tool":
            message["tool_call_id"] = _answered(message, open_calls, here)
        if not turns and message["role"] not in ("user", "tool"):
            opening.append(message)
        elif message["role"] == "assistant":
            answer = turns[-1].answer = turns[-1].answer or _Answer()
            answer.texts.append(text_of(message.get("content")))
            answer.calls.extend(message.get("tool_calls", ()))
            open_calls = [call["id"] for call in answer.calls]
        else:
            if not turns or turns[-1].answer is not None:
                turns.append(_Turn())
            turns[-1].messages.append(message)
            turns[-1].think_s += think_s_of(raw, here)
    return opening, turns


def _answered(message: Message, open_calls: list[str], place: str) -> str:
    """The id of the call that a tool's message answers; taken off the list."""
    call_id = message.get("tool_call_id", open_calls[0] if open_calls else None)
    if call_id not in open_calls:
        known = f"one of {', '.join(open_calls)}" if open_calls else "a call in the answer before"
        refuse(f"{place}.tool_call_id", shown(call_id), known, "record the call, or leave it out")
    open_calls.remove(call_id)
    return str(call_id)
