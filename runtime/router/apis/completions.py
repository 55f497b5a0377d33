"""POST /v1/completions: a prompt without messages. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.router.apis.api import Api, Texts
from runtime.router.apis.chat import CHAT, several_answers
from runtime.router.conversation import Message
from runtime.router.failure import bad_request


def _check(body: Mapping[str, Any]) -> None:
    prompt = body.get("prompt")
    if prompt in (None, "", []) and body.get("prompt_embeds") is None:
        raise bad_request(
            "the request has no prompt",
            got=f"prompt is {prompt!r}",
            allowed="prompt: a string, or a list of token ids",
            param="prompt",
        )
    if prompt is not None and not isinstance(prompt, str | list):
        raise bad_request(
            "the prompt cannot be read",
            got=type(prompt).__name__,
            allowed="prompt: a string, or a list of token ids",
            param="prompt",
        )


def _why_direct(body: Mapping[str, Any]) -> str | None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(type(item) is int for item in prompt):
        return "several prompts are given"
    if body.get("prompt_embeds") is not None:
        return "the prompt is given as embeddings"
    if body.get("suffix"):
        return "a suffix is given"
    return several_answers(body)


def _answer_of(reply: Mapping[str, Any]) -> Message | None:
    choices = reply.get("choices")
    return Message("assistant", str(choices[0].get("text"))) if choices else None


class _TextAnswer:
    """Texts of a streamed completion."""

    def __init__(self) -> None:
        self._texts = Texts()

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            for choice in event.get("choices") or ():
                self._texts.text(choice.get("text"))
        self._texts.compact()

    def message(self) -> Message | None:
        return Message("assistant", self._texts.joined()[0])


COMPLETIONS = Api(
    path="/v1/completions",
    check=_check,
    history=None,
    shape_fields=("model", "cache_salt", "add_special_tokens"),
    why_direct=_why_direct,
    length_fields=("max_tokens", "min_tokens"),
    one_token={"stream": False, "max_tokens": 1},
    not_for_prefill=CHAT.not_for_prefill | {"best_of", "echo"},
    answer_of=_answer_of,
    answering=_TextAnswer,
)
