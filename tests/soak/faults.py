"""What goes wrong during a soak: engines, clients, the store."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from runtime.local.mock_engine import MockEngine
from tests.router.redis_server import Proxy, RedisServer

_SLOW_S = 0.3
_SICK_S = 0.3
_STOPPED_S = 0.5


class EngineFaults:
    """One random fault at a time, on one random engine.

    Attributes:
        done: how often each fault was played.
    """

    def __init__(self, rng: random.Random, engines: list[MockEngine]) -> None:
        self._rng, self._engines = rng, engines
        self.done: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[MockEngine], None]] = {
            "status": lambda engine: engine.faults.fail_next.append(rng.choice([500, 503, 429])),
            "reset": lambda engine: _add(engine, "reset_next"),
            "garbage": lambda engine: _add(engine, "garbage_next"),
            "early_close": lambda engine: _add(engine, "early_close_next"),
            "slow": lambda engine: engine.faults.slow_next.append(rng.random() * _SLOW_S),
            "stall": lambda engine: _add(engine, "stall_next"),
            "die_in_stream": self._die_in_stream,
            "spoil": lambda engine: engine.faults.spoil_next.append({"remote_port": 0}),
            "restart": lambda engine: engine.restart(),
            "sick": self._sicken,
        }

    def play(self) -> None:
        """One of them, now."""
        kind = self._rng.choice(list(self._kinds))
        self._kinds[kind](self._rng.choice(self._engines))
        self.done[kind] += 1

    def _die_in_stream(self, engine: MockEngine) -> None:
        engine.faults.die_after_chunks = self._rng.randrange(6)

    def _sicken(self, engine: MockEngine) -> None:
        engine.faults.is_sick = True
        asyncio.get_running_loop().call_later(_SICK_S, self._cure, engine)

    @staticmethod
    def _cure(engine: MockEngine) -> None:
        engine.faults.is_sick = False

    def end(self) -> None:
        """All is well from now on."""
        for engine in self._engines:
            engine.faults = type(engine.faults)()

    @property
    def lost_replies(self) -> int:
        """How many replies that hold a handle or P dict no router has seen, at most."""
        kinds = ("early_close", "die_in_stream", "spoil", "restart")
        return sum(self.done[kind] for kind in kinds)

    @property
    def unread(self) -> int:
        """How many P dicts no D has read because it failed first, at most."""
        kinds = ("status", "reset", "garbage", "stall", "slow", "sick")
        return self.lost_replies + sum(self.done[kind] for kind in kinds)


def _add(engine: MockEngine, name: str) -> None:
    setattr(engine.faults, name, getattr(engine.faults, name) + 1)


class StoreFaults:
    """A store that stops, dies and comes back, or hands over to its replica.

    Args:
        rng: decides.
        servers: the primary and the one that takes over.
        proxy: leads to the primary.

    Attributes:
        done: how often each fault was played.
    """

    def __init__(self, rng: random.Random, servers: list[RedisServer], proxy: Proxy) -> None:
        self._rng, self._servers, self._proxy = rng, servers, proxy
        self.done: Counter[str] = Counter()

    async def play(self) -> None:
        """One of them; returns when the store is back."""
        kind = self._rng.choice(["stopped", "killed", "failed_over"])
        primary = self._servers[0]
        if kind == "stopped":
            primary.pause()
            await asyncio.sleep(_STOPPED_S)
            primary.go_on()
        elif kind == "killed":
            primary.kill()
            await asyncio.sleep(_STOPPED_S)
            await asyncio.to_thread(primary.start)
        else:
            await self._fail_over()
        self.done[kind] += 1

    async def _fail_over(self) -> None:
        """The replica, as far as it has come, is the primary from now on."""
        primary, replica = self._servers
        await asyncio.to_thread(replica.ask, "REPLICAOF", "127.0.0.1", str(primary.port))
        await asyncio.sleep(_STOPPED_S)
        await asyncio.to_thread(replica.ask, "REPLICAOF", "NO", "ONE")
        self._proxy.target = replica.port
        self._proxy.cut()
        self._servers.reverse()
