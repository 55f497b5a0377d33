"""Engine replies without the kit's own fields: SSE frames and JSON bodies. Pure."""

import re
from typing import Any

import orjson

from runtime.engine_api import KV_PARAMS

_MARKERS = (b'"kv_transfer_params"', b'"turnback_')
_FRAME_END = re.compile(rb"\n\r?\n")
_BLANK_LINES = (b"\n\n", b"\n\r\n")
_PRIVATE_PREFIX = "turnback_"
_TEXT_DELTA = re.compile(
    rb'"delta":\{(?:"role":"assistant",)?"content":"([^"\\]*(?:\\.[^"\\]*)*)"\}'
)


class FrameSplitter:
    """Cuts a byte stream, chunked anywhere, after frames: each ends in a blank line."""

    def __init__(self) -> None:
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; returns the frames they complete, joined, blank lines included."""
        if not self._tail and chunk.endswith(b"\n\n"):
            return chunk
        # A blank line may begin up to two bytes before the new chunk.
        scan_from = max(0, len(self._tail) - 2)
        self._tail += chunk
        unix, dos = self._tail.rfind(b"\n\n", scan_from), self._tail.rfind(b"\n\r\n", scan_from)
        if unix < 0 and dos < 0:
            return b""
        at = max(unix + 2, dos + 3) if dos >= 0 else unix + 2
        complete = bytes(self._tail[:at])
        del self._tail[:at]
        return complete

    @property
    def tail(self) -> bytes:
        """The incomplete frame that is held back."""
        return bytes(self._tail)

    @property
    def tail_bytes(self) -> int:
        """Its size."""
        return len(self._tail)

    @property
    def has_rest(self) -> bool:
        """Whether an incomplete frame is held back."""
        return bool(self._tail)

    def rest(self) -> bytes:
        """What is left when the stream has ended: a frame without its blank line."""
        tail, self._tail = bytes(self._tail), bytearray()
        return tail

    @staticmethod
    def split(frames: bytes) -> list[bytes]:
        """Joined frames, one by one."""
        parts, start = [], 0
        for end in _FRAME_END.finditer(frames):
            parts.append(frames[start : end.end()])
            start = end.end()
        return [*parts, frames[start:]] if start < len(frames) else parts


def is_marked(data: bytes) -> bool:
    """Whether the bytes may hold a field that clients must not see."""
    return _MARKERS[0] in data or _MARKERS[1] in data


def next_marked(frames: bytes, start: int) -> tuple[int, int] | None:
    """Bounds of the next frame that may hold a hidden field; None when there is none.

    Args:
        frames: complete frames, joined.
        start: where to look from: 0, or the end of a frame.
    """
    hits = [at for marker in _MARKERS if (at := frames.find(marker, start)) >= 0]
    if not hits:
        return None
    begin, end = start, len(frames)
    for blank in _BLANK_LINES:
        if (before := frames.rfind(blank, start, min(hits))) >= 0:
            begin = max(begin, before + len(blank))
        if (after := frames.find(blank, min(hits))) >= 0:
            end = min(end, after + len(blank))
    return begin, end


def without_nulls(data: bytes) -> bytes:
    """JSON or frames of it without `"kv_transfer_params":null`, which vLLM 0.33 sends in each.

    A quote inside a JSON string is escaped, so that these bytes are always a field.
    """
    if b'"kv_transfer_params":null' not in data:
        return data
    return data.replace(b',"kv_transfer_params":null', b"").replace(
        b'"kv_transfer_params":null,', b""
    )


def strip_private(reply: dict[str, Any]) -> Any:
    """Remove the kit's and the connector's fields; returns the kv_transfer_params."""
    params = reply.pop(KV_PARAMS, None)
    for name in [name for name in reply if name.startswith(_PRIVATE_PREFIX)]:
        del reply[name]
    nested = reply.get("response")  # of /v1/responses' events
    if isinstance(nested, dict):
        inner = strip_private(nested)
        params = inner if params is None else params
    return params


def clean_json(data: bytes) -> tuple[bytes, Any, Any]:
    """A JSON body for the client, the kv_transfer_params it held, and the parsed body.

    Raises:
        ValueError: the body is marked and is not one JSON object.
    """
    if not is_marked(data):
        return data, None, None
    reply = orjson.loads(data)
    if not isinstance(reply, dict):
        raise ValueError("the body is not one JSON object")
    params = strip_private(reply)
    try:
        return orjson.dumps(reply), params, reply
    except TypeError as error:  # orjson reads deeper nesting than it writes
        raise ValueError(f"the body cannot be passed on: {error}") from error


def clean_frame(frame: bytes) -> tuple[bytes, Any]:
    """A frame for the client, and the kv_transfer_params it held.

    A marked frame whose data is not one JSON object is left out: better a gap than
    another tenant's block addresses.
    """
    if not is_marked(frame):
        return frame, None
    lines = frame.splitlines()
    data = b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))
    try:
        reply = orjson.loads(data)
    except orjson.JSONDecodeError:
        return b"", None
    if not isinstance(reply, dict):
        return b"", None
    params = strip_private(reply)
    kept = [line for line in lines if line and not line.startswith(b"data:")]
    try:
        kept.append(b"data: " + orjson.dumps(reply))
    except TypeError:  # orjson reads deeper nesting than it writes
        return b"", params
    return b"\n".join(kept) + b"\n\n", params


def events_of(frames: bytes) -> list[dict[str, Any]]:
    """The JSON objects of joined frames; other data is left out, and nonsense gives none.

    Chat deltas of text alone, as most are, come as one event with all of their text.
    """
    if (deltas := frames.count(b'"delta":{')) > 1:
        texts = _TEXT_DELTA.findall(frames)
        if len(texts) == deltas:
            try:
                text = orjson.loads(b'"' + b"".join(texts) + b'"')
            except orjson.JSONDecodeError:
                return []
            return [{"choices": [{"delta": {"content": text}}]}]
    data = [
        line[5:]
        for line in frames.splitlines()
        if line.startswith(b"data:") and line[5:].lstrip().startswith(b"{")
    ]
    try:
        events = orjson.loads(b"[" + b",".join(data) + b"]")
    except orjson.JSONDecodeError:
        return []
    return [event for event in events if isinstance(event, dict)]
