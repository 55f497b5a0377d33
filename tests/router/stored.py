"""Handles, histories and shared stores for tests of the stores."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.router.conversation import Keys
from runtime.router.store import HandleStore, StoredHandle, Taken
from runtime.router.valkey_store import ValkeyStore

DEADLINE_S = 100.0
BLOCK = 16
TIMEOUT_S = 0.025
BACK_S = 10.0
"""A store is tried again each second."""


def key(name: str) -> bytes:
    """A digest that stands for a history."""
    return name.encode().rjust(16, b".")


def handle(
    name: str,
    *answered: str,
    conversation: str | None = None,
    engine: str = "e",
    tokens: int = BLOCK,
    deadline_s: float = DEADLINE_S,
) -> StoredHandle:
    """What the history `name` left; `answered` are its beginnings, longest first."""
    return StoredHandle(
        handle={"remote_engine_id": engine, "remote_request_id": name},
        decode_url="http://d",
        prefill_url="http://p",
        generation="g",
        deadline_s=deadline_s,
        key=key(name),
        answered=tuple(map(key, answered)),
        id_key=None if conversation is None else key(conversation),
        pinned_tokens=tokens,
    )


def history(*answered: str, conversation: str | None = None) -> Keys:
    """A turn whose beginnings are `answered`, longest first."""
    id_key = None if conversation is None else key(conversation)
    return Keys(b"whole", tuple(map(key, answered)), id_key)


def name_of(stored: StoredHandle) -> str:
    """The name that `handle` was given."""
    return str(stored.handle["remote_request_id"])


def names(given_back: list[StoredHandle]) -> list[str]:
    """The names, in order."""
    return [name_of(stored) for stored in given_back]


async def taken_name(
    store: HandleStore, *answered: str, conversation: str | None = None, now_s: float = 0.0
) -> str | None:
    """Take; the handle's name."""
    taken = await store.take(history(*answered, conversation=conversation), now_s)
    return None if taken is None else name_of(taken.stored)


def told(taken: Taken | None) -> tuple[str, bool] | None:
    """Name, and whether the history was edited."""
    return None if taken is None else (name_of(taken.stored), taken.is_edited)


@asynccontextmanager
async def joined(
    url: str, deployment: str = "test", timeout_s: float = TIMEOUT_S
) -> AsyncIterator[ValkeyStore]:
    """A store that is left afterwards."""
    store = ValkeyStore(url, deployment, timeout_s)
    try:
        yield store
    finally:
        await store.close()


async def put_all(store: HandleStore, *stored: StoredHandle) -> None:
    """Keep handles; nothing is to be given back."""
    for one in stored:
        assert await store.put(one, 0.0, None) == []


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the router's log says."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
