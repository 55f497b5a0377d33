"""Conversations with edited histories, out of a seed; and smaller ones that still fail. Pure."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

Message = dict[str, Any]

_CHARS = (
    *("\u00e9", "e\u0301", "na\u00efve", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u200b"),
    *("\u03a9\u2248\u00e7\u221a", "\ufb01", "\u00a0", "\u0645\u0631\u062d\u0628\u0627"),
    *("\u6f22\u5b57", "\t\t", "  "),
)
"""Texts that a tokenizer cuts otherwise than the words around them; some look alike."""

_SHARE_OF_EDITED_TURNS = 0.6
_MAX_TURNS = 8


@dataclass(frozen=True)
class Edit:
    """One change of the history before the next turn.

    Attributes:
        kind: a key of EDITS.
        seed: of its choices.
    """

    kind: str
    seed: int


@dataclass(frozen=True)
class Turn:
    """One turn: the edits of what was said, then a new message.

    Attributes:
        words: length of the new user message.
        answer_tokens: length of the answer.
    """

    edits: tuple[Edit, ...]
    words: int
    answer_tokens: int
    seed: int


@dataclass(frozen=True)
class Script:
    """A conversation; the answers in it come from the engines.

    Attributes:
        system_words: length of the system message.
    """

    system_words: int
    seed: int
    turns: tuple[Turn, ...]


class Texts:
    """Texts of a vocabulary's words, seeded.

    Args:
        words: plain words, each about one token.
    """

    def __init__(self, words: Sequence[str], seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - texts, not secrets
        self._words = words

    def text(self, count: int) -> str:
        """`count` words."""
        return "".join(f" {word}" for word in self.rng.choices(self._words, k=count))


def scripts(seed: int, turns: int) -> Iterator[Script]:
    """Conversations of `turns` turns in all.

    Args:
        seed: of everything.
        turns: the last conversation is cut to fit.
    """
    rng = random.Random(seed)  # noqa: S311
    while turns > 0:
        count = min(turns, rng.randint(4, _MAX_TURNS))
        turns -= count
        yield Script(
            system_words=rng.choice((40, 120, 250)),
            seed=rng.getrandbits(32),
            turns=tuple(_turn(rng, at) for at in range(count)),
        )


def _turn(rng: random.Random, at: int) -> Turn:
    edits: tuple[Edit, ...] = ()
    if at and rng.random() < _SHARE_OF_EDITED_TURNS:
        kinds = rng.choices(list(EDITS), k=rng.choice((1, 1, 2)))
        edits = tuple(Edit(kind, rng.getrandbits(32)) for kind in kinds)
    return Turn(edits, rng.choice((0, 3, 20, 60)), rng.choice((2, 16, 33)), rng.getrandbits(32))


def _contents(messages: list[Message]) -> list[int]:
    return [at for at, one in enumerate(messages) if one["content"] and at]


def _span(rng: random.Random, content: str) -> tuple[int, int]:
    start = rng.randrange(len(content))
    return start, min(len(content), start + rng.randint(1, 40))


def _changed(
    messages: list[Message], texts: Texts, change: Callable[[str, int, int], str]
) -> list[Message]:
    """One message's content, changed at a span; the system message is left alone mostly."""
    places = _contents(messages)
    if texts.rng.random() < 0.1:
        places.append(0)
    if not places:
        return messages
    at = texts.rng.choice(places)
    content = messages[at]["content"]
    edited = messages[at] | {"content": change(content, *_span(texts.rng, content))}
    return [*messages[:at], edited, *messages[at + 1 :]]


def _insert(messages: list[Message], texts: Texts) -> list[Message]:
    return _changed(messages, texts, lambda c, at, _: c[:at] + texts.text(3) + c[at:])


def _delete(messages: list[Message], texts: Texts) -> list[Message]:
    return _changed(messages, texts, lambda c, at, end: c[:at] + c[end:])


def _replace(messages: list[Message], texts: Texts) -> list[Message]:
    return _changed(messages, texts, lambda c, at, end: c[:at] + texts.text(2) + c[end:])


def _truncate(messages: list[Message], texts: Texts) -> list[Message]:
    return _changed(messages, texts, lambda c, at, _: c[:at])


def _unicode(messages: list[Message], texts: Texts) -> list[Message]:
    return _changed(messages, texts, lambda c, at, _: c[:at] + texts.rng.choice(_CHARS) + c[at:])


