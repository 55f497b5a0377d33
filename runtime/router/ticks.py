"""A timer of the kernel's, for waits below the event loop's millisecond. Linux."""

import asyncio
import ctypes
import os
from collections.abc import Callable

TICK_S = 0.00012
"""The shortest pause of reading: a burst's next pieces come meanwhile."""

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_CLOCK_MONOTONIC = 1


class Ticks:
    """Calls back once, a fixed time after it was asked to; whoever asks meanwhile shares it.

    `os.timerfd_create` is in Python from 3.13 on; this is the same through libc.

    Args:
        after_s: below a second.

    Raises:
        OSError: the kernel gives no timer.
    """

    def __init__(self, after_s: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._set = libc.timerfd_settime
        # struct itimerspec: no repetition, then seconds and nanoseconds until it fires
        self._spec = (ctypes.c_long * 4)(0, 0, 0, int(after_s * 1e9))
        self._waiting: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._fire)

    def call(self, back: Callable[[], None]) -> None:
        """Call back at the next tick."""
        if not self._waiting:
            self._set(self._fd, 0, self._spec, None)
        self._waiting.append(back)

    def _fire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        waiting, self._waiting = self._waiting, []
        for back in waiting:
            back()

    def close(self) -> None:
        """No tick comes any more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
