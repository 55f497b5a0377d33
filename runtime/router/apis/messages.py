"""POST /v1/messages, Anthropic's API. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.router.apis.api import Api, Body, Texts, check_list, role_of, text_of
from runtime.router.conversation import Message, call_part

_THINKING = ("thinking", "redacted_thinking")


def _check(body: Mapping[str, Any]) -> None:
    check_list(body, "messages")


def _message(role: str, content: Any) -> Message:
    if not isinstance(content, list):
        return Message(role, text_of(content, []).strip())
    parts: list[Any] = []
    texts: list[Any] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            parts.append(call_part(block.get("name"), block.get("input")))
        elif kind == "tool_result":
            parts.append(["result", text_of(block.get("content"), parts)])
        elif kind not in _THINKING:
            texts.append(block)
    return Message(role, text_of(texts, parts).strip(), tuple(parts))


def _history(body: Mapping[str, Any]) -> list[Message]:
    messages = [_message(role_of(raw), raw.get("content")) for raw in body["messages"]]
    if body.get("system"):
        messages.insert(0, _message("system", body["system"]))
    return messages


def _why_direct(_body: Mapping[str, Any]) -> str | None:
    return None


def _force_no_tool(leg: Body) -> None:
    """vLLM 0.32 and 0.33 fail on the cut arguments of a call that was forced.

    Where a template shows the choice, P's prompt is another; D then uses what is alike.
    """
    choice = leg.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("tool", "any"):
        leg["tool_choice"] = {"type": "none"}


def _answer_of(reply: Mapping[str, Any]) -> Message | None:
    content = reply.get("content")
    return _message("assistant", content) if isinstance(content, list) else None


class _MessageAnswer:
    """Content blocks of a streamed message."""

    def __init__(self) -> None:
        self._texts = Texts()

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            index = event.get("index")
            match event.get("type"):
                case "content_block_start":
                    block = event.get("content_block") or {}
                    if block.get("type") == "tool_use":
                        self._texts.call(index, block.get("name"), None)
                    else:
                        self._texts.text(block.get("text"))
                case "content_block_delta":
                    delta = event.get("delta") or {}
                    self._texts.text(delta.get("text"))
                    if "partial_json" in delta:
                        self._texts.call(index, None, delta["partial_json"])
        self._texts.compact()

    def message(self) -> Message | None:
        text, calls = self._texts.joined()
        parts = tuple(call_part(name, arguments or {}) for name, arguments in calls)
        return Message("assistant", text.strip(), parts)


MESSAGES = Api(
    path="/v1/messages",
    check=_check,
    history=_history,
    shape_fields=("model", "tools", "thinking", "cache_salt", "chat_template_kwargs"),
    why_direct=_why_direct,
    length_fields=("max_tokens",),
    one_token={"stream": False, "max_tokens": 1},
    not_for_prefill=frozenset({"stop_sequences"}),
    answer_of=_answer_of,
    answering=_MessageAnswer,
    adjust_prefill=_force_no_tool,
    error_event=b"event: error\n",
)
