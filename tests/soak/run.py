"""Many turns with random faults on mock engines; nothing may be lost, mixed up or left behind.

    make soak SOAK_TURNS=20000 SEED=1
    python -m tests.soak.run [--turns N] [--seed N]

Ends with 1 when a rule was broken; what happened stands in out/soak/ either way.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop

from runtime.contract.node import KvTransferSpec
from runtime.engine_api import KV_PARAMS, NIXL_AFTER_EXPIRY
from runtime.local.mock_engine import MockEngine
from runtime.local.mock_tokens import MockTokens
from tests.router.fleet import Fleet, running_fleet, write_tokenizer
from tests.router.redis_server import Proxy, RedisServer, proxy_to, redis_server
from tests.soak.faults import EngineFaults, StoreFaults
from tests.soak.play import Outcome, Player

PLAYERS = 12
TTL_S, LEASE_S = 15, 3.0
KINDS = {
    "calm": "clients leave, branch, end; engines and store are well",
    "memory": "engines fail in every way; handles in the router's memory",
    "shared": "the same, and a shared store stops, dies and fails over",
}
_FAULT_EVERY_TURNS = 12
_SPEC: dict[str, Any] = {
    "silence_timeout_s": 1.0,
    "prefill_timeout_s": 1.0,
    "queue_timeout_s": 2.0,
    "health_interval_s": 0.1,
    "breaker_open_s": 0.3,
    "canary_share": 0.0,
}
_PATIENT: dict[str, Any] = {
    "silence_timeout_s": 30.0,
    "prefill_timeout_s": 30.0,
    "health_interval_s": 5.0,
}
"""Where no engine fails, a machine that stands still for a second must not look as if one did."""
_STORE_FAULT_EVERY_S = 4.0
_USED_TURNS = 10
"""Warm turns before the store fails for the first time."""
_TOLD_PROBLEMS = 20


@dataclass
class Verdict:
    """What a soak found.

    Attributes:
        sent_twice: handles and P dicts that reached two legs.
        left_on_prefill: P dicts that ended with their lease, and no fault explains.
        left_on_decode: handles that D keeps, that the store does not know, and that no
            lost reply explains.
        left_at_the_end: sequences that engines keep after all was given back, or has ended.
        reads_after_free: as the engines count them.
    """

    sent_twice: int = 0
    left_on_prefill: int = 0
    left_on_decode: int = 0
    left_at_the_end: int = 0
    reads_after_free: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def broken_rules(self) -> list[str]:
        """Each in words."""
        rules = {
            "handles or P dicts sent twice": self.sent_twice,
            "P dicts stranded on prefill nodes": self.left_on_prefill,
            "handles stranded on decode nodes": self.left_on_decode,
            "sequences left at the end": self.left_at_the_end,
            "reads of freed blocks": int(self.reads_after_free),
            "replies that no client may get": len(self.outcome.problems),
        }
        told = [f"{count} {rule}" for rule, count in rules.items() if count]
        return told + self.outcome.problems[:_TOLD_PROBLEMS]


@dataclass(frozen=True)
class Shared:
    """A store that routers share.

    Attributes:
        servers: the primary and the one that may take over.
        proxy: leads to the primary.
    """

    servers: list[RedisServer]
    proxy: Proxy

    @property
    def handles(self) -> int:
        """Handles of this primary's life."""
        counted = self.servers[0].ask("EVAL", "return #redis.call('KEYS', '*:h:*')", "0")
        return int(counted.strip(":\r\n"))


@asynccontextmanager
async def shared_store() -> AsyncIterator[Shared]:
    """Two servers and a proxy to the first."""
    with redis_server() as one, redis_server() as other:
        async with proxy_to(one.port) as proxy:
            yield Shared([one, other], proxy)


class Sent:
    """Ids of handles and P dicts that engines were sent."""

    def __init__(self, engines: list[MockEngine]) -> None:
        self._engines = engines
        self._seen: Counter[str] = Counter()

    def collect(self) -> None:
        """Take over, and forget, what has arrived since the last call."""
        for engine in self._engines:
            for seen in engine.requests:
                params = seen.body.get(KV_PARAMS) or {}
                if "remote_request_id" in params:
                    self._seen[params["remote_request_id"]] += 1
            engine.requests.clear()

    @property
    def twice(self) -> int:
        """How many came more than once."""
        return sum(count > 1 for count in self._seen.values())


def _spec(ttl_s: int, shared: Shared | None, *, is_calm: bool) -> dict[str, Any]:
    """Settings of the router."""
    own = {
        "kv": KvTransferSpec(decoder_kv_blocks_ttl_s=ttl_s),
        "store_url": shared.proxy.url if shared else None,
    }
    return _SPEC | (_PATIENT if is_calm else {}) | own


