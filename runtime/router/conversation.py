"""Recognises a conversation by its history: digests over canonical messages. Pure.

A history is hashed message by message, each digest over the one before it, from a root
that holds the tenant, the conversation id if there is one, and every other field that
shapes the prompt. A turn's handle is kept under the digest of its messages and its answer;
the next turn finds it among the digests of its own history that end in an answer. A wrong
match would cost time and no correctness: P verifies token by token.
"""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import orjson

_DIGEST_BYTES = 16
_MAX_CANDIDATES = 64
_LONG_BYTES = 8 * 1024
MAX_ID_CHARACTERS = 256

Role = Literal["system", "user", "assistant", "tool", "developer"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it counts for recognition.

    Attributes:
        role: who speaks.
        text: its text, parts joined, white space around it removed.
        parts: whatever else: tool calls, tool results, images; JSON values.
    """

    role: str
    text: str
    parts: tuple[Any, ...] = ()

    def digest(self, before: bytes) -> bytes:
        """Digest of the history that ends in this message."""
        text = self.text.encode("utf-8", "surrogatepass")
        role = self.role.encode("utf-8", "surrogatepass")
        size_bytes = len(text)
        if size_bytes >= _LONG_BYTES:
            # Within a tenant a checksum is enough for long texts: see the top of this file.
            text = b"%x" % zlib.crc32(text)
        parts = _canonical(self.parts) if self.parts else b""
        told = b"%b%b\n%d\n%b%b" % (before, role, size_bytes, text, parts)
        return hashlib.sha256(told).digest()[:_DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Keys:
    """Under what a turn's handle is looked for, and kept afterwards.

    Attributes:
        whole: digest of the whole history.
        answered: digests of the history's beginnings that end in an answer, longest first.
        id_key: the tenant's conversation id; None when the client gave none.
    """

    whole: bytes
    answered: tuple[bytes, ...]
    id_key: bytes | None

    def after(self, answer: Message) -> bytes:
        """The digest under which the next turn will look."""
        return answer.digest(self.whole)


def keys_of(
    messages: Sequence[Message], *, tenant: str, conversation: str | None, shape: Mapping[str, Any]
) -> Keys:
    """Digest a history.

    Args:
        messages: oldest first.
        tenant: whose request it is; histories of two tenants never meet.
        conversation: the client's id; two ids never meet.
        shape: the other fields that shape the prompt, as JSON values.
    """
    owner = _owner(tenant, conversation)
    root = hashlib.sha256(owner)
    root.update(_canonical(shape))
    digest = root.digest()[:_DIGEST_BYTES]
    answered: list[bytes] = []
    for message in messages:
        digest = message.digest(digest)
        if message.role == "assistant":
            answered.append(digest)
    latest = tuple(reversed(answered[-_MAX_CANDIDATES:]))
    return Keys(digest, latest, None if conversation is None else owner)


def id_key(tenant: str, conversation: str) -> bytes:
    """The key of a tenant's conversation id, as in Keys."""
    return _owner(tenant, conversation)


@lru_cache(maxsize=4096)
def _owner(tenant: str, conversation: str | None) -> bytes:
    """Headers may hold any bytes: ids need not be valid Unicode."""
    hasher = hashlib.sha256(f"{len(tenant)} {conversation is None}\n".encode())
    hasher.update(f"{tenant}{conversation or ''}".encode("utf-8", "surrogatepass"))
    return hasher.digest()[:_DIGEST_BYTES]


def _canonical(value: Any) -> bytes:
    """JSON with sorted keys; what cannot be written so, such as 300 levels, is all the same."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=repr)
    except TypeError:
        return b""


def merged(messages: Sequence[Message]) -> list[Message]:
    """Join neighbours of the assistant: one answer may come as several items."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role == message.role == "assistant":
            text = (
                f"{last.text}{message.text}"
                if last.text and message.text
                else last.text or message.text
            )
            joined[-1] = Message("assistant", text, (*last.parts, *message.parts))
        else:
            joined.append(message)
    return joined


def call_part(name: Any, arguments: Any) -> list[Any]:
    """A tool call as it counts: not its id, not its spacing."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = arguments.strip()
    return ["call", name, arguments]
