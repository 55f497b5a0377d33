"""Events come out whole however the stream is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.sse import EventSplitter

STREAM = (
    b": keep-alive\n\n"
    b'data: {"a": 1}\r\n\r\n'
    b"event: message\nid: 3\ndata:no space\n\n"
    b"data: two\ndata: lines\n\n"
    b": ping\r\n\r\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b"no space", b"two\nlines", b"[DONE]"]


@given(cuts=st.sets(st.integers(min_value=1, max_value=len(STREAM) - 1)))
def test_cuts_do_not_change_events(cuts: set[int]) -> None:
    """Any cutting of the stream, also between CR and LF, gives the same events."""
    splitter = EventSplitter()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert [event for piece in pieces for event in splitter.feed(piece)] == EVENTS


def test_last_comment_is_kept() -> None:
    """A comment may say something after the last event; it is no event."""
    splitter = EventSplitter()
    assert splitter.feed(STREAM + b": name {}\n\n") == EVENTS
    assert splitter.last_comment == b"name {}"


def test_an_event_is_given_as_soon_as_it_ends() -> None:
    """The blank line ends an event; nothing waits for the next one."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: one\n") == []
    assert splitter.feed(b"\n") == [b"one"]


def test_a_cut_off_event_is_not_given() -> None:
    """Without its blank line an event may be half of one."""
    assert EventSplitter().feed(b'data: {"choices": []}\n') == []
