"""A turn: take the handle, P leg, D leg, keep the new handle; and what is tried again."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import orjson

from runtime.contract.node import RouterSpec
from runtime.engine_api import RECEIPT, Receipt
from runtime.router import legs
from runtime.router.admission import Admission
from runtime.router.answer import Answer, Claim, ClientLeft, Turn, Unread
from runtime.router.apis import Api, Body
from runtime.router.connection import Broken
from runtime.router.conversation import Message
from runtime.router.decode import Decode
from runtime.router.engines import LegFailed, Legs, PassThrough
from runtime.router.failure import RequestFailed
from runtime.router.handles import Handles
from runtime.router.metrics import RouterMetrics
from runtime.router.nodes import Fleet, Node
from runtime.router.prefill import Prefill
from runtime.router.relay import whole_answer
from runtime.router.release import Releases
from runtime.router.reuse import Canary, ReuseSwitch
from runtime.router.store import HandleStore
from runtime.router.wire import EngineClient

_LINGER_S = 0.25
"""How long an answer that nobody waits for may take to end by itself."""

logger = logging.getLogger("turnback.router")


class Turns:
    """Serves turns over a fleet.

    Args:
        spec: limits.
        client: connections to the engines.
        store: handles between turns.
        authorization: for the engines; None passes the client's on.
    """

    def __init__(
        self,
        spec: RouterSpec,
        client: EngineClient,
        store: HandleStore,
        authorization: str | None = None,
    ) -> None:
        self.spec, self.client, self.store = spec, client, store
        self.metrics = RouterMetrics()
        self.fleet = Fleet(spec)
        self.admission = Admission(
            spec.max_running_turns, spec.max_waiting_turns, spec.queue_timeout_s
        )
        self.releases = Releases(
            *(client, self.metrics, authorization),
            lambda url: self.fleet.find("decode", url) is not None,
        )
        self.switch = ReuseSwitch(store, self.metrics)
        self.canary = Canary(
            *(spec.canary_share, spec.canary_max_differences, self._run_cold),
            *(self.switch, self.metrics),
        )
        self.handles = Handles(spec, store, self.fleet, self.releases, self.metrics)
        self._sender = Legs(client, self.fleet, self.metrics, authorization)
        self._prefill = Prefill(spec, self.fleet, self._sender)
        self._decode = Decode(
            spec, self.fleet, self._sender, self.handles, self.canary, self.metrics
        )
        self._behind: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give back what nobody can use when this router has gone."""
        await self.canary.close()
        await asyncio.gather(*self._behind, return_exceptions=True)
        self.releases.handles(await self.store.close())
        await self.releases.finish()

    async def answer(self, turn: Turn) -> Answer:
        """Serve one turn; the answer must be closed by the caller.

        Raises:
            RequestFailed: no node could serve it.
        """
        await self.admission.enter()
        turn.stage("queue")
        try:
            if turn.is_left:
                raise ClientLeft
            async with asyncio.timeout(self.spec.turn_timeout_s):
                answer = await self._serve(turn)
        except BaseException as error:
            self.admission.leave()
            is_left = isinstance(error, asyncio.CancelledError | ClientLeft)
            self._ended(turn, "left" if is_left else "failed")
            if isinstance(error, TimeoutError):
                raise _too_late(self.spec.turn_timeout_s) from error
            raise

        def on_close(outcome: str) -> None:
            self.admission.leave()
            self._ended(turn, outcome)

        answer.on_close = on_close
        return answer

    def left(self, turn: Turn, serving: asyncio.Task[None]) -> None:
        """The client has left while its turn was being served.

        The engines may be about to finish: what they then keep for a reader is only known
        from their reply, so that it is waited for a moment before the request is ended.
        """
        turn.is_left = True
        self._later(self._see_off(serving))

    async def _see_off(self, serving: asyncio.Task[None]) -> None:
        _, late = await asyncio.wait({serving}, timeout=_LINGER_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def left_stream(self, answer: Answer) -> None:
        """The client has left in the middle of its answer; as for `left`."""
        self._later(self._drop(answer))

    async def _drop(self, answer: Answer) -> None:
        try:
            async with asyncio.timeout(_LINGER_S):
                if answer.stream is not None:
                    await answer.stream.drain()
        except (TimeoutError, Broken):
            pass  # it is ended now
        finally:
            answer.close("left")

    def _ended(self, turn: Turn, outcome: str) -> None:
        turn.stage("whole", since_s=turn.began_s)
        for name, seconds in turn.stages.items():
            self.metrics.stage(name, seconds)
        self.metrics.turn(turn.api.path, turn.path, outcome)
        if self.spec.explain:
            logger.info("turn %s", outcome, extra={"turn": turn.explained()})

    async def _serve(self, turn: Turn) -> Answer:
        claim = Claim(None)
        if (why := turn.api.why_direct(turn.body)) is not None:
            turn.path = "direct"
            turn.note(f"decode node alone: {why}")
        elif turn.takes and self.switch.is_on:
            claim = Claim(await self.handles.take(turn))
        elif turn.takes:
            turn.note(f"no handle: reuse is off ({self.switch.off_reason})")
        try:
            return await self._attempts(turn, claim)
        except PassThrough as passed:
            return Answer.of_reply(passed.reply)
        finally:
            if claim.is_unused:
                await asyncio.shield(self.handles.settle(turn, claim))

    async def _attempts(self, turn: Turn, claim: Claim) -> Answer:
        try:
            return await self._attempt(turn, claim)
        except LegFailed as failure:
            logger.warning("decode leg failed, the turn starts anew: %s", failure)
            turn.note(f"decode leg failed: {failure}")
            failed = failure.node
            is_status = failure.reply is not None
        if turn.path == "warm":
            turn.path = "cold_retry"
        try:
            answer = await self._attempt(turn, Claim(None), avoid=failed)
        except LegFailed as failure:
            for node in {failed, failure.node} if is_status and failure.reply else ():
                self._sender.failed(node, "status", about=_about(turn))
            raise failure.for_client() from failure
        if is_status and answer.node is not failed:
            # The same D would have been able to: then it was P's dict that could not be read.
            self._sender.failed(failed, "status", about=_about(turn))
        return answer

    async def _attempt(self, turn: Turn, claim: Claim, *, avoid: Node | None = None) -> Answer:
        """Both legs once; LegFailed means that D failed after it was reached."""
        if turn.path == "direct":
            await self.fleet.serving(is_direct=True)
            return await self._decode.run(turn, legs.direct_body(turn.body), None, avoid=avoid)
        node, p_dict = await self._prefill.run(turn, claim)
        turn.prefill_url = node.url
        turn.stage("prefill")
        turn.receipt = Receipt.from_dict(p_dict.get(RECEIPT))
        if turn.receipt is not None:
            self.metrics.observe("prefill", turn.receipt)
        unread = Unread(node, p_dict)
        try:
            if turn.is_left:
                raise ClientLeft
            turn.leaves = turn.leaves and self.switch.is_on
            body = legs.decode_body(turn.body, p_dict, pin=turn.is_kept)
            owner = claim.taken.stored.decode_url if claim.taken else None
            return await self._decode.run(turn, body, unread, owner=owner, avoid=avoid)
        finally:
            if not unread.is_sent:
                self.releases.start(node.url, p_dict, turn.authorization)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _run_cold(self, api: Api, body: Body, authorization: str | None) -> Message | None:
        """For the canary: beside the turns, without a handle, counted nowhere."""
        size_bytes = len(orjson.dumps(body))
        turn = Turn(api=api, body=body, size_bytes=size_bytes, authorization=authorization)
        try:
            async with asyncio.timeout(self.spec.turn_timeout_s):
                answer = await self._serve(turn)
        except (RequestFailed, TimeoutError) as error:
            logger.warning("a canary could not be run: %s", type(error).__name__)
            return None
        try:
            if answer.status != 200 or answer.stream is not None:
                logger.warning("a canary could not be run: HTTP %d", answer.status)
                return None
            return whole_answer(orjson.loads(answer.body), api.answer_of)
        finally:
            answer.close("done")


def _about(turn: Turn) -> int:
    """Names a request among those that fail."""
    return hash(orjson.dumps(turn.body))


def _too_late(limit_s: float) -> RequestFailed:
    return RequestFailed(
        "the turn took too long",
        status=504,
        got=f"no answer within {limit_s:g} s",
        allowed=f"turn_timeout_s: {limit_s:g} s until the answer begins",
        fix="shorten the prompt, or raise the router's --turn-timeout-s",
    )
