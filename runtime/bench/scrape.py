"""Metrics of engines and router, read before, during and after a pass."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import aiohttp

from runtime.bench.folder import Sample
from runtime.engine_api import (
    EXTERNAL_HIT_TOKENS,
    KV_USAGE,
    NIXL_AFTER_EXPIRY,
    NIXL_BYTES,
    NIXL_EXPIRED,
    NIXL_FAILED,
    NIXL_READS,
    NIXL_SECONDS,
    PREEMPTIONS,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    kv_capacity_tokens,
    mean_metric,
    parse_metrics,
    samples,
)

Counters = dict[str, float]

COUNTERS: Mapping[str, str] = {
    "nixl_reads": NIXL_READS,
    "nixl_bytes": NIXL_BYTES,
    "nixl_seconds": NIXL_SECONDS,
    "failed_transfers": NIXL_FAILED,
    "reads_after_free": NIXL_AFTER_EXPIRY,
    "expired": NIXL_EXPIRED,
    "pulled_tokens": EXTERNAL_HIT_TOKENS,
    "preemptions": PREEMPTIONS,
}
"""Name in the report -> sample name on an engine's /metrics; counted since its start."""

_ENGINE_NOW: Mapping[str, str] = {
    "running": REQUESTS_RUNNING,
    "waiting": REQUESTS_WAITING,
}

CAPACITY, PINNED = "capacity_tokens", "pinned_tokens"
"""Tokens that an engine's KV blocks hold; tokens that handles pin, by the router."""

ROUTER_NOW: Mapping[str, str] = {
    "running": "turnback_turns_running",
    "waiting": "turnback_turns_waiting",
    PINNED: "turnback_pinned_tokens",
}
"""Name in the report -> sample name on the router's /metrics."""

_TIMEOUT_S = 5.0
_BEFORE_S = -1.0
"""Moment of a reading that was taken before the pass began."""


@dataclass(frozen=True)
class Server:
    """One server whose metrics are read.

    Attributes:
        role: `prefill`, `decode` or `router`.
        url: its address, without a path.
    """

    role: str
    url: str


async def scrape(session: aiohttp.ClientSession, url: str) -> Counters | None:
    """Read one engine's counters.

    Args:
        session: HTTP session.
        url: the engine's address, without a path.

    Returns:
        One value per name of COUNTERS; None when the engine does not answer, since
        a run whose engine died still deserves its report.
    """
    return await _read(session, url, lambda page: _named(page, COUNTERS)) or None


async def read_values(session: aiohttp.ClientSession, server: Server) -> Counters:
    """Everything a report wants of a server, by the report's names; empty when it is silent."""
    return await _read(session, server.url, _router if server.role == "router" else _engine)


async def settled_scrape(
    session: aiohttp.ClientSession, url: str, *, every_s: float = 0.5, limit_s: float = 10.0
) -> Counters | None:
    """Scrape until two readings agree: vLLM publishes its counters a little late.

    Args:
        session: HTTP session.
        url: the engine's address, without a path.
        every_s: time between two readings.
        limit_s: after this the latest reading is taken as it is.
    """
    latest = await scrape(session, url)
    for _ in range(round(limit_s / every_s)):
        await asyncio.sleep(every_s)
        before, latest = latest, await scrape(session, url)
        if latest == before:
            break
    return latest


def difference(
    before: Mapping[str, float] | None, after: Mapping[str, float] | None
) -> Counters | None:
    """What was counted between two readings; None when either is missing."""
    if before is None or after is None:
        return None
    return {name: after[name] - before[name] for name in COUNTERS}


class Sampler:
    """Reads servers once a second while a pass runs; none of them can end it.

    Args:
        session: HTTP session.
        servers: whose metrics.
        add: takes each reading, as `PassFolder.add_sample` does; one with no values is of
            a server that did not answer.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        servers: Sequence[Server],
        add: Callable[[Sample], None],
    ) -> None:
        self._session, self._servers, self._add = session, servers, add
        self._began_s: float | None = None

    def begin(self) -> None:
        """The pass begins now; readings from here on are of it."""
        self._began_s = perf_counter()

    async def settle(self, *, every_s: float = 0.5, limit_s: float = 10.0) -> None:
        """Read all servers once their counters stand still; before `begin` and at the end."""
        waits = (
            settled_scrape(self._session, server.url, every_s=every_s, limit_s=limit_s)
            for server in self._servers
            if server.role != "router"
        )
        await asyncio.gather(*waits)
        await self.read()

    async def read(self) -> None:
        """Read all servers now, at the same time."""
        await asyncio.gather(*map(self._read, self._servers))

    async def _read(self, server: Server) -> None:
        at_s = _BEFORE_S if self._began_s is None else perf_counter() - self._began_s
        values = await read_values(self._session, server)
        self._add(Sample(round(at_s, 3), server.role, server.url, values))

    @contextlib.asynccontextmanager
    async def running(self, every_s: float = 1.0) -> AsyncIterator[None]:
        """Read every `every_s` until the block ends."""
        reading = asyncio.create_task(self._for_ever(every_s))
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _for_ever(self, every_s: float) -> None:
        while True:
            await self.read()
            await asyncio.sleep(every_s)


async def _read(
    session: aiohttp.ClientSession, url: str, parse: Callable[[str], Counters]
) -> Counters:
    """What a page says; empty when there is none, or no numbers in it."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with session.get(f"{url.rstrip('/')}/metrics", timeout=timeout) as response:
            if response.status != 200:
                return {}
            return parse((await response.read()).decode())
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return {}


def _engine(page: str) -> Counters:
    if not _shows(page, REQUESTS_RUNNING):
        return {}
    return _named(page, {**COUNTERS, **_ENGINE_NOW}) | {
        "kv_usage": mean_metric(page, KV_USAGE),
        CAPACITY: kv_capacity_tokens(page),
    }


def _router(page: str) -> Counters:
    return _named(page, ROUTER_NOW) if _shows(page, ROUTER_NOW["running"]) else {}


def _shows(page: str, name: str) -> bool:
    """Whether a sample that is always there is: another page would read as all zeros."""
    return any(found == name for found, _ in samples(page))


def _named(page: str, names: Mapping[str, str]) -> Counters:
    values = parse_metrics(page, names.values())
    return {name: values[sample] for name, sample in names.items()}
