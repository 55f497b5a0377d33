"""Responses: items in, items out."""

from typing import Any

import pytest

from runtime.router.apis.responses import RESPONSES
from runtime.router.conversation import Message

TEXT = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hm"}]}


def history(given: Any, **more: Any) -> list[Message]:
    assert RESPONSES.history is not None
    return RESPONSES.history({"input": given, **more})


def test_text_is_one_message_of_the_user() -> None:
    """A string, and a message with it, are the same; instructions stand before them."""
    item = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert history("hi") == history([item]) == [Message("user", "hi")]
    assert history("hi", instructions="be brief") == [
        Message("system", "be brief"),
        Message("user", "hi"),
    ]


@pytest.mark.parametrize(
    "output", [[TEXT], [REASONING, TEXT], [TEXT, CALL], [CALL], [CALL, {**CALL, "name": "g"}]]
)
@pytest.mark.parametrize("event", ["response.completed", "response.incomplete"])
def test_streamed_and_whole_answer_are_what_clients_send_back(
    output: list[dict[str, Any]], event: str
) -> None:
    """The last event, the whole reply and the next request's items give one message."""
    answering = RESPONSES.answering()
    answering.add([{"type": "response.created", "response": {"output": []}}])
    answering.add([{"type": "response.output_text.delta", "delta": "x"}])
    assert answering.message() is None
    answering.add([{"type": event, "response": {"output": output}}])
    (sent_back,) = history([item for item in output if item is not REASONING])
    assert answering.message() == RESPONSES.answer_of({"output": output}) == sent_back


def test_items_of_one_answer_are_one() -> None:
    """Text and calls of a turn are one message; ids and the spacing of arguments are nothing."""
    other = {**CALL, "id": "fc_2", "call_id": "d", "arguments": '{"a":1}'}
    assert history([TEXT, CALL]) == history([TEXT, REASONING, other])
    assert history([TEXT, CALL]) == [Message("assistant", "hello", (["call", "f", {"a": 1}],))]


def test_results_of_calls_count() -> None:
    """Another result is another history."""
    results = [
        history([CALL, {"type": "function_call_output", "call_id": "c", "output": output}])
        for output in ("1", "2", [{"type": "input_text", "text": "1"}])
    ]
    assert all(len(items) == 2 for items in results)
    assert results[0] != results[1] != results[2] != results[0]


def test_unknown_items_count() -> None:
    """What the router does not know is part of the history as it stands."""
    one, two = (history([{"type": "web_search_call", "id": id_}]) for id_ in ("a", "b"))
    assert one != two


@pytest.mark.parametrize(
    "reply", [{}, {"output": None}, {"output": []}, {"output": [REASONING]}, {"output": [7]}]
)
def test_reply_without_an_answer_has_none(reply: dict[str, Any]) -> None:
    """What cannot be told leaves no handle."""
    assert RESPONSES.answer_of(reply) is None


@pytest.mark.parametrize("field", ["previous_response_id", "prompt", "previous_input_messages"])
def test_history_that_a_node_stores_goes_to_that_node(field: str) -> None:
    """P cannot know what D has stored: one leg, and the reason names the field."""
    why = RESPONSES.why_direct({"input": "hi", field: "x"})
    assert why is not None
    assert field in why


def test_background_goes_to_one_node() -> None:
    """A reply that is only a promise carries no P dict."""
    assert RESPONSES.why_direct({"input": "hi", "background": True})
