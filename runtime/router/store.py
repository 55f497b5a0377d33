"""Handles between turns: what every store offers, and the one in this process's memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.router.conversation import Keys

MOST_ALIASES = 16
"""How many beginnings of its history an edited one finds a handle by."""
MEMORY_S = 3600.0
"""How long a lost handle, or an id whose history has branched, is remembered."""
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class StoredHandle:
    """What a conversation's last turn left on a decode node.

    Attributes:
        handle: the node's kv_transfer_params, as received.
        decode_url: the node.
        prefill_url: the P that served the turn.
        generation: of both nodes.
        deadline_s: on the event loop's clock; not to be used from then on.
        key: digest of the history with its answer.
        answered: digests of the beginnings of that history, longest first.
        id_key: the conversation's id, if the client gave one.
        pinned_tokens: what it holds of D's KV cache.
    """

    handle: Mapping[str, Any]
    decode_url: str
    prefill_url: str
    generation: str
    deadline_s: float
    key: bytes
    answered: tuple[bytes, ...]
    id_key: bytes | None
    pinned_tokens: int

    @property
    def engine_id(self) -> str:
        """The engine that owns the blocks."""
        return str(self.handle["remote_engine_id"])


@dataclass(frozen=True, slots=True)
class Taken:
    """A handle out of the store.

    Attributes:
        stored: the handle.
        is_edited: the history does not contain the handle's; they begin alike.
    """

    stored: StoredHandle
    is_edited: bool = False


class HandleStore(Protocol):
    """Handles of all conversations.

    A store that is slow or down costs no turn: `take` then finds nothing and `put` keeps
    nothing; `is_up` says so beforehand.
    """

    @property
    def never_waits(self) -> bool:
        """Whether no operation gives way to other tasks, so that none can be interrupted."""

    @property
    def is_up(self) -> bool:
        """Whether handles can be kept now."""

    @property
    def failures(self) -> int:
        """Operations that were not answered in time."""

    async def check(self) -> None:
        """Try the store once, at the start; one that is merely down is no error.

        Raises:
            BadInput: it will never serve.
        """

    async def take(self, keys: Keys, now_s: float) -> Taken | None:
        """Remove and return the handle of the longest known beginning of a history.

        With an id, the handle of a history that was edited since is found too, by the
        longest beginning that both share up to an answer.
        """

    async def put(
        self, stored: StoredHandle, now_s: float, budget_tokens: int | None
    ) -> list[StoredHandle]:
        """Keep a handle; returns those to give back.

        These are: what it replaces, what its history contains, what goes beyond the
        engine's budget (earliest deadline first), and itself when it cannot be kept.
        """

    async def put_back(self, taken: Taken, now_s: float) -> bool:
        """Keep a handle that was taken and not used; False when it cannot be."""

    async def end(self, id_key: bytes) -> list[StoredHandle]:
        """Remove and return all handles of a conversation id."""

    async def drop_engine(self, engine_id: str) -> int:
        """Forget all handles of an engine that has ended; returns how many."""

    async def pinned_tokens(self, engine_ids: Iterable[str]) -> int:
        """What the handles of some engines hold; 0 when it cannot be told."""

    async def reuse_off(self) -> str | None:
        """Why reuse is switched off; None when it is on."""

    async def set_reuse_off(self, reason: str | None) -> bool:
        """Switch reuse for all routers of this store; False when that cannot be told."""

    async def close(self) -> list[StoredHandle]:
        """Leave; returns what nobody can use from now on."""


@dataclass(slots=True)
class _Engine:
    """Handles of one engine, in order of deadline."""

    deadlines_s: dict[bytes, float] = field(default_factory=dict)
    latest_s: float = 0.0
    pinned_tokens: int = 0

    def add(self, stored: StoredHandle) -> None:
        self.deadlines_s[stored.key] = stored.deadline_s
        self.pinned_tokens += stored.pinned_tokens
        if stored.deadline_s < self.latest_s:  # only what was taken and put back
            ordered = sorted(self.deadlines_s.items(), key=lambda item: item[1])
            self.deadlines_s = dict(ordered)
        self.latest_s = max(self.latest_s, stored.deadline_s)

    def remove(self, stored: StoredHandle) -> None:
        del self.deadlines_s[stored.key]
        self.pinned_tokens -= stored.pinned_tokens

    def oldest(self) -> bytes:
        return next(iter(self.deadlines_s))


class MemoryStore:
    """Handles of one router.

    No method awaits, so that on one event loop every call is atomic.
    """

    def __init__(self) -> None:
        self._handles: dict[bytes, StoredHandle] = {}
        self._aliases: dict[bytes, bytes] = {}
        self._lost: dict[bytes, float] = {}
        self._branched: dict[bytes, float] = {}
        self._by_id: dict[bytes, dict[bytes, None]] = {}
        self._engines: dict[str, _Engine] = {}
        self._off_reason: str | None = None
        self.is_up = True
        self.never_waits = True
        self.failures = 0

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def handles(self) -> list[StoredHandle]:
        """All that is kept, as they came."""
        return list(self._handles.values())

    async def pinned_tokens(self, engine_ids: Iterable[str]) -> int:
        """What the handles of some engines hold."""
        mine = (self._engines.get(engine_id) for engine_id in engine_ids)
        return sum(engine.pinned_tokens for engine in mine if engine is not None)

    async def check(self) -> None:
        """Nothing can be wrong with it."""

    async def take(self, keys: Keys, now_s: float) -> Taken | None:
        self._expire(now_s)
        for key in keys.answered:
            if key in self._handles:
                return Taken(self._remove(key))
        return self._take_edited(keys, now_s)

    def _take_edited(self, keys: Keys, now_s: float) -> Taken | None:
        if keys.id_key is None or keys.id_key in self._branched:
            return None
        if any(key in self._lost for key in keys.answered):
            # This history was not edited: another one with the same id took its handle.
            _remember(self._branched, keys.id_key, now_s)
            return None
        for alias in keys.answered:
            key = self._aliases.get(alias)
            if key is not None and self._handles[key].id_key == keys.id_key:
                _remember(self._lost, key, now_s)
                return Taken(self._remove(key), is_edited=True)
        return None

    async def put(
        self, stored: StoredHandle, now_s: float, budget_tokens: int | None
    ) -> list[StoredHandle]:
        self._expire(now_s)
        if now_s >= stored.deadline_s:
            return [stored]
        given_back = [
            self._remove(key) for key in (stored.key, *stored.answered) if key in self._handles
        ]
        if budget_tokens is not None and stored.pinned_tokens > budget_tokens:
            return [*given_back, stored]
        self._insert(stored)
        engine = self._engines[stored.engine_id]
        while budget_tokens is not None and engine.pinned_tokens > budget_tokens:
            given_back.append(self._remove(engine.oldest()))
        return given_back

    async def put_back(self, taken: Taken, now_s: float) -> bool:
        self._expire(now_s)
        stored = taken.stored
        if stored.key in self._handles or now_s >= stored.deadline_s:
            return False
        self._insert(stored)
        self._lost.pop(stored.key, None)
        return True

    async def end(self, id_key: bytes) -> list[StoredHandle]:
        return [self._remove(key) for key in list(self._by_id.get(id_key, ()))]

    async def drop_engine(self, engine_id: str) -> int:
        engine = self._engines.get(engine_id)
        return len([self._remove(key) for key in list(engine.deadlines_s)]) if engine else 0

    async def reuse_off(self) -> str | None:
        return self._off_reason

    async def set_reuse_off(self, reason: str | None) -> bool:
        self._off_reason = reason
        return True

    async def close(self) -> list[StoredHandle]:
        return [self._remove(key) for key in list(self._handles)]

    def _expire(self, now_s: float) -> None:
        for engine in list(self._engines.values()):
            while engine.deadlines_s and self._handles[engine.oldest()].deadline_s <= now_s:
                self._remove(engine.oldest())
        for seen in (self._lost, self._branched):
            while seen and next(iter(seen.values())) <= now_s:
                del seen[next(iter(seen))]

    def _insert(self, stored: StoredHandle) -> None:
        self._handles[stored.key] = stored
        self._engines.setdefault(stored.engine_id, _Engine()).add(stored)
        if stored.id_key is not None:
            self._by_id.setdefault(stored.id_key, {})[stored.key] = None
            for alias in stored.answered[:MOST_ALIASES]:
                self._aliases[alias] = stored.key

    def _remove(self, key: bytes) -> StoredHandle:
        stored = self._handles.pop(key)
        engine = self._engines[stored.engine_id]
        engine.remove(stored)
        if not engine.deadlines_s:
            del self._engines[stored.engine_id]
        if stored.id_key is not None:
            mine = self._by_id[stored.id_key]
            del mine[key]
            if not mine:
                del self._by_id[stored.id_key]
            for alias in stored.answered[:MOST_ALIASES]:
                if self._aliases.get(alias) == key:
                    del self._aliases[alias]
        return stored


def _remember(seen: dict[bytes, float], key: bytes, now_s: float) -> None:
    """Add to a set that forgets with time, and its oldest when it is full."""
    seen.pop(key, None)
    seen[key] = now_s + MEMORY_S
    if len(seen) > _MOST_REMEMBERED:
        del seen[next(iter(seen))]
