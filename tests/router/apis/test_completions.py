"""Completions: prompts without messages."""

from typing import Any

import pytest

from runtime.router.apis.completions import COMPLETIONS
from runtime.router.failure import RequestFailed


@pytest.mark.parametrize("body", [{"prompt": "hi"}, {"prompt": [1, 2]}, {"prompt_embeds": "x"}])
def test_prompts_that_can_be_served(body: dict[str, Any]) -> None:
    """Text, token ids, and embeddings pass."""
    COMPLETIONS.check(body)


@pytest.mark.parametrize("prompt", [None, "", [], 0, 7, False, {"text": "hi"}], ids=str)
def test_prompt_that_is_none_is_refused(prompt: Any) -> None:
    """The refusal is a 400 that names the field."""
    with pytest.raises(RequestFailed, match="token ids") as told:
        COMPLETIONS.check({"prompt": prompt})
    assert (told.value.status, told.value.param) == (400, "prompt")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": [True]},
        {"prompt": "a", "prompt_embeds": "x"},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "n": 2},
        {"prompt": "a", "echo": True},
        {"prompt": "a", "best_of": 3},
    ],
    ids=str,
)
def test_what_two_legs_cannot_serve_goes_to_one(body: dict[str, Any]) -> None:
    """One P dict belongs to one prompt and one answer."""
    assert COMPLETIONS.why_direct(body)


@pytest.mark.parametrize("prompt", ["a", [1, 2, 3]], ids=str)
def test_one_prompt_takes_both_legs(prompt: Any) -> None:
    """Text or token ids are served over P and D."""
    assert COMPLETIONS.why_direct({"prompt": prompt, "n": 1}) is None


def test_answer_is_the_text() -> None:
    """The canary compares it; streamed and whole are the same."""
    assert COMPLETIONS.history is None
    answering = COMPLETIONS.answering()
    answering.add([{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}])
    assert answering.message() == COMPLETIONS.answer_of({"choices": [{"text": "ab"}]})
    assert COMPLETIONS.answer_of({"choices": []}) is None
