"""Engine replies without the kit's own fields: SSE frames and JSON bodies. Pure."""

import re
from typing import Any

import orjson

from runtime.engine_api import KV_PARAMS

_MARKERS = (b'"kv_transfer_params"', b'"turnback_')
_FRAME_END = re.compile(rb"\n\r?\n")
_PRIVATE_PREFIX = "turnback_"


class FrameSplitter:
    """Cuts a byte stream, chunked anywhere, into frames that end in a blank line."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; returns the frames they complete, blank line included."""
        # A blank line may begin up to two bytes before the new chunk.
        scan_from = max(0, len(self._tail) - 2)
        data = self._tail + chunk
        frames, start = [], 0
        for end in _FRAME_END.finditer(data, scan_from):
            frames.append(data[start : end.end()])
            start = end.end()
        self._tail = data[start:]
        return frames

    def rest(self) -> bytes:
        """What is left when the stream has ended: a frame without its blank line."""
        tail, self._tail = self._tail, b""
        return tail


def is_marked(data: bytes) -> bool:
    """Whether the bytes may hold a field that clients must not see."""
    return any(marker in data for marker in _MARKERS)


def strip_private(reply: dict[str, Any]) -> Any:
    """Remove the kit's and the connector's fields; returns the kv_transfer_params."""
    params = reply.pop(KV_PARAMS, None)
    for name in [name for name in reply if name.startswith(_PRIVATE_PREFIX)]:
        del reply[name]
    return params


def clean_json(data: bytes) -> tuple[bytes, Any]:
    """A JSON body for the client, and the kv_transfer_params it held.

    Raises:
        ValueError: the body is marked and is not one JSON object.
    """
    if not is_marked(data):
        return data, None
    reply = orjson.loads(data)
    if not isinstance(reply, dict):
        raise ValueError("the body is not one JSON object")
    params = strip_private(reply)
    return orjson.dumps(reply), params


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
    kept.append(b"data: " + orjson.dumps(reply))
    return b"\n".join(kept) + b"\n\n", params
