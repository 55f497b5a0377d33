"""Transfer counters of the engines, read before and after the run."""

import asyncio
from collections.abc import Mapping

import aiohttp

from runtime.engine_api import (
    NIXL_AFTER_EXPIRY,
    NIXL_BYTES,
    NIXL_FAILED,
    NIXL_READS,
    NIXL_SECONDS,
    parse_metrics,
)

Counters = dict[str, float]

COUNTERS: Mapping[str, str] = {
    "nixl_reads": NIXL_READS,
    "nixl_bytes": NIXL_BYTES,
    "nixl_seconds": NIXL_SECONDS,
    "failed_transfers": NIXL_FAILED,
    "reads_after_free": NIXL_AFTER_EXPIRY,
}
"""Name in the report -> sample name on /metrics."""

_TIMEOUT_S = 5.0


async def scrape(session: aiohttp.ClientSession, url: str) -> Counters | None:
    """Read one engine's counters.

    Args:
        session: HTTP session.
        url: the engine's address, without a path.

    Returns:
        One value per name of COUNTERS; None when the engine does not answer, since
        a run whose engine died still deserves its report.
    """
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with session.get(f"{url.rstrip('/')}/metrics", timeout=timeout) as response:
            if response.status != 200:
                return None
            page = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return None
    values = parse_metrics(page, COUNTERS.values())
    return {name: values[sample] for name, sample in COUNTERS.items()}


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


def difference(before: Counters | None, after: Counters | None) -> Counters | None:
    """What was counted between two readings; None when either is missing."""
    if before is None or after is None:
        return None
    return {name: after[name] - before[name] for name in COUNTERS}
