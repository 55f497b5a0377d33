"""A turn's prefill leg: at which P, with which handle, and what is tried again."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import orjson

from runtime.contract.node import RouterSpec
from runtime.engine_api import KV_PARAMS
from runtime.router import legs
from runtime.router.answer import Claim, Turn
from runtime.router.engines import LegFailed, Legs, PassThrough
from runtime.router.failure import no_node
from runtime.router.nodes import Fleet, Node
from runtime.router.store import StoredHandle
from runtime.router.wire import NotConnected

_BYTES_PER_TOKEN = 4
"""Of a prompt, roughly: it weighs the queues of P."""

logger = logging.getLogger("turnback.router")


class Prefill:
    """Prefill legs.

    Args:
        spec: limits.
        fleet: the nodes.
        sender: sends legs.
    """

    def __init__(self, spec: RouterSpec, fleet: Fleet, sender: Legs) -> None:
        self._spec, self._fleet, self._legs = spec, fleet, sender

    async def run(self, turn: Turn, claim: Claim) -> tuple[Node, Mapping[str, Any]]:
        """The P that served the leg, and its P dict.

        Raises:
            PassThrough: P's own error is the answer.
            RequestFailed: no P could serve it.
        """
        failed = None
        if claim.taken is not None:
            try:
                found = await self._warm(turn, claim, claim.taken.stored)
            except PassThrough:
                claim.refuse()
                raise
            except LegFailed as failure:
                logger.warning("prefill leg with a handle failed, retrying cold: %s", failure)
                turn.note(f"warm prefill failed: {failure}")
                turn.path, failed = "cold_retry", failure.node
            else:
                turn.path = "warm"
                return found
        try:
            return await self._cold(turn, failed)
        except LegFailed as failure:
            raise failure.for_client() from failure

    async def _warm(
        self, turn: Turn, claim: Claim, stored: StoredHandle
    ) -> tuple[Node, Mapping[str, Any]]:
        """At a P of the handle's generation; one that refuses the connection is waited for."""
        until_s = time.monotonic() + self._spec.queue_timeout_s
        while True:
            nodes = self._fleet.prefills(stored.generation, stored.prefill_url)
            if (found := await self._at_one(turn, nodes, claim)) is not None:
                return found
            if not await self._fleet.breathe(until_s):
                raise no_node("prefill", self._fleet.told())

    async def _cold(self, turn: Turn, failed: Node | None) -> tuple[Node, Mapping[str, Any]]:
        """At the P with the shortest queue; once more where a connection broke in silence.

        Nothing is lost or done twice by that: a cold prefill uses up no handle.
        """
        until_s = time.monotonic() + self._spec.queue_timeout_s
        is_repeated = False
        while True:
            nodes = self._fleet.prefills(await self._fleet.serving(), turn.last_prefill)
            nodes.sort(key=lambda node: node is failed)
            try:
                if (found := await self._at_one(turn, nodes, Claim(None))) is not None:
                    return found
            except LegFailed as failure:
                if is_repeated or not failure.is_silent:
                    raise
                logger.warning("prefill leg broke in silence, once more: %s", failure)
                is_repeated, failed = True, failure.node
                continue
            if not await self._fleet.breathe(until_s):
                raise no_node("prefill", self._fleet.told())

    async def _at_one(
        self, turn: Turn, nodes: list[Node], claim: Claim
    ) -> tuple[Node, Mapping[str, Any]] | None:
        """At the first P that can be reached; None when none can."""
        handle = claim.taken.stored.handle if claim.taken else None
        body = legs.prefill_body(turn.api, turn.body, handle)
        new_tokens = max(1, turn.size_bytes // _BYTES_PER_TOKEN - claim.tokens)
        for node in nodes:
            node.outstanding_tokens += new_tokens
            try:
                return node, await self._once(node, turn, body, claim)
            except NotConnected:
                turn.note(f"{node.name} cannot be reached")
            finally:
                node.outstanding_tokens -= new_tokens
        return None

    async def _once(self, node: Node, turn: Turn, body: bytes, claim: Claim) -> Mapping[str, Any]:
        reply = await self._legs.send(
            node,
            turn.api.path,
            body,
            authorization=turn.authorization,
            timeout_s=self._spec.prefill_timeout_s,
            on_write=claim.send,
        )
        whole = await self._legs.read(node, reply)
        if 400 <= whole.status < 500:
            node.breaker.succeeded()
            raise PassThrough(whole)
        if whole.status != 200:
            if claim.taken is None:  # with a handle, its owner may be to blame
                self._legs.failed(node, "status", about=hash(body))
            raise LegFailed(node, f"HTTP {whole.status}", whole)
        p_dict = _params_of(whole.body)
        if problem := legs.p_dict_problem(p_dict, self._spec.kv.block_size_tokens):
            self._legs.failed(node, "reply")
            raise LegFailed(node, problem)
        node.breaker.succeeded()
        return p_dict  # type: ignore[no-any-return]  # p_dict_problem refuses all but mappings


def _params_of(body: bytes) -> Any:
    """The kv_transfer_params of a whole reply; None when it has none, or is no JSON object."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed.get(KV_PARAMS) if isinstance(parsed, dict) else None