def _regenerate(messages: list[Message], _: Texts) -> list[Message]:
    """Ask for the last answer again: the prompt is shorter than the handle."""
    return messages[:-1] if messages[-1]["role"] == "assistant" else messages


def _forget(messages: list[Message], texts: Texts) -> list[Message]:
    """Drop the oldest exchange, as clients do that cut their history."""
    start = texts.rng.choice((1, 3))
    return [messages[0], *messages[start + 2 :]] if len(messages) > start + 2 else messages


def _swap_roles(messages: list[Message], texts: Texts) -> list[Message]:
    if len(messages) < 3:
        return messages
    at = texts.rng.randrange(1, len(messages) - 1)
    mine, other = messages[at], messages[at + 1]
    if {mine["role"], other["role"]} != {"user", "assistant"}:
        return messages
    swapped = [mine | {"role": other["role"]}, other | {"role": mine["role"]}]
    return [*messages[:at], *swapped, *messages[at + 2 :]]


def _strip_reasoning(messages: list[Message], texts: Texts) -> list[Message]:
    """Cut the start of an earlier answer, as reasoning templates do."""
    answers = [at for at in _contents(messages) if messages[at]["role"] == "assistant"]
    if not answers:
        return messages
    at = texts.rng.choice(answers)
    content = messages[at]["content"]
    kept = content[texts.rng.randrange(len(content)) :]
    return [*messages[:at], messages[at] | {"content": kept}, *messages[at + 1 :]]


def _empty(messages: list[Message], texts: Texts) -> list[Message]:
    at = texts.rng.randrange(1, len(messages) + 1)
    role = texts.rng.choice(("user", "assistant"))
    return [*messages[:at], {"role": role, "content": ""}, *messages[at:]]


def _tool_call(messages: list[Message], texts: Texts) -> list[Message]:
    """The model's answer is followed by a call and its result."""
    name = f"call_{texts.rng.getrandbits(16)}"
    arguments = f'{{"q": "{texts.text(4)}"}}'
    call = {"id": name, "type": "function", "function": {"name": "find", "arguments": arguments}}
    return [
        *messages,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": texts.text(12), "tool_call_id": name},
    ]


EDITS: dict[str, Callable[[list[Message], Texts], list[Message]]] = {
    "insert": _insert,
    "delete": _delete,
    "replace": _replace,
    "truncate": _truncate,
    "unicode": _unicode,
    "regenerate": _regenerate,
    "forget": _forget,
    "swap_roles": _swap_roles,
    "strip_reasoning": _strip_reasoning,
    "empty": _empty,
    "tool_call": _tool_call,
}


def first_messages(script: Script, words: Sequence[str]) -> list[Message]:
    """The system message."""
    return [{"role": "system", "content": Texts(words, script.seed).text(script.system_words)}]


def next_messages(history: list[Message], turn: Turn, words: Sequence[str]) -> list[Message]:
    """The messages of a turn: the history, edited, and the new message.

    Args:
        history: all that was said, the last answer included.
        turn: what to do.
        words: the vocabulary.
    """
    messages = history
    for edit in turn.edits:
        messages = EDITS[edit.kind](messages, Texts(words, edit.seed))
    if any(edit.kind == "regenerate" for edit in turn.edits) and messages[-1]["role"] == "user":
        return messages
    return [*messages, {"role": "user", "content": Texts(words, turn.seed).text(turn.words)}]


def smaller(script: Script) -> Iterator[Script]:
    """The script with one turn or one edit less, or with shorter texts."""
    for at, turn in enumerate(script.turns):
        rest = (*script.turns[:at], *script.turns[at + 1 :])
        if rest:
            yield replace(script, turns=rest)
        for edit in range(len(turn.edits)):
            edits = (*turn.edits[:edit], *turn.edits[edit + 1 :])
            less = replace(turn, edits=edits)
            yield replace(script, turns=(*script.turns[:at], less, *script.turns[at + 1 :]))


async def shrink(
    script: Script, fails: Callable[[Script], Awaitable[bool]], *, tries: int
) -> Script:
    """Drop turns and edits while the script still fails.

    Args:
        script: one that fails.
        fails: plays a script.
        tries: most scripts to play.
    """
    while True:
        for candidate in smaller(script):
            if not tries:
                return script
            tries -= 1
            if await fails(candidate):
                script = candidate
                break
        else:
            return script
