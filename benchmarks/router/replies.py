"""What the mock engines answer, in the shapes of vLLM's chat completions. Pure.

Every event of a stream is numbered and all have the same length, so that the client can
say byte by byte what must come.
"""

import re
from itertools import count
from typing import Any

import orjson

from runtime.engine_api import KV_PARAMS, PIN

BLOCK_SIZE_TOKENS = 32
MODEL = "mock"
DONE = b"data: [DONE]\n\n"

_BYTES_PER_TOKEN = 4
_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_SEED = re.compile(rb'"seed":\s*(\d+)')
_STREAM = re.compile(rb'"stream":\s*true')
_P_DICT = re.compile(rb'"do_remote_prefill":\s*true')
_NO_PIN = re.compile(rb'"%b":\s*false' % PIN.encode())
_HANDLE = re.compile(rb'"remote_engine_id":\s*"mock-d"')

_HEAD = (
    b'data: {"id":"chatcmpl-%012d","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"mock","choices":[{"index":0,"delta":{'
)
ROLE = _HEAD + b'"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
"""% number of the answer."""

_EVENT = _HEAD + b'"content":"%012d.%05d "},"logprobs":null,"finish_reason":null,"token_ids":null}]'
EVENT = _EVENT + b"}\n\n"
"""% number, number and position: an event as vLLM 0.32 writes it."""

EVENT_WITH_NULL = _EVENT + b',"kv_transfer_params":null}\n\n'
"""The same of vLLM 0.33, which names the field in every event of a token."""

_LAST = (
    _HEAD + b'"content":"%012d.%05d "},"logprobs":null,"finish_reason":"length","stop_reason":null,'
    b'"token_ids":null}],"kv_transfer_params":%b}\n\n'
)
"""The finishing event: % number, number, position and handle."""

_IDS = [b"%d" % at for at in range(2**17)]
_requests = count(1)


