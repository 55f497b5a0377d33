"""Handles that several routers share, in Valkey or Redis >= 6.2.

Every operation is one script, so that a handle is taken once whoever asks. Keys carry the
life of the primary they were written to (valkey_link): after a failover or a restart the
handles of the past are not found, since the new primary may not know which were taken.
"""

import asyncio
import base64
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import orjson

from runtime.router.conversation import Keys
from runtime.router.store import MEMORY_S, MOST_ALIASES, StoredHandle, Taken
from runtime.router.valkey_link import FAILURES, Link, NotRun, Unsure, text
from runtime.router.valkey_scripts import DROP_ENGINE, END, PINNED, PUT, TAKE

_PREFIX = "turnback1"
"""Begins all keys; the number is that of the layout, so that two layouts never mix."""
_SWITCH_S = 30 * 24 * 3600
"""How long a switch outlives the last router that reads it."""

logger = logging.getLogger("turnback.router")

_Result = TypeVar("_Result")


class ValkeyStore:
    """Handles in a Valkey or Redis primary.

    Args:
        url: `valkey://`, `redis://`, `valkeys://` or `rediss://`, with host, port, database
            and credentials.
        deployment: routers of one name share handles and the switch.
        timeout_s: longest wait of one operation.

    Raises:
        BadInput: the URL cannot be used.
    """

    def __init__(self, url: str, deployment: str, timeout_s: float) -> None:
        prefix = f"{_PREFIX}:{deployment}"
        self._link = Link(url, prefix, timeout_s)
        self._switch = f"{prefix}:reuse_off"
        self._off_reason: str | None = None
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def never_waits(self) -> bool:
        return False

    @property
    def is_up(self) -> bool:
        return not self._link.is_down

    @property
    def failures(self) -> int:
        """Operations that were not answered in time."""
        return self._link.failures

    async def check(self) -> None:
        await self._link.check()

    def _start(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Let work run to its end, even when the turn that wanted it has gone."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def take(self, keys: Keys, now_s: float) -> Taken | None:
        if not keys.answered or not self.is_up:
            return None
        taking = self._start(self._take(keys, now_s))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._start(self._restore(taking, now_s))
            raise

    async def _restore(self, taking: asyncio.Task[Taken | None], now_s: float) -> None:
        """Put back what a turn has taken that its client has left."""
        if (taken := await taking) is not None:
            await self.put_back(taken, now_s)

    async def _take(self, keys: Keys, now_s: float) -> Taken | None:
        names = [key.hex() for key in keys.answered]
        try:
            answer = await self._link.run(TAKE, _hex(keys.id_key), int(MEMORY_S * 1000), *names)
        except (NotRun, Unsure):
            return None
        if answer is None:
            return None
        value, left_ms, is_edited = answer
        stored = _loaded(value, now_s + int(left_ms) / 1000)
        return Taken(stored, is_edited=bool(is_edited))

    async def put(
        self, stored: StoredHandle, now_s: float, budget_tokens: int | None
    ) -> list[StoredHandle]:
        putting = self._start(self._put(stored, now_s, budget_tokens, only_new=False))
        is_kept, given_back = await asyncio.shield(putting)
        return given_back if is_kept else [*given_back, stored]

    async def put_back(self, taken: Taken, now_s: float) -> bool:
        putting = self._start(self._put(taken.stored, now_s, None, only_new=True))
        return (await asyncio.shield(putting))[0]

    async def _put(
        self, stored: StoredHandle, now_s: float, budget_tokens: int | None, *, only_new: bool
    ) -> tuple[bool, list[StoredHandle]]:
        """Whether it is kept, and what is not any more.

        One that may be kept counts as kept: what somebody may still take must not be given
        back. If it was not, its blocks are free again when its node's time has run out.
        """
        ttl_ms = round((stored.deadline_s - now_s) * 1000)
        if ttl_ms <= 0:
            return False, []
        superseded = [key.hex() for key in stored.answered]
        aliases = superseded[:MOST_ALIASES] if stored.id_key is not None else []
        budget = -1 if budget_tokens is None else budget_tokens
        args: list[str | bytes | int] = [stored.key.hex(), _dumped(stored), ttl_ms]
        args += [stored.engine_id, stored.pinned_tokens, budget, _hex(stored.id_key)]
        args += [int(only_new), len(superseded), *superseded, *aliases]
        try:
            is_kept, values = await self._link.run(PUT, *args)
        except NotRun:
            return False, []
        except Unsure:
            return True, []
        return bool(is_kept), [_loaded(value, now_s) for value in values]

    async def end(self, id_key: bytes) -> list[StoredHandle]:
        try:
            return [_loaded(value, 0.0) for value in await self._link.run(END, id_key.hex())]
        except (NotRun, Unsure):
            return []

    async def pinned_tokens(self, engine_ids: Iterable[str]) -> int:
        try:
            return int(await self._link.run(PINNED, *engine_ids))
        except (NotRun, Unsure):
            return 0

    async def drop_engine(self, engine_id: str) -> int:
        try:
            return int(await self._link.run(DROP_ENGINE, engine_id))
        except (NotRun, Unsure):
            return 0

    async def reuse_off(self) -> str | None:
        """As switched.

        Raises:
            ValkeyError, OSError, TimeoutError: it cannot be read.
        """
        async with self._link.patient() as connection:
            await connection.send_command("GET", self._switch)
            found = await connection.read_response()
            if found is None and self._off_reason is not None:
                # Another primary, or one that has forgotten: what is off stays off.
                told = ("SET", self._switch, self._off_reason, "EX", _SWITCH_S, "NX")
                await connection.send_command(*told)
                await connection.read_response()
                return self._off_reason
            if found:
                await connection.send_command("EXPIRE", self._switch, _SWITCH_S)
                await connection.read_response()
        self._off_reason = text(found) if found else None
        return self._off_reason

    async def set_reuse_off(self, reason: str | None) -> bool:
        try:
            async with self._link.patient() as connection:
                # On is a value of its own: nobody takes it for a forgotten off.
                await connection.send_command("SET", self._switch, reason or "", "EX", _SWITCH_S)
                await connection.read_response()
        except FAILURES:
            return False
        self._off_reason = reason
        return True

    async def close(self) -> list[StoredHandle]:
        """The other routers go on with what is stored."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._link.close()
        return []


def _hex(key: bytes | None) -> str:
    return "" if key is None else key.hex()


def _dumped(stored: StoredHandle) -> bytes:
    fields = {
        "handle": stored.handle,
        "decode_url": stored.decode_url,
        "prefill_url": stored.prefill_url,
        "generation": stored.generation,
        "key": base64.b64encode(stored.key).decode(),
        "answered": [base64.b64encode(key).decode() for key in stored.answered],
        "id_key": None if stored.id_key is None else base64.b64encode(stored.id_key).decode(),
        "pinned_tokens": stored.pinned_tokens,
    }
    return orjson.dumps(fields)


def _loaded(value: bytes, deadline_s: float) -> StoredHandle:
    fields = orjson.loads(value)
    raw_id = fields.pop("id_key")
    return StoredHandle(
        key=base64.b64decode(fields.pop("key")),
        answered=tuple(base64.b64decode(key) for key in fields.pop("answered")),
        id_key=None if raw_id is None else base64.b64decode(raw_id),
        deadline_s=deadline_s,
        **fields,
    )
