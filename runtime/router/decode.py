"""A turn's decode leg: at which D, streamed or whole, and its new handle."""

import time
from typing import Any

import orjson

from runtime.contract.node import RouterSpec
from runtime.engine_api import RECEIPT, Receipt
from runtime.router.answer import Answer, Turn, Unread
from runtime.router.connection import Broken
from runtime.router.conversation import Message
from runtime.router.engines import LegFailed, Legs
from runtime.router.failure import no_node
from runtime.router.handles import Handles
from runtime.router.metrics import RouterMetrics
from runtime.router.nodes import Fleet, Node
from runtime.router.relay import Relay, whole_answer
from runtime.router.reuse import Canary
from runtime.router.sse import clean_json
from runtime.router.wire import EngineReply, NotConnected

LEASE_GUARD_S = 5
"""A decode leg is not sent this close to the end of P's lease: D must still accept it."""


class Decode:
    """Decode legs.

    Args:
        spec: limits.
        fleet: the nodes.
        sender: sends legs.
        handles: keeps what D leaves.
        canary: compares some of the answers.
        metrics: counts receipts.
    """

    def __init__(
        self,
        spec: RouterSpec,
        fleet: Fleet,
        sender: Legs,
        handles: Handles,
        canary: Canary,
        metrics: RouterMetrics,
    ) -> None:
        self._spec, self._fleet, self._legs = spec, fleet, sender
        self._handles, self._canary, self._metrics = handles, canary, metrics

    async def run(
        self,
        turn: Turn,
        body: bytes,
        unread: Unread | None,
        *,
        owner: str | None = None,
        avoid: Node | None = None,
    ) -> Answer:
        """At the first D that can be reached.

        Args:
            turn: whose leg it is.
            body: of the leg.
            unread: P's blocks; None when D computes the prompt itself.
            owner: URL of the D to prefer.
            avoid: a D that has failed this turn.
        """
        dispatch_by_s = time.monotonic() + self._spec.kv.kv_lease_duration_s - LEASE_GUARD_S
        until_s = time.monotonic() + self._spec.queue_timeout_s
        generation = unread.node.generation if unread else None
        owner = owner or self._handles.owner_of_response(
            turn.tenant, turn.body.get("previous_response_id")
        )
        while True:
            nodes = self._fleet.decodes(generation, owner, turn.hint)
            nodes.sort(key=lambda node: node is avoid)
            for node in nodes:
                if unread is not None and time.monotonic() > dispatch_by_s:
                    raise LegFailed(node, "the prefill node's lease ran out before it was reached")
                try:
                    return await self._at(node, turn, body, unread)
                except NotConnected:
                    turn.note(f"{node.name} cannot be reached")
            if not await self._fleet.breathe(min(until_s, dispatch_by_s)):
                raise no_node("decode", self._fleet.told())

    async def _at(self, node: Node, turn: Turn, body: bytes, unread: Unread | None) -> Answer:
        node.running += 1
        try:
            answer = await self._once(node, turn, body, unread)
        except BaseException:
            node.running -= 1
            raise
        answer.node = node
        return answer

    async def _once(self, node: Node, turn: Turn, body: bytes, unread: Unread | None) -> Answer:
        reply = await self._legs.send(
            node,
            turn.api.path,
            body,
            authorization=turn.authorization,
            timeout_s=self._spec.silence_timeout_s,
            on_write=unread.send if unread else _nothing,
            rank=turn.rank if node.url == turn.owner_url else None,
        )
        turn.decode_name = node.name
        try:
            if reply.status == 200 and reply.content_type.startswith("text/event-stream"):
                return await self._stream(node, turn, reply)
            return await self._whole(node, turn, reply, unread)
        except BaseException:  # cancellation too: the engine's request must end
            reply.close()
            raise

    async def _stream(self, node: Node, turn: Turn, reply: EngineReply) -> Answer:
        async def keep(params: Any, answer: Message | None) -> None:
            await self._keep(node, turn, params, answer)

        def on_end(error: Broken | None) -> None:
            if error is None:
                node.breaker.succeeded()
            else:
                self._legs.broken(node, error)

        answering = turn.api.answering() if turn.is_kept else None
        silence_s = self._spec.silence_timeout_s
        stream = Relay(node.name, reply, keep, answering, silence_s, on_end, turn.api.error_event)
        try:
            await stream.begin()
        except Broken as error:
            raise self._legs.broken(node, error) from error
        if node.breaker.is_open:
            node.breaker.succeeded()  # the trial: others need not wait for the stream's end
        turn.stage("first_byte")
        self._handles.note_response(turn, node, stream.first)
        return Answer(200, reply.content_type, stream=stream)

    async def _whole(
        self, node: Node, turn: Turn, reply: EngineReply, unread: Unread | None
    ) -> Answer:
        whole = await self._legs.read(node, reply)
        turn.stage("first_byte")
        if whole.status >= 500:
            raise LegFailed(node, f"HTTP {whole.status}", whole)  # whose fault, Turns will see
        if whole.status >= 400:
            node.breaker.succeeded()
            if unread is not None:
                unread.refuse()  # its engine has not seen it
            return Answer.of_reply(whole)
        try:
            body, params, parsed = clean_json(whole.body)
        except (ValueError, TypeError) as error:
            self._legs.failed(node, "reply")
            raise LegFailed(node, f"unreadable reply: {error}") from error
        if parsed is None and not _is_json_object(body):
            self._legs.failed(node, "reply")
            raise LegFailed(node, "the reply is not one JSON object")
        node.breaker.succeeded()
        if params is not None:
            await self._keep(node, turn, params, whole_answer(parsed or {}, turn.api.answer_of))
        self._handles.note_response(turn, node, body[:512])
        return Answer(whole.status, whole.content_type, body)

    async def _keep(self, node: Node, turn: Turn, params: Any, answer: Message | None) -> None:
        """Count D's receipt, and store its handle for the conversation's next turn."""
        if isinstance(params, dict):
            turn.decode_receipt = Receipt.from_dict(params.pop(RECEIPT, None))
            if turn.decode_receipt is not None:
                self._metrics.observe("decode", turn.decode_receipt)
        if answer is not None and turn.path == "warm" and turn.api.greedy(turn.body):
            self._canary.consider(turn.api, turn.body, answer, turn.authorization)
        if not isinstance(params, dict) or params:  # empty: D was asked not to pin
            await self._handles.keep(turn, node, params, answer)


def _is_json_object(body: bytes) -> bool:
    try:
        return isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        return False


def _nothing() -> None:
    pass
