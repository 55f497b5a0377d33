"""The mock's replies fit vLLM's shapes, and the client's check misses nothing."""

import orjson
import pytest

from benchmarks.router import replies
from benchmarks.router.replies import Asked, StreamCheck
from runtime.engine_api import KV_PARAMS, transfer_params_problem

NUMBER, EVENTS = 42, 6


def stream(template: bytes = replies.EVENT, last: bytes | None = None) -> list[bytes]:
    """The events of one answer."""
    handle = replies.handle(100) if last is None else last
    return [
        replies.ROLE % NUMBER,
        *(template % (NUMBER, NUMBER, at) for at in range(EVENTS - 1)),
        replies.last_event(NUMBER, EVENTS - 1, handle),
        replies.DONE,
    ]


def problem(events: list[bytes], piece: int = 7) -> str | None:
    """What the check says about a stream that comes in pieces of some bytes."""
    check, data = StreamCheck(NUMBER, EVENTS), b"".join(events)
    for start in range(0, len(data), piece):
        check.feed(data[start : start + piece])
    found = check.finish()
    assert found is not None or check.at == EVENTS
    return found


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 25_000])
def test_the_dicts_can_be_sent_on(tokens: int) -> None:
    """Routers that validate dicts pass these, block count included."""
    for written, is_handle in ((replies.p_dict(tokens), False), (replies.handle(tokens), True)):
        params = orjson.loads(written)
        size = replies.BLOCK_SIZE_TOKENS
        assert transfer_params_problem(params, block_size_tokens=size) is None
        assert params["do_remote_decode"] is is_handle
        assert isinstance(params["remote_blocks_expiry_time"], float) is is_handle


def test_every_dict_has_a_request_id_of_its_own() -> None:
    """A dict may be read once; two equal ones would be one."""
    ids = {orjson.loads(replies.p_dict(10))["remote_request_id"] for _ in range(20)}
    assert len(ids) == 20


def test_a_request_is_read_without_its_messages() -> None:
    """What the mock looks for is found in either spacing."""
    body = {"stream": True, "max_tokens": 7, "seed": 9, KV_PARAMS: {"do_remote_prefill": True}}
    for data in (orjson.dumps(body), orjson.dumps(body, option=orjson.OPT_INDENT_2)):
        asked = Asked(data)
        assert (asked.number, asked.events, asked.is_stream) == (9, 7, True)
        assert (asked.has_p_dict, asked.has_handle) == (True, False)
        assert asked.wants_pin
    assert Asked(b'{"a":%b}' % replies.handle(10)).has_handle
    assert not Asked(b'{"turnback_pin":false}').wants_pin
    assert replies.handle(10, is_pinned=False) == b"{}"


def test_events_are_json_and_of_one_length() -> None:
    """All events parse, and the text of all of them is the answer's."""
    events = [orjson.loads(event[6:]) for event in stream()[:-1]]
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert text == replies.answer_text(NUMBER, EVENTS)
    assert len({len(replies.EVENT % (at, at, at)) for at in (0, 9, 99_999)}) == 1
    assert orjson.loads(replies.whole_reply(Asked(b'"max_tokens":2'), b"null"))


@pytest.mark.parametrize("piece", [1, 7, 200, 10_000])
@pytest.mark.parametrize("template", [replies.EVENT, replies.EVENT_WITH_NULL])
def test_a_whole_stream_passes(template: bytes, piece: int) -> None:
    """As the engine wrote it, and with the handle taken out."""
    assert problem(stream(template), piece) is None
    bare = orjson.loads(replies.last_event(NUMBER, EVENTS - 1, b"null")[6:])
    del bare[KV_PARAMS]
    events = stream(template)
    events[-2] = b"data: " + orjson.dumps(bare) + b"\n\n"
    assert problem(events, piece) is None


@pytest.mark.parametrize("at", range(EVENTS + 2))
def test_a_lost_doubled_or_changed_event_is_seen(at: int) -> None:
    """Wherever it lies in the stream."""
    events = stream()
    assert problem([*events[:at], *events[at + 1 :]]) is not None
    assert problem([*events[:at], events[at], *events[at:]]) is not None
    changed = events[at].replace(b"a", b"b", 1)
    assert problem([*events[:at], changed, *events[at + 1 :]]) is not None


def test_order_other_answers_and_ends_are_seen() -> None:
    """Swapped events, another request's stream, and one that breaks off."""
    events = stream()
    assert problem([*events[:2], events[3], events[2], *events[4:]]) is not None
    assert problem([event.replace(b"0042", b"0043") for event in events]) is not None
    data = b"".join(events)
    for kept in range(len(data)):
        assert problem([data[:kept]], piece=10_000) is not None


def test_a_handle_that_reaches_the_client_is_told() -> None:
    """It is counted, and is no error: one of the routers passes it on."""
    check = StreamCheck(NUMBER, EVENTS)
    check.feed(b"".join(stream()))
    assert check.finish() is None
    assert check.leaks
