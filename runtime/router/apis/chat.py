"""POST /v1/chat/completions. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.router.apis.api import Api, Texts, check_list, role_of, text_of
from runtime.router.conversation import Message, call_part


def _check(body: Mapping[str, Any]) -> None:
    check_list(body, "messages")


def _message(raw: Mapping[str, Any]) -> Message:
    parts: list[Any] = []
    text = text_of(raw.get("content"), parts).strip()
    calls = raw.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            parts.append(call_part(function.get("name"), function.get("arguments")))
    return Message(role_of(raw), text, tuple(parts))


def _history(body: Mapping[str, Any]) -> list[Message]:
    return [_message(raw) for raw in body["messages"]]


def several_answers(body: Mapping[str, Any]) -> str | None:
    """The children of one request would read a single P dict."""
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        return "several answers are asked for"
    if body.get("use_beam_search"):
        return "beams are asked for"
    if body.get("prompt_logprobs") is not None:
        return "prompt logprobs are asked for"
    if body.get("echo"):
        return "the prompt is to be echoed"
    return None


def _answer_of(reply: Mapping[str, Any]) -> Message | None:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    return _message({**message, "role": "assistant"}) if isinstance(message, dict) else None


class _ChatAnswer:
    """Deltas of a streamed chat completion."""

    def __init__(self) -> None:
        self._texts = Texts()

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                self._texts.text(delta.get("content"))
                for call in delta.get("tool_calls") or ():
                    function = call.get("function") or {}
                    self._texts.call(
                        call.get("index"), function.get("name"), function.get("arguments")
                    )
        self._texts.compact()

    def message(self) -> Message | None:
        text, calls = self._texts.joined()
        return Message("assistant", text.strip(), tuple(call_part(*call) for call in calls))


CHAT = Api(
    path="/v1/chat/completions",
    check=_check,
    history=_history,
    shape_fields=(
        *("model", "tools", "documents", "reasoning_effort", "cache_salt"),
        *("chat_template", "chat_template_kwargs", "add_generation_prompt"),
        *("continue_final_message", "add_special_tokens", "mm_processor_kwargs"),
    ),
    why_direct=several_answers,
    length_fields=("max_tokens", "max_completion_tokens", "min_tokens"),
    one_token={"stream": False, "max_tokens": 1},
    not_for_prefill=frozenset(
        {
            *("n", "stop", "min_tokens", "max_completion_tokens", "stream_options"),
            *("logprobs", "top_logprobs", "logprob_token_ids", "return_token_ids"),
        }
    ),
    answer_of=_answer_of,
    answering=_ChatAnswer,
)
