"""What the router has to know of a client API. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.router.conversation import Message
from runtime.router.failure import bad_request

Body = dict[str, Any]


class Answering(Protocol):
    """Puts an answer together from the events of its stream."""

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take the next events, in order."""

    def message(self) -> Message | None:
        """The whole answer; None when it cannot be told."""


@dataclass(frozen=True, slots=True)
class Api:
    """One endpoint of the engines.

    Attributes:
        path: on the engines and on the router.
        check: raises RequestFailed for a body that no leg can be made of.
        history: the conversation so far; None where prompts are no messages.
        shape_fields: fields besides the history that shape the prompt.
        why_direct: why a request goes to D alone; None when it takes both legs.
        length_fields: limits of the answer; counts >= 0, or absent.
        one_token: fields that make the prefill leg compute one token, whole.
        not_for_prefill: fields that would reject, prolong or fatten that leg.
        answer_of: the answer in a whole reply; None when it cannot be told.
        answering: a new Answering for a streamed reply.
        adjust_prefill: changes the prefill leg's body further.
        error_event: what stands before the data of an error event in a stream.
    """

    path: str
    check: Callable[[Mapping[str, Any]], None]
    history: Callable[[Mapping[str, Any]], list[Message]] | None
    shape_fields: tuple[str, ...]
    why_direct: Callable[[Mapping[str, Any]], str | None]
    length_fields: tuple[str, ...]
    one_token: Mapping[str, Any]
    not_for_prefill: frozenset[str]
    answer_of: Callable[[Mapping[str, Any]], Message | None]
    answering: Callable[[], Answering]
    adjust_prefill: Callable[[Body], None] = lambda _leg: None
    error_event: bytes = b""

    def shape(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What shapes the prompt besides the history."""
        shape = {name: body[name] for name in self.shape_fields if name in body}
        return {"path": self.path, **shape}

    def greedy(self, body: Mapping[str, Any]) -> bool:
        """Whether the same prompt must give the same answer."""
        return body.get("temperature") == 0


def check_list(body: Mapping[str, Any], field: str) -> None:
    """Refuse a body whose messages are no non-empty list of objects."""
    items = body.get(field)
    if not isinstance(items, list) or not items:
        raise bad_request(
            f"the request has no {field}",
            got=f"{field} is {'empty' if items == [] else type(items).__name__}",
            allowed=f"{field}: a non-empty list",
            param=field,
        )
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            raise bad_request(
                f"{field}[{at}] is not an object",
                got=type(item).__name__,
                allowed=f"{field}: a list of objects",
                param=f"{field}[{at}]",
            )


def role_of(raw: Mapping[str, Any]) -> str:
    """Who speaks; whatever is no text is left to the engine to refuse."""
    role = raw.get("role")
    return role if isinstance(role, str) else "?"


def text_of(content: Any, parts: list[Any]) -> str:
    """The text of a message's content; what is not text is appended to `parts`.

    Args:
        content: a string, or a list of text and other parts.
        parts: takes the others as they are.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
        else:
            parts.append(part)
    return "".join(texts)


class Texts:
    """Text and tool calls that come in pieces."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._calls: dict[Any, list[str]] = {}

    def text(self, piece: Any) -> None:
        """Take a piece of the text."""
        if isinstance(piece, str):
            self._texts.append(piece)

    def call(self, key: Any, name: Any, arguments: Any) -> None:
        """Take a piece of a tool call; `key` tells calls apart."""
        call = self._calls.setdefault(key, ["", ""])
        call[0] += name if isinstance(name, str) else ""
        call[1] += arguments if isinstance(arguments, str) else ""

    def compact(self) -> None:
        """Join what has come: a long answer then takes the memory of its text alone."""
        self._texts = ["".join(self._texts)]

    def joined(self) -> tuple[str, list[list[str]]]:
        """The text, and [name, arguments] of each call in order of appearance."""
        return "".join(self._texts), list(self._calls.values())
