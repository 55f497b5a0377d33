"""One recorded message: read, checked, and reduced to what is sent. Pure."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from runtime.bench.turn import Message
from runtime.errors import Problem

ROLES = ("system", "developer", "user", "assistant", "tool")
SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant"),
    "system": "system",
}
MOST_THINK_S = 86_400
_SHOWN_CHARACTERS = 80


class Unusable(Exception):
    """A conversation cannot be played; its problem names the place."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.field)
        self.problem = problem


def refuse(place: str, got: str, allowed: str, fix: str) -> NoReturn:
    """Raise Unusable."""
    raise Unusable(Problem(place, got, allowed, fix))


def shown(value: object) -> str:
    """A value for a message, not too long."""
    told = repr(value)
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[:_SHOWN_CHARACTERS]}..."


def of_sharegpt(raw: object, place: str) -> Message:
    if not isinstance(raw, Mapping) or not {"from", "value"} <= raw.keys():
        refuse(place, shown(raw), "an object with from and value", "correct it")
    role = SHAREGPT_ROLES.get(raw["from"]) if isinstance(raw["from"], str) else None
    if role is None:
        allowed = f"one of {', '.join(SHAREGPT_ROLES)}"
        refuse(f"{place}.from", shown(raw["from"]), allowed, "convert it to OpenAI messages")
    return {"role": role, "content": raw["value"]}


def cleaned(raw: object, place: str) -> Message:
    """What is sent of a message."""
    if not isinstance(raw, Mapping):
        refuse(place, shown(raw), "an object with role and content", "correct it")
    role, content, calls = raw.get("role"), raw.get("content"), raw.get("tool_calls") or []
    if role not in ROLES:
        fix = "write functions as tool_calls and role tool" if role == "function" else "correct it"
        refuse(f"{place}.role", shown(role), f"one of {', '.join(ROLES)}", fix)
    if content is None and calls:
        content = ""
    if not isinstance(content, str) and not _is_parts(content):
        allowed = "a text, or a list of text parts"
        refuse(f"{place}.content", shown(content), allowed, "leave out what is no text")
    message: Message = {"role": role, "content": content}
    if role == "assistant" and calls:
        message["tool_calls"] = _calls(calls, place)
    message |= {key: raw[key] for key in ("name", "tool_call_id") if isinstance(raw.get(key), str)}
    if not is_unicode(message):
        refuse(place, shown(message), "valid Unicode", "leave out lone surrogates")
    return message


def _calls(raw: object, place: str) -> list[dict[str, Any]]:
    """Tool calls as an engine takes them: with ids, and arguments as the text of an object."""
    if not isinstance(raw, list):
        refuse(f"{place}.tool_calls", shown(raw), "a list", "correct it")
    calls = []
    for at, call in enumerate(raw):
        here = f"{place}.tool_calls[{at}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            refuse(
                here,
                shown(call),
                "an object with function.name and function.arguments",
                "correct it",
            )
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments)
        if not _is_object(arguments):
            fix = "engines refuse others: correct it"
            refuse(f"{here}.function.arguments", shown(arguments), "the text of a JSON object", fix)
        call_id = call.get("id")
        calls.append(
            {
                "id": call_id if isinstance(call_id, str) else here,
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return calls


def think_s_of(raw: Mapping[str, Any], place: str) -> float:
    seconds = raw.get("think_s", 0.0)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MOST_THINK_S:
        allowed = f"seconds in 0..{MOST_THINK_S}"
        refuse(f"{place}.think_s", shown(seconds), allowed, "correct it, or leave it out")
    return float(seconds)


def _is_parts(content: object) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, Mapping)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
        for part in content
    )


def text_of(content: Any) -> str:
    """A message's text: it may be a list of parts."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _is_object(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def is_unicode(value: object) -> bool:
    """Whether a JSON value can be sent: JSON may hold halves of characters."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
