"""A turn's handle: looked for before it, kept or given back after it."""

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from typing import Any

from runtime.contract.node import RouterSpec
from runtime.router import legs
from runtime.router.answer import Claim, Turn, owner_of
from runtime.router.conversation import Keys, Message, id_key, keys_of
from runtime.router.failure import RequestFailed
from runtime.router.metrics import RouterMetrics
from runtime.router.nodes import Fleet, Node
from runtime.router.release import Releases
from runtime.router.store import HandleStore, StoredHandle, Taken

_RESPONSE_ID = re.compile(rb'"id":\s?"(resp_[\w-]{1,64})"')
_MOST_RESPONSES = 100_000
_MOST_ENDED = 10_000

logger = logging.getLogger("turnback.router")


class Handles:
    """Takes, keeps and gives back.

    Args:
        spec: TTL, block size, budget.
        store: where handles are between turns.
        fleet: who owns them.
        releases: gives them back.
        metrics: counts what was found.
    """

    def __init__(
        self,
        spec: RouterSpec,
        store: HandleStore,
        fleet: Fleet,
        releases: Releases,
        metrics: RouterMetrics,
    ) -> None:
        self._spec, self._store, self._fleet = spec, store, fleet
        self._releases, self._metrics = releases, metrics
        self._responses: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._ended: OrderedDict[bytes, float] = OrderedDict()

    def _keys(self, turn: Turn) -> Keys | None:
        history = turn.api.history
        if history is None:
            if turn.conversation is None:
                turn.note("no handle: a prompt without messages needs a conversation id")
                return None
            messages = [Message("assistant", "")]  # one key for the id
        else:
            messages = history(turn.body)
        return keys_of(
            messages,
            tenant=turn.tenant,
            conversation=turn.conversation,
            shape=turn.api.shape(turn.body),
        )

    async def take(self, turn: Turn) -> Taken | None:
        """The conversation's handle, if there is one that can be used."""
        keys = self._keys(turn)
        if keys is None:
            return None
        taken = await self._store.take(keys, _now_s()) if self._store.is_up else None
        turn.stage("take")
        if taken is None and not self._store.is_up:
            self._metrics.took("store_down")
            turn.note("no handle: the store does not answer")
            return None  # and none is left: it could not be kept
        turn.keys = keys
        if taken is None:
            self._metrics.took("none")
            turn.note(f"no handle: none of {len(keys.answered)} answered beginnings is known")
            return None
        stored = taken.stored
        owner = self._fleet.find("decode", stored.decode_url)
        owner_of(taken, turn)
        problem = None
        if not self._store.never_waits:  # other routers wrote to it
            problem = legs.handle_problem(stored.handle, self._spec.kv.block_size_tokens)
        if problem or owner is None or not owner.is_healthy:
            self._metrics.took("owner_gone")
            turn.note(f"handle dropped: {problem or 'its decode node is gone'}")
            return None
        if self._fleet.generation(stored.generation) is None:
            self._metrics.took("no_peer")
            turn.note("handle left: no prefill node of its generation can be used now")
            if not await self._store.put_back(taken, _now_s()):
                self._releases.handles([stored], turn.authorization)
            return None
        self._metrics.took("edited" if taken.is_edited else "exact")
        turn.note(f"handle of {stored.pinned_tokens} tokens on {owner.name}")
        return taken

    async def settle(self, turn: Turn, claim: Claim) -> None:
        """A handle was not used: the next turn may have it, unless a P has seen it."""
        if claim.taken is None:
            return
        if claim.is_refused or not await self._store.put_back(claim.taken, _now_s()):
            self._releases.handles([claim.taken.stored], turn.authorization)

    async def keep(self, turn: Turn, node: Node, params: Any, answer: Message | None) -> None:
        """Store what D keeps for the next turn; what cannot be used is given back.

        Not to be interrupted: one of the two is done, whatever the client does.
        """
        if self._store.never_waits:
            await self._keep(turn, node, params, answer)
        else:
            await asyncio.shield(self._keep(turn, node, params, answer))

    async def _keep(self, turn: Turn, node: Node, params: Any, answer: Message | None) -> None:
        if problem := legs.handle_problem(params, self._spec.kv.block_size_tokens):
            logger.warning("handle of %s not stored: %s", node.name, problem)
            return
        if (ended := node.note_engine(params["remote_engine_id"])) is not None:
            dropped = await self._store.drop_engine(ended)
            logger.warning("%s restarted: %d handles dropped", node.name, dropped)
        if not turn.is_kept or turn.keys is None or answer is None or self._is_over(turn):
            self._releases.start(node.url, params, turn.authorization)
            return
        now_s = _now_s()
        size = self._spec.kv.block_size_tokens
        stored = StoredHandle(
            handle=params,
            decode_url=node.url,
            prefill_url=turn.prefill_url,
            generation=node.generation,
            deadline_s=now_s + self._spec.kv.handle_lifetime_s,
            key=turn.keys.after(answer) if turn.api.history else turn.keys.whole,
            answered=turn.keys.answered,
            id_key=turn.keys.id_key,
            pinned_tokens=-(-params["remote_num_tokens"] // size) * size,
        )
        budget_tokens = (
            None
            if node.capacity_tokens is None
            else int(node.capacity_tokens * self._spec.pin_share)
        )
        given_back = await self._store.put(stored, now_s, budget_tokens)
        self._releases.handles(given_back, turn.authorization)

    async def end(self, tenant: str, conversation: str, authorization: str | None) -> int:
        """Give back all handles of a conversation id; returns how many.

        A turn of it that still runs leaves none either.
        """
        key = id_key(tenant, conversation)
        self._ended[key] = time.perf_counter()
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)
        ended = await self._store.end(key)
        self._releases.handles(ended, authorization)
        return len(ended)

    def _is_over(self, turn: Turn) -> bool:
        """Whether the turn's conversation was ended after the turn had begun."""
        key = turn.keys.id_key if turn.keys else None
        return key is not None and self._ended.get(key, -math.inf) > turn.began_s

    def note_response(self, turn: Turn, node: Node, beginning: bytes) -> None:
        """Remember which D may store a response, for requests that build on its id."""
        if turn.api.path != "/v1/responses":
            return
        if match := _RESPONSE_ID.search(beginning):
            self._responses[match[1].decode()] = (turn.tenant, node.url)
            if len(self._responses) > _MOST_RESPONSES:
                self._responses.popitem(last=False)

    def owner_of_response(self, tenant: str, response_id: Any) -> str | None:
        """URL of the D that may store a response; None when this router has not seen it.

        Raises:
            RequestFailed: 404; it is another tenant's.
        """
        found = self._responses.get(response_id) if isinstance(response_id, str) else None
        if found is None:
            return None
        if found[0] != tenant:
            raise RequestFailed(
                "there is no such response",
                status=404,
                got="an id that is not one of yours",
                allowed="the id of a response that you were given",
                fix="send the whole history",
                param="previous_response_id",
            )
        return found[1]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
