"""A stream on its way: what is held back for the handle, and how it ends."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from runtime.router.apis.chat import CHAT
from runtime.router.connection import Broken, Sink
from runtime.router.conversation import Message
from runtime.router.relay import Keep, Relay, whole_answer

DONE = b"data: [DONE]\n\n"


def frame(content: str = "", **more: Any) -> bytes:
    """A chat delta."""
    event = {"choices": [{"index": 0, "delta": {"content": content}}], **more}
    return b"data: " + orjson.dumps(event) + b"\n\n"


class FakeReply:
    """Chunks of a stream; it breaks where an exception stands among them."""

    def __init__(self, *chunks: bytes | Broken) -> None:
        self._chunks = list(chunks)
        self.limits_s: list[float] = []
        self.held_s: list[float] = []
        self.is_closed = False
        self.sinks: list[Sink] = []

    def push_to(self, sink: Sink) -> None:
        self.sinks.append(sink)

    async def chunk(self) -> bytes:
        if not self._chunks:
            return b""
        if isinstance(chunk := self._chunks.pop(0), Broken):
            raise chunk
        return chunk

    def give_until(self, seconds: float) -> None:
        self.limits_s.append(seconds)

    def hold(self, seconds: float) -> None:
        self.held_s.append(seconds)

    @property
    def is_complete(self) -> bool:
        return not self._chunks

    is_at_end = is_complete

    def close(self) -> None:
        self.is_closed = True


async def nothing_kept(params: Any, answer: Message | None) -> None:
    raise AssertionError(f"no handle was sent, and yet {params}")


def relay(reply: FakeReply, keep: Keep = nothing_kept, *, answering: Any = None) -> Relay:
    return Relay("decode-1", reply, keep, answering, silence_s=7.0)  # type: ignore[arg-type]


async def played(stream: Relay, pause_s: float = 0.0) -> list[bytes]:
    """All pieces of a stream."""
    await stream.begin()
    return [piece async for piece in stream.pieces(lambda: pause_s)]


async def test_bytes_pass_unchanged() -> None:
    """A stream without hidden fields is the same bytes, and has a silence limit all along."""
    reply = FakeReply(frame("a"), b": odd  spacing\r\n\r\n" + frame("b"), DONE)
    assert b"".join(await played(relay(reply))) == (
        frame("a") + b": odd  spacing\r\n\r\n" + frame("b") + DONE
    )
    assert set(reply.limits_s) == {7.0}


async def test_half_frames_wait_for_their_end() -> None:
    """Only whole frames go out, so that an error event can follow at any time."""
    whole = frame("ab")
    assert await played(relay(FakeReply(whole[:9], whole[9:] + DONE[:3], DONE[3:]))) == [
        whole,
        DONE,
    ]


async def test_handle_is_kept_before_its_frame_goes_out() -> None:
    """The client's next turn may follow its last byte at once: the handle is there by then."""
    events: list[Any] = []

    async def keep(params: Any, answer: Message | None) -> None:
        events.append((params, answer))

    last = frame("b", kv_transfer_params={"x": 1})
    stream = relay(FakeReply(frame("a"), last, DONE), keep, answering=CHAT.answering())
    await stream.begin()
    async for piece in stream.pieces(lambda: 0.0):
        events.append(piece)
    assert events == [
        frame("a"),
        ({"x": 1}, Message("assistant", "ab")),
        frame("b"),
        DONE,
    ]


async def test_handle_in_one_piece_with_others_is_taken_out() -> None:
    """However the frames come together, the handle is kept and hidden, and no byte is lost."""
    kept: list[Any] = []

    async def keep(params: Any, answer: Message | None) -> None:
        kept.append(params)

    marked = frame("b", kv_transfer_params={"x": 1}, turnback_y=2)
    stream = relay(FakeReply(frame("a") + marked + DONE), keep)
    assert b"".join(await played(stream)) == frame("a") + frame("b") + DONE
    assert kept == [{"x": 1}]


async def test_null_handles_are_hidden_and_not_kept() -> None:
    """vLLM 0.33 sends a null in every event: it is cut out, and nothing is written anew."""
    odd = b'data: {"a" : 1.0,"kv_transfer_params":null}\n\n'
    stream = relay(FakeReply(frame("a", kv_transfer_params=None), odd, DONE))
    assert await played(stream) == [frame("a"), b'data: {"a" : 1.0}\n\n', DONE]


async def test_broken_stream_ends_in_an_error_event() -> None:
    """The client is told in the stream, in OpenAI's shape; half a frame is dropped."""
    reply = FakeReply(frame("a") + b"data: {", Broken("reset", is_silent=False))
    stream = relay(reply)
    first, last = await played(stream)
    assert first == frame("a")
    error = orjson.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == (502, "bad_gateway")
    assert "decode-1: broke off its answer: reset" in error["got"]
    assert last.endswith(b"\n\n")
    assert stream.is_broken
    assert stream.is_at_end


async def test_stream_that_never_begins_is_broken() -> None:
    """Before the first byte the turn can still go elsewhere."""
    with pytest.raises(Broken, match="first byte"):
        await relay(FakeReply()).begin()


