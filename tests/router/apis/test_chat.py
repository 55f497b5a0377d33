"""Chat completions: histories, answers, and what goes to D alone."""

from collections.abc import Sequence
from typing import Any

import pytest

from runtime.router.apis.chat import CHAT
from runtime.router.conversation import Message, keys_of

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def history(*messages: dict[str, Any]) -> list[Message]:
    assert CHAT.history is not None
    return CHAT.history({"messages": list(messages)})


def streamed(deltas: Sequence[Any]) -> Message | None:
    """The answer out of these deltas."""
    answering = CHAT.answering()
    for delta in deltas:
        answering.add([{"choices": [{"index": 0, "delta": delta}]}])
    answering.add([{"choices": [], "usage": {}}])
    return answering.message()


def whole(message: dict[str, Any]) -> Message | None:
    """The answer out of a whole reply."""
    return CHAT.answer_of({"choices": [{"index": 0, "message": message}]})


@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": "hello"}], " hello\n"])
def test_content_may_be_text_or_parts(content: Any) -> None:
    """A string, its text part, and white space around it are the same message."""
    assert history({"role": "user", "content": content}) == [Message("user", "hello")]


def test_images_count() -> None:
    """Two messages that differ in an image are two."""
    image = {"type": "image_url", "image_url": {"url": "data:,1"}}
    other = {"type": "image_url", "image_url": {"url": "data:,2"}}
    one, two = (history({"role": "user", "content": [part]}) for part in (image, other))
    assert one != two


def test_ids_of_calls_do_not_count() -> None:
    """A call is told by name and arguments."""
    other = {**CALL, "id": "call_2", "index": 0}
    messages = [history({"role": "assistant", "tool_calls": [call]}) for call in (CALL, other)]
    assert messages[0] == messages[1]
    assert messages[0][0].parts == (["call", "f", {"a": 1}],)


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        (
            [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": " b"}],
            {"content": "a b"},
        ),
        ([{"content": " a "}], {"content": " a "}),
        (
            [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"content": "a"}],
            {"content": "a", "reasoning_content": "hm"},
        ),
        (
            [
                {"content": None, "tool_calls": [{"index": 0, **CALL, "function": {"name": "f"}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
                {"tool_calls": [{"index": 1, "function": {"name": "g", "arguments": "{}"}}]},
            ],
            {
                "content": None,
                "tool_calls": [CALL, {**CALL, "function": {"name": "g", "arguments": "{ }"}}],
            },
        ),
        ([{}], {"content": None}),
    ],
    ids=["text", "space", "reasoning", "calls", "nothing"],
)
def test_streamed_and_whole_answer_are_what_clients_send_back(
    deltas: list[Any], message: dict[str, Any]
) -> None:
    """Three ways to the same digest: the stream, the whole reply, and the next request."""
    (sent_back,) = history({"role": "assistant", **message})
    digests = {
        keys_of([answer], tenant="", conversation=None, shape={}).whole
        for answer in (streamed(deltas), whole(message), sent_back)
        if answer is not None
    }
    assert streamed(deltas) is not None
    assert whole(message) is not None
    assert len(digests) == 1


def test_reasoning_sent_back_or_left_out_is_the_same() -> None:
    """Templates strip it and clients may: the text is what names the turn."""
    message = {"role": "assistant", "content": "a"}
    assert history(message) == history({**message, "reasoning_content": "hm"})


@pytest.mark.parametrize(
    "reply", [{}, {"choices": []}, {"choices": [{}, {}]}, {"choices": [{}]}, {"choices": [7]}]
)
def test_reply_without_one_answer_has_none(reply: dict[str, Any]) -> None:
    """What cannot be told leaves no handle."""
    assert CHAT.answer_of(reply) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 2),
        ("use_beam_search", True),
        ("prompt_logprobs", 0),
        ("echo", True),
    ],
)
def test_what_two_legs_cannot_serve_goes_to_one(field: str, value: Any) -> None:
    """Several answers, or the prompt's own values, come from a D that computes it all."""
    assert CHAT.why_direct({field: value})


@pytest.mark.parametrize("body", [{"n": 1}, {"n": None}, {"echo": False}, {"logprobs": True}])
def test_ordinary_values_take_both_legs(body: dict[str, Any]) -> None:
    """Fields that say the default, or that D alone reads, change nothing."""
    assert CHAT.why_direct(body) is None
