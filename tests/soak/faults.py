"""What goes wrong during a soak: engines, clients, the store."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable

from runtime.local.mock_engine import MockEngine
from tests.router.redis_server import RedisServer

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
        """How many replies may have held a handle that no router has seen."""
        kinds = ("early_close", "die_in_stream", "spoil", "restart", "stall", "slow")
        return sum(self.done[kind] for kind in kinds)


def _add(engine: MockEngine, name: str) -> None:
    setattr(engine.faults, name, getattr(engine.faults, name) + 1)


class StoreFaults:
    """A store that stops, dies and comes back.

    Attributes:
        done: how often each fault was played.
    """

    def __init__(self, rng: random.Random, server: RedisServer) -> None:
        self._rng, self._server = rng, server
        self.done: Counter[str] = Counter()

    async def play(self) -> None:
        """One of them; returns when the store is back."""
        kind = self._rng.choice(["stopped", "killed"])
        if kind == "stopped":
            self._server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(_STOPPED_S)
            self._server.process.send_signal(signal.SIGCONT)
        else:
            self._server.process.kill()
            self._server.process.wait()
            await asyncio.sleep(_STOPPED_S)
            await asyncio.to_thread(self._server.start)
        self.done[kind] += 1
