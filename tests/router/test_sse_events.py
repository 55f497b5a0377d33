"""Joined frames: which may hold hidden fields, and what events they are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.router.sse import clean_frame, events_of, is_marked, next_marked, without_nulls

PLAIN = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b": keep-alive\n\n",
    b"event: x\r\ndata: 1\r\n\r\n",
    b"data: [DONE]\n\n",
)
MARKED = (
    b'data: {"a":1,"kv_transfer_params":{"x":1}}\n\n',
    b'data: {"turnback_x":1}\r\n\r\n',
)


@given(st.lists(st.sampled_from([*PLAIN, *MARKED]), max_size=8))
def test_marked_frames_are_found_one_by_one(frames: list[bytes]) -> None:
    """Every frame that may hold a hidden field is found, whole and alone, in order."""
    joined, found, start = b"".join(frames), [], 0
    while (bounds := next_marked(joined, start)) is not None:
        found.append(joined[slice(*bounds)])
        start = bounds[1]
    assert found == [frame for frame in frames if frame in MARKED]


def test_marked_rest_without_a_blank_line_is_found() -> None:
    """A stream's last frame may lack its blank line."""
    rest = b'data: {"turnback_x":1}'
    assert next_marked(PLAIN[0] + rest, 0) == (len(PLAIN[0]), len(PLAIN[0] + rest))


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (b'{"a":1,"kv_transfer_params":null}', b'{"a":1}'),
        (b'{"kv_transfer_params":null,"a":1}', b'{"a":1}'),
        (b'{"a":1,"kv_transfer_params":null,"b":2}', b'{"a":1,"b":2}'),
        (b'{"r":{"b":2,"kv_transfer_params":null}}', b'{"r":{"b":2}}'),
        (b'{"kv_transfer_params":null}', b'{"kv_transfer_params":null}'),
        (b'{"a":1,"kv_transfer_params":{}}', b'{"a":1,"kv_transfer_params":{}}'),
    ],
)
def test_null_handles_are_cut_out(raw: bytes, clean: bytes) -> None:
    """The rest stays JSON, byte by byte; what cannot be cut out so is still marked."""
    assert without_nulls(raw) == clean
    json.loads(clean)
    assert is_marked(clean) is (raw == clean)


@given(st.text(max_size=20))
def test_text_about_null_handles_is_left_alone(text: str) -> None:
    """Generated text may say anything."""
    said = f'{text},"kv_transfer_params":null,{text}'
    frame = b"data: " + json.dumps({"content": said}, separators=(",", ":")).encode() + b"\n\n"
    assert without_nulls(frame) == frame
    assert clean_frame(frame) == (frame, None)


def test_handle_within_a_response_is_taken_out() -> None:
    """The events of /v1/responses hold the whole response, and the handle within it."""
    event = {"type": "response.completed", "response": {"id": "r", "kv_transfer_params": {"x": 1}}}
    frame, params = clean_frame(b"data: " + json.dumps(event).encode() + b"\n\n")
    assert params == {"x": 1}
    assert json.loads(frame[6:]) == {"type": "response.completed", "response": {"id": "r"}}


def deltas(*texts: str, **more: object) -> bytes:
    """Chat frames as vLLM writes them."""
    return b"".join(
        b"data: "
        + json.dumps(
            {"choices": [{"index": 0, "delta": {"content": text}, **more}]}, separators=(",", ":")
        ).encode()
        + b"\n\n"
        for text in texts
    )


def text_of(frames: bytes) -> str:
    """The text that all events add up to."""
    choices = [choice for event in events_of(frames) for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content", "") for choice in choices)


@given(st.lists(st.text(max_size=8), max_size=5))
def test_deltas_add_up_to_the_text(texts: list[str]) -> None:
    """Quotes, backslashes, braces and line ends in the text change nothing."""
    assert text_of(deltas(*texts)) == "".join(texts)
    assert text_of(deltas(*texts, finish_reason=None) + b"data: [DONE]\n\n") == "".join(texts)


def test_text_that_looks_like_a_delta_is_text() -> None:
    """A model may write about this very format."""
    texts = ['"delta":{"content":"x"}', '\\"delta":{', "}"]
    assert text_of(deltas(*texts)) == "".join(texts)


def test_events_with_more_than_text_are_kept_whole() -> None:
    """A tool call among text deltas loses nothing of either."""
    call = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n'
    events = events_of(deltas("a", "b") + call)
    assert events[-1]["choices"][0]["delta"]["tool_calls"] == [{"index": 0}]
    assert text_of(deltas("a", "b") + call) == "ab"


@pytest.mark.parametrize(
    ("frames", "events"),
    [
        (b'event: x\r\ndata: {"a":1}\r\n\r\ndata:{"b":2}\n\n', [{"a": 1}, {"b": 2}]),
        (b": note\n\ndata: [DONE]\n\ndata: 7\n\n", []),
        (b'data: {"a":1', []),
        (b"", []),
    ],
)
def test_events_are_the_json_objects(frames: bytes, events: list[object]) -> None:
    """Comments, names and data that is no object are left out; nonsense gives none."""
    assert events_of(frames) == events
