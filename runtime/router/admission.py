"""How many turns run at once, and how many wait."""

import asyncio
import time
from collections import deque

from runtime.router.failure import too_busy


class Admission:
    """A bounded number of running turns, and a bounded queue before them.

    Args:
        max_running: turns at once.
        max_waiting: turns that wait for one of them to end.
        timeout_s: longest wait.
    """

    def __init__(self, max_running: int, max_waiting: int, timeout_s: float) -> None:
        self._max_running, self._max_waiting, self._timeout_s = max_running, max_waiting, timeout_s
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.running = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._idle_since_s = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Since the last turn ended, or since the start; 0 while one runs."""
        return 0.0 if self.running else time.monotonic() - self._idle_since_s

    @property
    def waiting(self) -> int:
        """Turns in the queue."""
        return len(self._waiters)

    async def enter(self) -> None:
        """Begin a turn; `leave` must follow.

        Raises:
            RequestFailed: 429; the queue is full, or the wait was too long.
        """
        if self.running < self._max_running and not self._waiters:
            self.running += 1
            self.idle.clear()
            return
        if len(self._waiters) >= self._max_waiting:
            raise too_busy(
                "the router's queue is full",
                got=f"{self.running} turns run, {self.waiting} wait",
                allowed=f"{self._max_running} running and {self._max_waiting} waiting",
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave()  # the place was given to it in the same moment
            elif turn in self._waiters:
                self._waiters.remove(turn)
            if isinstance(error, TimeoutError):
                raise too_busy(
                    "no turn of the router ended in time",
                    got=f"{self._timeout_s:g} s in the queue",
                    allowed=f"{self._max_running} running turns",
                ) from None
            raise

    def leave(self) -> None:
        """A turn has ended: its place goes to who waits longest."""
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
        if not self.running:
            self.idle.set()
            self._idle_since_s = time.monotonic()
