"""Connections to the primary of a store, each bound to one life of one server.

A life ends when the server restarts, or stops or begins to be the primary: its run id or
its replication id is another one from then on. Commands carry the life that their own
connection leads to, so that nothing of an earlier one is found, and the time at which
they were asked, so that nothing is taken for a turn that no longer waits.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from valkey.asyncio import Connection, ConnectionPool
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff
from valkey.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    ValkeyError,
)

from runtime.errors import BadInput
from runtime.router.valkey_scripts import PROBE, Script

OLDEST_VERSION = (6, 2)
FAILURES = (
    *(ValkeyError, OSError, TimeoutError),
    # Whoever else may answer at its address, valkey-py is not ready for it.
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError),
)
"""What an unreachable store raises, or one that is none."""
_PATIENCE_S = 1.0
"""Longest wait for a connection, for the switch, and between two tries of a lost store."""
_MOST_CONNECTIONS = 8
_TLS = ("rediss://", "valkeys://")
_LATE_S = 0.010
"""An event loop that is so late, and not the store, has missed an answer."""
_REFUSALS = (
    *(AuthenticationError, BusyLoadingError, NoPermissionError),
    *(NoScriptError, OutOfMemoryError, ReadOnlyError),
)

logger = logging.getLogger("turnback.router")


class NotRun(Exception):
    """The store has certainly not done what it was asked."""


class Unsure(Exception):
    """The store may have done what it was asked, or not."""


class UnfitStore(ValkeyError):
    """A server that cannot be the store, however long one waits."""


_HOPELESS = (UnfitStore, AuthenticationError, NoPermissionError)


def life_name(told: str) -> str:
    """Name the life of the primary that answered INFO.

    Raises:
        UnfitStore: too old, a cluster, or without a run id.
        ValkeyError: a replica; it may become the primary.
    """
    fields = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    version = fields.get("redis_version", "")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_VERSION:
        raise UnfitStore(f"a server of version {version or 'unknown'}, older than 6.2")
    if fields.get("redis_mode") == "cluster":
        raise UnfitStore("a server in cluster mode")
    if not fields.get("run_id") or not fields.get("master_replid"):
        raise UnfitStore("a server that does not tell its run id and replication id")
    if fields.get("role") != "master":
        raise ValkeyError("the server is a replica now")
    return f"{fields['run_id']}{fields['master_replid'][:8]}"


class Link:
    """Runs scripts on the primary while it can be reached.

    Args:
        url: `valkey://`, `redis://`, `valkeys://` or `rediss://`.
        prefix: of all keys.
        timeout_s: longest wait for one script.

    Raises:
        BadInput: the URL cannot be used.
    """

    def __init__(self, url: str, prefix: str, timeout_s: float) -> None:
        self._prefix, self._timeout_s = prefix, timeout_s
        self._place = _place(url)
        self._lives: dict[Connection, str] = {}
        self._life = ""
        self._ahead_us = 0  # the server's clock less the event loop's
        self._recovery: asyncio.Task[None] | None = None
        self._is_closed = False
        self.is_down = False
        self.failures = 0
        """Scripts that were not answered in time."""
        self._slots = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._pool = ConnectionPool.from_url(
            url,
            socket_timeout=None,  # every use stands under asyncio.timeout
            socket_connect_timeout=_PATIENCE_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            lib_name=None,
            lib_version=None,
            valkey_connect_func=self._greet,
            # valkey-py leaves it out by default: any trusted certificate would do.
            **({"ssl_check_hostname": True} if self._place.startswith(_TLS) else {}),
        )

    async def _greet(self, connection: Connection) -> None:
        """Every new connection tells whom it leads to."""
        await connection.on_connect()
        await self._identify(connection)

    async def _identify(self, connection: Connection) -> None:
        for section in ("server", "replication"):
            await connection.send_command("INFO", section)
        await connection.send_command("TIME")
        told = [await connection.read_response() for _ in range(3)]
        seconds, microseconds = (int(part) for part in told.pop())
        life = life_name("\n".join(text(part) for part in told))
        self._lives[connection] = life
        self._ahead_us = seconds * 1_000_000 + microseconds - _now_us()
        if self._life and self._life != life:
            logger.warning("the store has another primary: all handles of the past are dropped")
        self._life = life

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        async with self._slots:
            connection = await self._pool.get_connection("")  # type: ignore[no-untyped-call]
            try:
                if self._lives[connection] != self._life:
                    await connection.disconnect(nowait=True)
                    await connection.connect()
                yield connection
            finally:
                await self._pool.release(connection)

    async def run(self, script: Script, *args: str | bytes | int) -> Any:
        """Run a script; its answer.

        Raises:
            NotRun: it has not been run, and will not be.
            Unsure: it may have been run.
        """
        if self.is_down or self._is_closed:
            raise NotRun
        began_us, is_sent = _now_us(), False
        try:
            async with asyncio.timeout(self._timeout_s), self._connected() as connection:
                is_sent = True
                return await self._evaluated(connection, script, *args)
        except FAILURES as error:
            is_late = _now_us() - began_us > (self._timeout_s + _LATE_S) * 1e6
            # A wait for this router's own connections says nothing of the store.
            is_ours = isinstance(error, TimeoutError) and (is_late or self._slots.locked())
            if is_ours:
                self.failures += 1
            else:
                self._went_down(error)
            raise (Unsure if is_sent and not _is_refusal(error) else NotRun) from error

    async def _evaluated(
        self, connection: Connection, script: Script, *args: str | bytes | int
    ) -> Any:
        """One round trip; a second one the first time that a server sees the script."""
        asked_us = _now_us() + self._ahead_us
        place = f"{self._prefix}:{self._lives[connection]}:"
        full = (0, place, asked_us, int(2e6 * self._timeout_s), *args)
        try:
            return await self._asked(connection, "EVALSHA", script.sha, *full)
        except NoScriptError:
            return await self._asked(connection, "EVAL", script.text, *full)

    async def _asked(self, connection: Connection, *command: str | bytes | int) -> Any:
        # Whatever interrupts either line closes the connection: a late answer is never read.
        await connection.send_command(*command)
        return await connection.read_response()

    @asynccontextmanager
    async def patient(self) -> AsyncIterator[Connection]:
        """A connection for what no turn waits for; it is made sure whom it leads to.

        Raises:
            ValkeyError, OSError, TimeoutError: the store cannot be reached.
        """
        if self._is_closed:
            raise TimeoutError("the store has been left")
        async with asyncio.timeout(_PATIENCE_S), self._connected() as connection:
            await self._identify(connection)
            yield connection

    def _went_down(self, error: Exception) -> None:
        self.failures += 1
        if not self.is_down and not self._is_closed:
            self.is_down = True
            logger.warning(
                "the store does not answer, turns run cold until it does: %s",
                str(error) or type(error).__name__,
            )
            self._recovery = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        while self.is_down:
            await asyncio.sleep(_PATIENCE_S)
            try:
                await self._pool.disconnect(inuse_connections=False)
                async with self.patient() as connection, asyncio.timeout(self._timeout_s):
                    await self._evaluated(connection, PROBE)
            except FAILURES as error:
                await self._pool.disconnect()
                logger.debug("the store still does not answer: %s", error)
            else:
                self.is_down = False
                logger.warning("the store answers again")

    async def check(self) -> None:
        """Try the store once; one that is merely down is waited for.

        Raises:
            BadInput: it answers, and will never serve.
        """
        try:
            async with self.patient() as connection:
                await self._evaluated(connection, PROBE)
        except FAILURES as error:
            if not isinstance(error, _HOPELESS) and "DB index" not in str(error):
                self._went_down(error)
                return
            raise BadInput(
                "the store cannot be used",
                got=f"{self._place}: {error}",
                allowed="the primary of a Valkey or Redis >= 6.2 without cluster mode, a database "
                "that it has, and a user that may run EVALSHA, EVAL, INFO, GET and SET",
                fix="correct --store, e.g. rediss://user:password@host:6379/0",
            ) from error

    async def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        await self._pool.disconnect()


def text(value: bytes | str) -> str:
    """An answer as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _now_us() -> int:
    return time.monotonic_ns() // 1000  # uvloop's own clock counts milliseconds


def _is_refusal(error: Exception) -> bool:
    """Whether the server has answered that it did not run the script."""
    # Up to Redis 6 the error of a script's first write stands in a text.
    return isinstance(error, _REFUSALS) or (
        isinstance(error, ResponseError)
        and any(word in str(error) for word in ("LATE ", "READONLY ", "OOM "))
    )


def _place(url: str) -> str:
    """The URL as it may be shown."""
    try:
        parts = urlsplit(url)
        if (
            parts.hostname
            and not parts.query
            and (parts.path in ("", "/") or parts.path[1:].isdigit())
        ):
            return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"
    except ValueError:
        pass  # a port that is no number
    raise BadInput(
        "the store's URL cannot be used",
        got=url.rpartition("@")[2],
        allowed="valkey, redis, valkeys or rediss, then ://[user:password@]host[:port][/database]",
        fix="correct --store; escape @, : and / in the password as %40, %3A and %2F",
    )
