"""POST /v1/responses: items in, items out. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.router.apis.api import Api, check_list, role_of, text_of
from runtime.router.conversation import Message, call_part, merged


def _check(body: Mapping[str, Any]) -> None:
    if not isinstance(body.get("input"), str) or not body["input"]:
        check_list(body, "input")


def _item(raw: Mapping[str, Any]) -> Message | None:
    match raw.get("type", "message"):
        case "message":
            parts: list[Any] = []
            text = text_of(raw.get("content"), parts).strip()
            return Message(role_of(raw), text, tuple(parts))
        case "function_call":
            return Message("assistant", "", (call_part(raw.get("name"), raw.get("arguments")),))
        case "function_call_output":
            return Message("tool", "", (raw.get("output"),))
        case "reasoning":
            return None  # clients may leave it out; templates mostly do
        case _:
            return Message("other", "", (dict(raw),))


def _history(body: Mapping[str, Any]) -> list[Message]:
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if body.get("instructions"):
        items = [{"role": "system", "content": body["instructions"]}, *items]
    return merged([item for item in map(_item, items) if item is not None])


def _why_direct(body: Mapping[str, Any]) -> str | None:
    for field in ("previous_response_id", "previous_input_messages", "prompt"):
        if body.get(field):
            return f"{field}: the decode node that stores it has the history"
    return "it runs in the background" if body.get("background") else None


def _answer_of(reply: Mapping[str, Any]) -> Message | None:
    output = reply.get("output")
    if not isinstance(output, list):
        return None
    items = [_item(item) for item in output if isinstance(item, dict)]
    answer = merged([item for item in items if item is not None])
    return answer[0] if len(answer) == 1 and answer[0].role == "assistant" else None


class _ResponseAnswer:
    """The last event of a streamed response has all of it."""

    def __init__(self) -> None:
        self._answer: Message | None = None

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            if event.get("type") in ("response.completed", "response.incomplete"):
                reply = event.get("response")
                self._answer = _answer_of(reply) if isinstance(reply, dict) else None

    def message(self) -> Message | None:
        return self._answer


RESPONSES = Api(
    path="/v1/responses",
    check=_check,
    history=_history,
    shape_fields=("model", "tools", "reasoning", "cache_salt", "chat_template_kwargs"),
    why_direct=_why_direct,
    length_fields=("max_output_tokens", "max_tool_calls"),
    one_token={"stream": False, "store": False, "max_output_tokens": 1},
    not_for_prefill=frozenset(
        {"stop", "top_logprobs", "include", "max_tool_calls", "background", "stream_options"}
    ),
    answer_of=_answer_of,
    answering=_ResponseAnswer,
    error_event=b"event: error\n",
)
