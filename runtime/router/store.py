"""Handles between turns, in this process's memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredHandle:
    """What a conversation's last turn left on a decode node.

    Attributes:
        handle: the node's kv_transfer_params, as received.
        decode_url: the node.
        deadline_s: on the monotonic clock; not to be used from then on.
    """

    handle: Mapping[str, Any]
    decode_url: str
    deadline_s: float


class HandleStore:
    """One handle per conversation; taking it removes it.

    No method awaits, so that on one event loop every call is atomic.
    """

    def __init__(self) -> None:
        # In order of deadline: all handles live equally long and a put appends.
        self._handles: dict[str, StoredHandle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def take(self, key: str, now_s: float) -> StoredHandle | None:
        """Remove and return a conversation's handle; None when absent or expired."""
        stored = self._handles.pop(key, None)
        return stored if stored is not None and now_s < stored.deadline_s else None

    def put(self, key: str, stored: StoredHandle, now_s: float) -> StoredHandle | None:
        """Keep a handle, drop expired ones, and return the conversation's older one, if any."""
        older = self._handles.pop(key, None)
        self._handles[key] = stored
        while self._handles:
            oldest = next(iter(self._handles))
            if now_s < self._handles[oldest].deadline_s:
                break
            del self._handles[oldest]
        return older

    def put_back(self, key: str, stored: StoredHandle) -> bool:
        """Keep a handle that was taken and not used; False when a newer one is there."""
        return self._handles.setdefault(key, stored) is stored

    def take_all(self) -> list[StoredHandle]:
        """Remove and return all handles."""
        taken, self._handles = list(self._handles.values()), {}
        return taken

    def drop_engine(self, engine_id: str) -> int:
        """Forget all handles of an engine that has ended; returns how many."""
        gone = [
            key
            for key, stored in self._handles.items()
            if stored.handle["remote_engine_id"] == engine_id
        ]
        for key in gone:
            del self._handles[key]
        return len(gone)
