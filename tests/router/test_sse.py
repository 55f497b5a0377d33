"""Frames out of bytes, and what clients get to see of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.router.sse import FrameSplitter, clean_frame, clean_json

HANDLE = {"remote_engine_id": "e", "remote_blocks_expiry_time": 12345.678901234567}
FRAMES = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"a":1,"kv_transfer_params":null}\r\n\r\n',
    b": keep-alive\n\n",
    b"event: x\r\ndata: 1\r\n\r\n",
    b'data: {"b":[],"kv_transfer_params":{"remote_engine_id":"e"},"turnback_note":1}\n\n',
    b"data: [DONE]\n\n",
)


def split(stream: bytes, cuts: list[int]) -> tuple[list[bytes], bytes]:
    """Feed a stream in pieces; returns (frames, rest)."""
    splitter = FrameSplitter()
    ends = [*sorted(cuts), len(stream)]
    frames = []
    start = 0
    for end in ends:
        frames += FrameSplitter.split(splitter.feed(stream[start:end]))
        start = end
    return frames, splitter.rest()


@given(
    st.lists(st.sampled_from(FRAMES), max_size=8),
    st.lists(st.integers(0, 600), max_size=30),
    st.sampled_from([b"", b"data: cut o", b"\r", b"data: x\r\n"]),
)
def test_frames_do_not_depend_on_where_the_stream_is_cut(
    frames: list[bytes], cuts: list[int], rest: bytes
) -> None:
    """Whatever the chunks, the same frames come out and no byte is lost."""
    stream = b"".join(frames) + rest
    got, left = split(stream, [min(cut, len(stream)) for cut in cuts])
    assert got == frames
    assert left == rest


def test_frames_cut_at_every_byte() -> None:
    """One byte at a time gives the same frames."""
    stream = b"".join(FRAMES)
    assert split(stream, list(range(len(stream)))) == (list(FRAMES), b"")


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=10))
def test_any_bytes_come_out_whole(stream: bytes, cuts: list[int]) -> None:
    """The splitter passes on every byte of any stream, in order."""
    frames, rest = split(stream, [min(cut, len(stream)) for cut in cuts])
    assert b"".join(frames) + rest == stream
    assert (frames, rest) == split(stream, [])


def test_frames_without_markers_are_the_same_bytes() -> None:
    """Most frames are not parsed: odd spacing survives."""
    frame = b'data:   {"a" :  1.0}\r\n\r\n'
    assert clean_frame(frame) == (frame, None)


def test_text_that_names_the_field_is_left_alone() -> None:
    """Generated text about kv_transfer_params is text."""
    frame = b'data: {"content":"say \\"kv_transfer_params\\" and turnback_pin"}\n\n'
    assert clean_frame(frame) == (frame, None)


def test_handle_is_taken_out_of_its_frame() -> None:
    """The frame loses the handle and the kit's keys, and keeps all else."""
    body = {"id": "x", "kv_transfer_params": HANDLE, "turnback_x": 1, "choices": [{"index": 0}]}
    frame, params = clean_frame(b"id: 7\ndata: " + json.dumps(body).encode() + b"\n\n")
    assert params == HANDLE
    assert frame == b'id: 7\ndata: {"id":"x","choices":[{"index":0}]}\n\n'


def test_null_handle_is_taken_out() -> None:
    """`null` is no handle, and is hidden as well."""
    assert clean_frame(FRAMES[1]) == (b'data: {"a":1}\n\n', None)


@pytest.mark.parametrize("data", [b'{"kv_transfer_params"', b'["kv_transfer_params"]'])
def test_unreadable_marked_frame_is_left_out(data: bytes) -> None:
    """A marked frame that is not one object never reaches the client."""
    assert clean_frame(b"data: " + data + b"\n\n") == (b"", None)


def test_marked_json_is_stripped() -> None:
    """A whole reply loses the handle and the kit's keys."""
    raw = json.dumps({"id": "x", "kv_transfer_params": HANDLE, "turnback_x": 1}).encode()
    assert clean_json(raw) == (b'{"id":"x"}', HANDLE, {"id": "x"})


def test_unmarked_json_is_the_same_bytes() -> None:
    """A reply without a handle is passed on as it is."""
    assert clean_json(b'{"a" : 1}') == (b'{"a" : 1}', None, None)


@pytest.mark.parametrize("raw", [b'{"kv_transfer_params"', b'["kv_transfer_params"]'])
def test_unreadable_marked_json_is_an_error(raw: bytes) -> None:
    """A marked body that is not one object is never passed on."""
    with pytest.raises(ValueError, match=r".+"):
        clean_json(raw)


DEEP = b"[" * 300 + b"]" * 300
"""orjson reads it and does not write it."""


def test_marked_frame_that_cannot_be_written_again_is_left_out() -> None:
    """It never reaches the client with its marks, and ends no stream."""
    assert clean_frame(b'data: {"turnback_x":1,"a":' + DEEP + b"}\n\n") == (b"", None)


def test_marked_json_that_cannot_be_written_again_is_an_error() -> None:
    """The leg fails as with any other nonsense."""
    with pytest.raises(ValueError, match="cannot be passed on"):
        clean_json(b'{"turnback_x":1,"a":' + DEEP + b"}")
