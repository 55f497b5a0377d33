"""The switch that turns reuse off and on, for all routers of a store, and the canary."""

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Awaitable, Callable

from runtime.router.apis import Api, Body
from runtime.router.conversation import Message
from runtime.router.metrics import RouterMetrics
from runtime.router.store import HandleStore
from runtime.router.valkey_link import FAILURES

_FOLLOW_S = 1.0
_WINDOW = 100

logger = logging.getLogger("turnback.router")


class ReuseSwitch:
    """Whether handles are taken and made.

    Args:
        store: what all routers agree through.
        metrics: shows the state.
    """

    def __init__(self, store: HandleStore, metrics: RouterMetrics) -> None:
        self._store, self._metrics = store, metrics
        self._is_told, self._telling = True, asyncio.Lock()
        self._switched = 0
        self.off_reason: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether a turn may take a handle and leave one."""
        return self.off_reason is None

    async def follow(self) -> None:
        """Take over what another router, or the command, has switched; for ever."""
        while True:
            try:
                await self._agree()
            except FAILURES as error:
                logger.debug("the switch cannot be read, it stays as it is: %s", error)
            await asyncio.sleep(_FOLLOW_S)

    async def _agree(self) -> None:
        """Tell the store what it has not heard yet, or else listen to it."""
        if not self._is_told:
            await self._tell()
            return
        switched = self._switched
        off_reason = await self._store.reuse_off()
        if switched == self._switched:  # or else this router knows better by now
            self._set(off_reason)

    async def _tell(self) -> bool:
        async with self._telling:
            if not self._is_told:
                off_reason = self.off_reason
                is_told = await self._store.set_reuse_off(off_reason)
                self._is_told = is_told and off_reason == self.off_reason
            return self._is_told

    async def switch(self, off_reason: str | None) -> bool:
        """Switch for all routers; False when the store could not be told yet: this one alone."""
        self._switched += 1
        self._is_told = False
        self._set(off_reason)
        return await self._tell()

    def _set(self, off_reason: str | None) -> None:
        if (self.off_reason is None) != (off_reason is None):
            logger.warning("reuse is %s", "on" if off_reason is None else f"off: {off_reason}")
        self.off_reason = off_reason
        self._metrics.reuse_on.set(off_reason is None)


RunCold = Callable[[Api, Body, str | None], Awaitable[Message | None]]
"""Serves a request cold, beside the turns; None when it could not be served."""


class Canary:
    """Runs some warm turns again, cold, and compares the answers.

    Only greedy ones: the same prompt must give the same answer. Two cold answers that
    differ between themselves are the engine's noise, and no difference.

    Args:
        share: of greedy warm turns.
        max_differences: among the last 100 comparisons; then reuse is switched off.
        run_cold: serves a request cold.
        switch: is thrown.
        metrics: counts the outcomes.
    """

    def __init__(
        self,
        share: float,
        max_differences: int,
        run_cold: RunCold,
        switch: ReuseSwitch,
        metrics: RouterMetrics,
    ) -> None:
        self._share, self._max_differences = share, max_differences
        self._run_cold, self._switch, self._metrics = run_cold, switch, metrics
        self._recent: deque[bool] = deque(maxlen=_WINDOW)
        self._running: asyncio.Task[None] | None = None

    def consider(self, api: Api, body: Body, answer: Message, authorization: str | None) -> None:
        """A greedy warm turn has been answered; perhaps it is compared. One at a time."""
        is_busy = self._running is not None and not self._running.done()
        if not is_busy and random.random() < self._share:  # noqa: S311 - no secret
            self._running = asyncio.create_task(self._compare(api, body, answer, authorization))

    async def _compare(
        self, api: Api, body: Body, answer: Message, authorization: str | None
    ) -> None:
        try:
            await self._compare_cold(api, body, answer, authorization)
        except Exception as error:  # noqa: BLE001 - no turn waits for this task
            self._metrics.canary("failed")
            logger.warning("canary: a cold run failed: %s", type(error).__name__)

    async def _compare_cold(
        self, api: Api, body: Body, answer: Message, authorization: str | None
    ) -> None:
        again = await self._cold(api, body, authorization)
        if again is None:
            self._metrics.canary("failed")
            return
        if again == answer:
            self._note("equal")
            return
        control = await self._cold(api, body, authorization)
        if control is None:
            self._metrics.canary("failed")
        elif control != again:
            self._note("noise")
        else:
            self._note("different")
            logger.error(
                "canary: a warm answer differs from its cold run (%d and %d characters, "
                "alike up to character %d)",
                *(len(answer.text), len(again.text), _common(answer.text, again.text)),
            )
            if sum(self._recent) >= self._max_differences:
                await self._switch.switch(
                    f"canary: {sum(self._recent)} of the last {len(self._recent)} compared "
                    "answers differ from their cold runs"
                )
                self._recent.clear()

    def _note(self, outcome: str) -> None:
        self._metrics.canary(outcome)
        self._recent.append(outcome == "different")

    async def _cold(self, api: Api, body: Body, authorization: str | None) -> Message | None:
        """With a salt of its own, so that no prefix cache helps."""
        cold = {name: value for name, value in body.items() if name != "stream_options"}
        cold |= {"stream": False, "cache_salt": uuid.uuid4().hex}
        return await self._run_cold(api, cold, authorization)

    async def close(self) -> None:
        """End what runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
