"""Messages, Anthropic's API: blocks in, blocks out."""

from typing import Any

import pytest

from runtime.router.apis.messages import MESSAGES
from runtime.router.conversation import Message

TEXT = {"type": "text", "text": "hello"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
BARE = {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "x"}


def history(*messages: dict[str, Any], **more: Any) -> list[Message]:
    assert MESSAGES.history is not None
    return MESSAGES.history({"messages": list(messages), **more})


def events(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A stream of these blocks, each in several pieces."""
    made: list[dict[str, Any]] = [{"type": "message_start", "message": {"content": []}}]
    for at, block in enumerate(blocks):
        start = block | {name: type(block[name])() for name in ("text", "input") if name in block}
        made.append({"type": "content_block_start", "index": at, "content_block": start})
        pieces: list[dict[str, Any]] = []
        if block["type"] == "text":
            pieces = [{"type": "text_delta", "text": piece} for piece in block["text"]]
        elif block["type"] == "thinking":
            pieces = [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta"}]
        elif block["input"]:
            pieces = [{"type": "input_json_delta", "partial_json": p} for p in ('{"a"', ": 1}")]
        made += [{"type": "content_block_delta", "index": at, "delta": piece} for piece in pieces]
        made.append({"type": "content_block_stop", "index": at})
    return [*made, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]


@pytest.mark.parametrize(
    "blocks",
    [[TEXT], [THINKING, TEXT], [TEXT, USE], [USE], [BARE], [TEXT, USE, BARE]],
    ids=["text", "thinking", "text and tool", "tool", "no input", "all"],
)
def test_streamed_and_whole_answer_are_what_clients_send_back(blocks: list[dict[str, Any]]) -> None:
    """The stream, the whole reply and the next request's blocks give one message."""
    answering = MESSAGES.answering()
    answering.add(events(blocks))
    (sent_back,) = history({"role": "assistant", "content": blocks})
    assert answering.message() == MESSAGES.answer_of({"content": blocks}) == sent_back


def test_answer_is_the_same_event_by_event() -> None:
    """How the events were gathered does not matter."""
    answering = MESSAGES.answering()
    for event in events([TEXT, USE]):
        answering.add([event])
    assert answering.message() == MESSAGES.answer_of({"content": [TEXT, USE]})


@pytest.mark.parametrize("content", ["hello", [TEXT], [THINKING, TEXT], " hello "], ids=str)
def test_content_may_be_text_or_blocks(content: Any) -> None:
    """A string, its block, and thinking left out or not are the same message."""
    assert history({"role": "assistant", "content": content}) == [Message("assistant", "hello")]


def test_system_stands_first() -> None:
    """As a string or as blocks; left out or empty it is none."""
    user = {"role": "user", "content": "hi"}
    expected = [Message("system", "hello"), Message("user", "hi")]
    assert history(user, system="hello") == history(user, system=[TEXT]) == expected
    assert history(user, system="") == history(user) == expected[1:]


def test_results_of_tools_count() -> None:
    """By their text, not by the call's id; another text is another history."""
    results = [
        history({"role": "user", "content": [{"type": "tool_result", **more}]})
        for more in (
            {"tool_use_id": "a", "content": "1"},
            {"tool_use_id": "b", "content": [{"type": "text", "text": "1"}]},
            {"tool_use_id": "a", "content": "2"},
        )
    ]
    assert results[0] == results[1] != results[2]


def test_images_count() -> None:
    """Two messages that differ in an image are two."""
    one, two = (
        history({"role": "user", "content": [{"type": "image", "source": {"data": data}}]})
        for data in ("1", "2")
    )
    assert one != two


def test_reply_without_content_has_no_answer() -> None:
    """What cannot be told leaves no handle."""
    assert MESSAGES.answer_of({"type": "error"}) is None
    assert MESSAGES.answer_of({"content": "x"}) is None