async def test_end_is_told_with_the_last_piece() -> None:
    """The caller knows which piece ends the stream, and can end its own with the same write."""
    stream = relay(FakeReply(frame("a"), DONE))
    await stream.begin()
    ends = [(piece, stream.is_at_end) async for piece in stream.pieces(lambda: 0.0)]
    assert ends == [(frame("a"), False), (DONE, True)]


async def test_frame_without_its_blank_line_is_given_out_cleaned() -> None:
    """An engine that ends without a blank line hides nothing in its last frame."""
    rest = frame("b", turnback_x=1).rstrip()
    assert await played(relay(FakeReply(frame("a") + rest))) == [frame("a"), frame("b")]


async def test_event_of_a_megabyte_passes() -> None:
    """No limit on the length of a line: complaint 37."""
    big = frame("x" * (1 << 20))
    chunks = [big[at : at + 65536] for at in range(0, len(big), 65536)]
    assert await played(relay(FakeReply(*chunks, DONE))) == [big, DONE]


@pytest.mark.parametrize("size", [10, 5000])
async def test_long_answer_is_told_whole(size: int) -> None:
    """An answer far beyond what is gathered at once is put together without a gap."""
    told: list[Message | None] = []

    async def keep(params: Any, answer: Message | None) -> None:
        told.append(answer)

    words = [f"w{at} " for at in range(size)]
    chunks = [frame(word) for word in words] + [frame(kv_transfer_params={}), DONE]
    await played(relay(FakeReply(*chunks), keep, answering=CHAT.answering()))
    assert told == [Message("assistant", "".join(words).strip())]


async def test_answer_of_another_shape_is_none() -> None:
    """A stream that is none of this API's passes, and its handle comes without an answer."""
    told: list[Message | None] = []

    async def keep(params: Any, answer: Message | None) -> None:
        told.append(answer)

    odd = b'data: {"choices":[7]}\n\n'
    last = frame(kv_transfer_params={})
    pieces = await played(relay(FakeReply(odd, last), keep, answering=CHAT.answering()))
    assert (pieces[0], told) == (odd, [None])


async def test_pauses_hold_the_stream_until_its_end() -> None:
    """The engine is read less often under load; what has come whole is not held."""
    reply = FakeReply(frame("a"), frame("b"), DONE)
    assert len(await played(relay(reply), pause_s=0.01)) == 3
    assert reply.held_s == [0.01, 0.01]


async def test_pieces_that_follow_each_other_closely_are_held() -> None:
    """A burst is read in few pieces; tokens at an engine's pace are not held."""
    burst, paced = (FakeReply(frame("a"), frame("b"), frame("c"), DONE) for _ in "12")
    await played(relay(burst))
    assert len(burst.held_s) == 2  # not before there is a second piece, nor after the last
    assert max(burst.held_s) < 0.0005
    stream = relay(paced)
    await stream.begin()
    async for _ in stream.pieces(lambda: 0.0):
        await asyncio.sleep(0.002)
    assert paced.held_s == []


async def test_close_ends_the_engines_request() -> None:
    """A client that leaves ends the work."""
    reply = FakeReply(frame("a"))
    relay(reply).close()
    assert reply.is_closed


async def test_drained_stream_keeps_its_handle() -> None:
    """A stream read for nobody still leaves its handle; a break is told."""
    kept: list[Any] = []

    async def keep(params: Any, answer: Message | None) -> None:
        kept.append(params)

    stream = relay(FakeReply(frame("a"), frame(kv_transfer_params={"x": 1}), DONE), keep)
    await stream.begin()
    await stream.drain()
    assert kept == [{"x": 1}]
    broken = relay(FakeReply(frame("a"), Broken("reset", is_silent=False)))
    await broken.begin()
    with pytest.raises(Broken):
        await broken.drain()


@pytest.mark.parametrize("error", [AttributeError, TypeError, ValueError])
def test_whole_reply_of_another_shape_has_no_answer(error: type[Exception]) -> None:
    """An odd reply is passed on; only its answer cannot be told."""

    def answer_of(_: Mapping[str, Any]) -> Message | None:
        raise error

    assert whole_answer({}, answer_of) is None
    assert whole_answer({"choices": [{"message": {"content": "a"}}]}, CHAT.answer_of) == Message(
        "assistant", "a"
    )


async def test_nulls_of_each_event_do_not_keep_it_from_being_pushed() -> None:
    """vLLM 0.33 names the field in every event: they go past the task like others."""
    reply, written = FakeReply(frame("a")), [b""]

    def write(data: bytes) -> bool:
        written.append(data)
        return True

    relay(reply).push_to(write, lambda: 0.0)
    (push,) = reply.sinks
    assert push(b'data: {"choices":[],"kv_transfer_params":null}\n\n')
    assert b"".join(written) == b'data: {"choices":[]}\n\n'
    assert not push(frame("b", kv_transfer_params={"x": 1}))
    assert b"".join(written) == b'data: {"choices":[]}\n\n'
