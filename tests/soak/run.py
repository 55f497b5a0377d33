"""Many turns with random faults on mock engines; nothing may be lost, mixed up or left behind.

    make soak SOAK_TURNS=20000 SEED=1
    python -m tests.soak.run [--turns N] [--seed N] [--store memory|redis]

Ends with 1 when a rule was broken; what happened stands in out/soak/ either way.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from runtime.contract.node import KvTransferSpec
from runtime.engine_api import KV_PARAMS, NIXL_AFTER_EXPIRY
from runtime.local.mock_engine import MockEngine
from runtime.local.mock_tokens import MockTokens
from tests.router.fleet import Fleet, running_fleet, write_tokenizer
from tests.router.redis_server import RedisServer
from tests.soak.faults import EngineFaults, StoreFaults
from tests.soak.play import Outcome, Player

PLAYERS = 12
TTL_S, LEASE_S = 15, 3.0
_FAULT_EVERY_TURNS = 12
_STORE_FAULT_EVERY_S = 4.0


@dataclass
class Verdict:
    """What a soak found.

    Attributes:
        sent_twice: handles and P dicts that reached two legs.
        stranded: sequences that engines still keep after every lease and TTL.
        lost_with_replies: handles that D keeps and that the store does not know, until
            their TTL: the reply that told of them was lost.
        beyond_faults: how many of these no injected loss of a reply explains.
        reads_after_free: as the engines count them.
    """

    sent_twice: int = 0
    stranded: int = 0
    beyond_faults: int = 0
    lost_with_replies: int = 0
    reads_after_free: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def broken_rules(self) -> list[str]:
        """Each in words."""
        rules = {
            "handles or P dicts sent twice": self.sent_twice,
            "sequences stranded at the end": self.stranded,
            "handles lost by the router itself": self.beyond_faults,
            "reads of freed blocks": int(self.reads_after_free),
            "replies that no client may get": len(self.outcome.problems),
        }
        return [f"{count} {rule}" for rule, count in rules.items() if count]


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


async def soak(
    turns: int, seed: int, store: RedisServer | None, on_progress: Callable[[int], None]
) -> Verdict:
    """Play and judge.

    Args:
        turns: of all players together.
        seed: of every decision.
        store: a server that the router shares handles through; None: its own memory.
        on_progress: called with the turns so far.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    verdict = Verdict()
    folder = Path(tempfile.mkdtemp(prefix="turnback-soak-"))
    write_tokenizer(folder)
    spec: dict[str, Any] = {
        "kv": KvTransferSpec(decoder_kv_blocks_ttl_s=TTL_S),
        "store_url": store.url if store else None,
        "silence_timeout_s": 1.0,
        "prefill_timeout_s": 1.0,
        "queue_timeout_s": 2.0,
        "health_interval_s": 0.1,
        "breaker_open_s": 0.3,
        "canary_share": 0.0,
    }
    engine = {"ttl_s": TTL_S, "lease_s": LEASE_S}
    async with running_fleet(folder, prefills=2, decodes=2, engine=engine, **spec) as fleet:
        engines = [*fleet.prefills, *fleet.decodes]
        faults, sent = EngineFaults(rng, engines), Sent(engines)
        players = [
            Player(fleet, MockTokens(folder), random.Random(rng.random()), at, verdict.outcome)  # noqa: S311
            for at in range(PLAYERS)
        ]
        playing = asyncio.gather(*(player.play(turns) for player in players))
        breaking = asyncio.create_task(_break(rng, faults, store, verdict, sent, on_progress))
        await playing
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
        faults.end()
        verdict.faults.update(faults.done)
        await _settle(fleet, faults, verdict, is_shared=store is not None)
        sent.collect()
        verdict.sent_twice = sent.twice
        verdict.reads_after_free = sum(
            each.transfers.counters[NIXL_AFTER_EXPIRY] for each in engines
        )
    return verdict


async def _break(
    rng: random.Random,
    faults: EngineFaults,
    store: RedisServer | None,
    verdict: Verdict,
    sent: Sent,
    on_progress: Callable[[int], None],
) -> None:
    """Faults for ever."""
    store_faults = StoreFaults(rng, store) if store else None
    next_turn, next_store_s = 0, time.monotonic() + _STORE_FAULT_EVERY_S
    while True:
        await asyncio.sleep(0.01)
        if verdict.outcome.turns >= next_turn:
            next_turn = verdict.outcome.turns + rng.randint(1, 2 * _FAULT_EVERY_TURNS)
            faults.play()
            sent.collect()
            on_progress(verdict.outcome.turns)
        if store_faults is not None and time.monotonic() > next_store_s:
            await store_faults.play()
            verdict.faults.update(store_faults.done)
            store_faults.done.clear()
            next_store_s = time.monotonic() + _STORE_FAULT_EVERY_S


async def _settle(fleet: Fleet, faults: EngineFaults, verdict: Verdict, *, is_shared: bool) -> None:
    """Let leases and TTLs end, and count what is left at each point."""
    async with asyncio.timeout(30):
        while fleet.turns.admission.running:
            await asyncio.sleep(0.05)
    await fleet.turns.releases.finish()
    if not is_shared:
        kept = sum(node.transfers.kept_count for node in fleet.decodes)
        unknown = kept - len(fleet.stored)
        verdict.lost_with_replies = unknown
        verdict.beyond_faults = max(0, unknown - faults.lost_replies)
    await asyncio.sleep(LEASE_S)
    stranded = sum(node.transfers.kept_count for node in fleet.prefills)
    await asyncio.sleep(TTL_S - LEASE_S + 1)
    stranded += sum(node.transfers.kept_count for node in fleet.decodes)
    verdict.stranded = stranded


def _told(verdict: Verdict, took_s: float) -> dict[str, Any]:
    return {
        "turns": verdict.outcome.turns,
        "seconds": round(took_s, 1),
        "outcomes": dict(verdict.outcome.counts),
        "paths": dict(verdict.outcome.paths),
        "faults": dict(verdict.faults),
        "sent_twice": verdict.sent_twice,
        "lost_with_replies": verdict.lost_with_replies,
        "stranded": verdict.stranded,
        "reads_after_free": verdict.reads_after_free,
        "problems": verdict.outcome.problems[:20],
        "broken_rules": verdict.broken_rules,
    }


@contextmanager
def _server(folder: str) -> Iterator[RedisServer]:
    """A store that ends with the soak."""
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def main() -> int:
    """Soak with the given sizes; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("memory", "redis", "both"), default="both")
    asked = parser.parse_args()
    out = Path("out") / "soak"
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    for kind in ("memory", "redis") if asked.store == "both" else (asked.store,):
        began_s, last = time.perf_counter(), 0

        def progress(turns: int, kind: str = kind) -> None:
            nonlocal last
            if turns - last >= asked.turns / 10:
                last = turns
                print(f"{kind}: {turns} of {asked.turns} turns", flush=True)  # noqa: T201

        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            store = stack.enter_context(_server(folder)) if kind == "redis" else None
            verdict = asyncio.run(soak(asked.turns, asked.seed, store, progress))
        told = _told(verdict, time.perf_counter() - began_s)
        (out / f"{kind}.json").write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
        print(orjson.dumps({kind: told}, option=orjson.OPT_INDENT_2).decode())  # noqa: T201
        failed = failed or bool(verdict.broken_rules)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
