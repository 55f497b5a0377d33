"""How a rollout passes, and what came of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.errors import TurnbackError


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take.

    Attributes:
        ready_s: longest wait for one node to become ready.
        drain_s: longest wait for one engine's running requests; then it is taken back.
        router_s: longest wait for a moment without turns on a router; then it is restarted
            all the same, and lets those that run end as at any SIGTERM.
        notice_s: after which every router has heard that a node is drained.
        poll_s: between two looks.
        sleep, clock: the real ones, but in tests.
    """

    ready_s: float = 1800.0
    drain_s: float = 900.0
    router_s: float = 120.0
    notice_s: float = 20.0
    poll_s: float = 5.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class RolloutReport:
    """Nodes by what was done to them.

    Attributes:
        kept: ran as they shall.
        restarted: in place.
        started, ended: replaced; old ones are ended when new ones serve.
        left: not reached, since `failure` came before.
        failure: what stopped it; None: every node is where it shall be.
    """

    kept: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    failure: TurnbackError | None = None
