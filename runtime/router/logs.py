"""JSON log lines with the id of the request they belong to. No key and no prompt is logged."""

import itertools
import json
import logging
import sys
import time
import uuid
from contextvars import ContextVar

import orjson

REQUEST_ID: ContextVar[str] = ContextVar("turnback_request_id", default="")
"""Of the request that the current task serves."""


_PROCESS = uuid.uuid4().hex[:16]
_NUMBERS = itertools.count(1)


def fresh_id() -> str:
    """An id that no other request of any router has."""
    return f"{_PROCESS}{next(_NUMBERS):016x}"


class JsonLines(logging.Formatter):
    """One object per line: time, level, message, request_id, and a turn's explanation."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        millis = int(record.msecs)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{millis:03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if (turn := getattr(record, "turn", None)) is not None:
            line["turn"] = turn
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # text that is no Unicode, such as a header's odd bytes
            return json.dumps(line, default=str)


def log_to_stderr() -> None:
    """Send this process's log to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("turnback").setLevel(logging.INFO)