class Asked:
    """What a chat request asks for, found without parsing its body.

    Attributes:
        number: the request's seed, which names its answer.
        events: max_tokens; the events that carry a token.
        wants_pin: D is to keep the blocks for a next turn.
        prompt_tokens: a guess from the body's length.
    """

    __slots__ = (
        *("events", "has_handle", "has_p_dict", "is_stream", "number", "prompt_tokens"),
        "wants_pin",
    )

    def __init__(self, body: bytes) -> None:
        seed, limit = _SEED.search(body), _MAX_TOKENS.search(body)
        self.number = int(seed[1]) if seed else 0
        self.events = int(limit[1]) if limit else 16
        self.is_stream = _STREAM.search(body) is not None
        self.has_p_dict = _P_DICT.search(body) is not None
        self.has_handle = _HANDLE.search(body) is not None
        self.wants_pin = _NO_PIN.search(body) is None
        self.prompt_tokens = max(1, len(body) // _BYTES_PER_TOKEN)


def answer_text(number: int, events: int) -> str:
    """The text of a whole answer."""
    return "".join([f"{number:012d}.{at:05d} " for at in range(events)])


def last_event(number: int, at: int, handle: bytes) -> bytes:
    """The finishing event with its handle."""
    return _LAST % (number, number, at, handle)


def _params(role: str, tokens: int, port: int, is_handle: bool) -> bytes:
    blocks = -(-tokens // BLOCK_SIZE_TOKENS)
    request = next(_requests)
    first = request * 7919 % (len(_IDS) - blocks)
    ids = b",".join(_IDS[first : first + blocks])
    return (
        b'{"do_remote_prefill":%b,"do_remote_decode":%b,"remote_block_ids":[[%b]],'
        b'"remote_num_tokens":%d,"remote_engine_id":"mock-%b",'
        b'"remote_request_id":"chatcmpl-%08d-%b","remote_host":"127.0.0.1","remote_port":%d,'
        b'"tp_size":1,"dcp_size":1,"pp_size":1,"remote_blocks_expiry_time":%b,'
        b'"transfer_mode":"pull","remote_registration_generation":0}'
    ) % (
        *(b"false" if is_handle else b"true", b"true" if is_handle else b"false"),
        *(ids, tokens, role.encode(), request, role.encode(), port),
        b"%d.5" % (1_000_000 + request) if is_handle else b"null",
    )


def p_dict(tokens: int) -> bytes:
    """What P returns for D, as JSON."""
    return _params("p", tokens, 5600, is_handle=False)


def handle(tokens: int, *, is_pinned: bool = True) -> bytes:
    """What D returns for the conversation's next turn, as JSON; empty when it keeps nothing."""
    return _params("d", tokens, 5601, is_handle=True) if is_pinned else b"{}"


def whole_reply(asked: Asked, params: bytes) -> bytes:
    """A reply that is not streamed."""
    return (
        b'{"id":"chatcmpl-%012d","object":"chat.completion","created":1700000000,"model":"mock",'
        b'"choices":[{"index":0,"message":{"role":"assistant","content":"%b"},"logprobs":null,'
        b'"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":%d,'
        b'"total_tokens":%d,"completion_tokens":%d},"kv_transfer_params":%b}'
    ) % (
        asked.number,
        answer_text(asked.number, asked.events).encode(),
        asked.prompt_tokens,
        asked.prompt_tokens + asked.events,
        asked.events,
        params,
    )


class StreamCheck:
    """Holds a streamed answer against what the mock wrote, byte by byte.

    The finishing event is compared by its fields: a router may take the handle out.

    Args:
        number: the request's seed.
        events: its max_tokens, at least 2.

    Attributes:
        at: events with a token that have come.
        problem: the first difference; None while there is none.
        leaks: the finishing event still had the handle.
    """

    def __init__(self, number: int, events: int) -> None:
        self.at = 0
        self.problem: str | None = None
        self.leaks = False
        self._number, self._events = number, events
        self._template: bytes | None = None
        self._expected = ROLE % number
        self._rest = b""

    def feed(self, data: bytes) -> int:
        """Take the next bytes of the body; returns how many events they complete."""
        if self.problem is not None:
            return 0
        if self._rest:
            data = self._rest + data
        before, start = self.at, 0
        expected = self._expected
        while self.problem is None and self.at < self._events - 1:
            if len(data) - start < len(expected) + 32:  # room for the longer of both shapes
                break
            if not data.startswith(expected, start):
                expected = self._other_shape(data, start)
            start += len(expected)
            expected = self._next()
        self._expected = expected
        self._rest = data[start:]
        return self.at - before

    def _next(self) -> bytes:
        if self._template is None:
            self._template = EVENT
        else:
            self.at += 1
        return self._template % (self._number, self._number, self.at)

    def _other_shape(self, data: bytes, start: int) -> bytes:
        other = EVENT_WITH_NULL % (self._number, self._number, self.at)
        if self.at == 0 and self._template is EVENT and data.startswith(other, start):
            self._template = EVENT_WITH_NULL
            return other
        got = data[start : start + len(other)]
        self.problem = f"event {self.at} of answer {self._number}: {got[:300]!r}"
        return b""

    def finish(self) -> str | None:
        """Say what is wrong with the stream now that it has ended; None when nothing is."""
        if self.problem is None:
            self.problem = self._end_problem()
        return self.problem

    def _end_problem(self) -> str | None:
        last = self._events - 1
        if self.at == last and self._rest.endswith(b"\n\n" + DONE) and self._template:
            event = self._rest[: -len(DONE)]
            if event.startswith(b"data: ") and event.count(b"\n\n") == 1:
                return self._last_problem(orjson.loads(event[6:]))
        return f"answer {self._number} ended after event {self.at}: {self._rest[-300:]!r}"

    def _last_problem(self, event: dict[str, Any]) -> str | None:
        self.leaks = bool(event.pop(KV_PARAMS, None))
        expected = orjson.loads(last_event(self._number, self._events - 1, b"null")[6:])
        del expected[KV_PARAMS]
        if event != expected:
            return f"last event of answer {self._number}: {event}"
        self.at += 1
        return None