async def soak(
    turns: int,
    seed: int,
    shared: Shared | None,
    on_progress: Callable[[int], None],
    *,
    is_calm: bool = False,
) -> Verdict:
    """Play and judge.

    Args:
        turns: of all players together.
        seed: of every decision.
        shared: what the router keeps handles in; None: its own memory.
        on_progress: called with the turns so far.
        is_calm: only clients do what they like; then nothing at all may be left behind.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    verdict = Verdict()
    ttl_s = 480 if is_calm else TTL_S
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder)
        spec = _spec(ttl_s, shared, is_calm=is_calm)
        engine = {"ttl_s": ttl_s, "lease_s": LEASE_S}
        async with running_fleet(folder, prefills=2, decodes=2, engine=engine, **spec) as fleet:
            engines = [*fleet.prefills, *fleet.decodes]
            faults, sent = EngineFaults(rng, engines), Sent(engines)
            players = [
                Player(fleet, MockTokens(folder), random.Random(rng.random()), at, verdict.outcome)  # noqa: S311
                for at in range(PLAYERS)
            ]
            playing = asyncio.gather(*(player.play(turns) for player in players))
            breaking = asyncio.create_task(
                _break(rng, None if is_calm else faults, shared, verdict, sent, on_progress)
            )
            await playing
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)
            faults.end()
            verdict.faults.update(faults.done)
            await _settle(fleet, faults, verdict, shared, ttl_s)
            sent.collect()
            verdict.sent_twice = sent.twice
    return verdict


async def _break(
    rng: random.Random,
    faults: EngineFaults | None,
    shared: Shared | None,
    verdict: Verdict,
    sent: Sent,
    on_progress: Callable[[int], None],
) -> None:
    """Faults for ever; without engine faults there are none of the store either."""
    store = StoreFaults(rng, shared.servers, shared.proxy) if shared and faults else None
    next_turn, next_store_s = 0, time.monotonic() + _STORE_FAULT_EVERY_S
    while True:
        await asyncio.sleep(0.01)
        if verdict.outcome.turns >= next_turn:
            next_turn = verdict.outcome.turns + rng.randint(1, 2 * _FAULT_EVERY_TURNS)
            if faults is not None:
                faults.play()
            sent.collect()
            on_progress(verdict.outcome.turns)
        is_in_use = verdict.outcome.paths["warm"] > _USED_TURNS
        if store is not None and is_in_use and time.monotonic() > next_store_s:
            await store.play()
            verdict.faults.update(store.done)
            store.done.clear()
            next_store_s = time.monotonic() + _STORE_FAULT_EVERY_S


async def _settle(
    fleet: Fleet, faults: EngineFaults, verdict: Verdict, shared: Shared | None, ttl_s: int
) -> None:
    """Count what is left, and why: at once, after the leases, after everything."""
    async with asyncio.timeout(30):
        while fleet.turns.admission.running:
            await asyncio.sleep(0.05)
    await fleet.turns.releases.finish()
    is_calm = not faults.done
    kept = sum(node.transfers.kept_count for node in fleet.decodes)
    # A store that failed has forgotten what D keeps until its TTL.
    if is_calm or shared is None:
        known = await asyncio.to_thread(lambda: shared.handles) if shared else len(fleet.stored)
        unsure = fleet.turns.store.failures  # on a busy machine a store may answer too late
        verdict.left_on_decode = max(0, kept - known - faults.lost_replies - unsure)
    await asyncio.sleep(LEASE_S)
    expired = sum(node.transfers.expired_count for node in fleet.prefills)
    verdict.left_on_prefill = max(0, expired - faults.unread)
    left = sum(node.transfers.kept_count for node in fleet.prefills)
    fleet.turns.releases.handles(await fleet.turns.store.close())
    await fleet.turns.releases.finish()
    if not is_calm:
        await asyncio.sleep(ttl_s - LEASE_S + 1)
    if not is_calm or shared is None:
        left += sum(node.transfers.kept_count for node in fleet.decodes)
    verdict.left_at_the_end = left
    engines = [*fleet.prefills, *fleet.decodes]
    verdict.reads_after_free = sum(one.transfers.counters[NIXL_AFTER_EXPIRY] for one in engines)


def _told(verdict: Verdict, took_s: float) -> dict[str, Any]:
    return {
        "turns": verdict.outcome.turns,
        "seconds": round(took_s, 1),
        "outcomes": dict(verdict.outcome.counts),
        "paths": dict(verdict.outcome.paths),
        "faults": dict(verdict.faults),
        "sent_twice": verdict.sent_twice,
        "left_on_prefill": verdict.left_on_prefill,
        "left_on_decode": verdict.left_on_decode,
        "left_at_the_end": verdict.left_at_the_end,
        "reads_after_free": verdict.reads_after_free,
        "problems": verdict.outcome.problems[:_TOLD_PROBLEMS],
        "broken_rules": verdict.broken_rules,
    }


async def _played(kind: str, turns: int, seed: int, progress: Callable[[int], None]) -> Verdict:
    """One soak of a kind."""
    if kind == "memory":
        return await soak(turns, seed, None, progress)
    if kind == "calm":
        return await soak(turns, seed, None, progress, is_calm=True)
    async with shared_store() as shared:
        return await soak(turns, seed, shared, progress)


def main() -> int:
    """Soak with the given sizes; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    out = Path("out") / "soak"
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    for kind in KINDS:
        began_s, last = time.perf_counter(), 0

        def progress(turns: int, kind: str = kind) -> None:
            nonlocal last
            if turns - last >= asked.turns / 10:
                last = turns
                print(f"{kind}: {turns} of {asked.turns} turns", flush=True)  # noqa: T201

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the router's
            verdict = runner.run(_played(kind, asked.turns, asked.seed, progress))
        told = _told(verdict, time.perf_counter() - began_s)
        (out / f"{kind}.json").write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
        print(orjson.dumps({kind: told}, option=orjson.OPT_INDENT_2).decode())  # noqa: T201
        failed = failed or bool(verdict.broken_rules)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
