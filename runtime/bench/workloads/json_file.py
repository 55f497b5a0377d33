"""A file of JSON or JSON lines, with the place of everything that cannot be read."""

import json
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import BadInput

MOST_BYTES = 2**30
ALLOWED = (
    "a generate_conversations file of vLLM, or conversations as OpenAI messages or ShareGPT, "
    "in JSON or one a line, in UTF-8"
)
FIX = "correct it; docs/workloads.md shows every form"


@dataclass(frozen=True)
class JsonFile:
    """What was read.

    Attributes:
        whole: the JSON value; None when each line is one.
        items: (place, value): the elements of a list, or the lines, or the one value.
    """

    whole: object
    items: tuple[tuple[str, object], ...]


def read_json(path: Path) -> JsonFile:
    """Read a workload's file.

    Raises:
        BadInput: it is missing, empty, too large, no UTF-8 or no JSON.
    """
    text = _text(path)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not _begins_with_a_line(text):
            raise _refused(path, str(error)) from None
        return JsonFile(None, _lines(text, path))
    if not isinstance(whole, list):
        return JsonFile(whole, (("(whole)", whole),))
    if not whole:
        raise _refused(path, "an empty list")
    return JsonFile(whole, tuple((f"[{at}]", item) for at, item in enumerate(whole)))


def _text(path: Path) -> str:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MOST_BYTES:
            raise _refused(path, f"{size_bytes} bytes, and at most {MOST_BYTES} are read")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, str(error)) from None
    if not text.strip():
        raise _refused(path, "an empty file")
    return text


def _begins_with_a_line(text: str) -> bool:
    """Whether the first line is an object by itself, and others follow."""
    first, _, rest = text.lstrip().partition("\n")
    try:
        return isinstance(json.loads(first), dict) and bool(rest.strip())
    except (ValueError, RecursionError):
        return False


def _lines(text: str, path: Path) -> tuple[tuple[str, object], ...]:
    items = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line.strip():
                items.append((f"line {number}", json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise _refused(path, f"line {number}: {error}") from None
    return tuple(items)


def _refused(path: Path, got: str) -> BadInput:
    return BadInput(f"{path}: the workload cannot be read", got=got, allowed=ALLOWED, fix=FIX)
