"""A turn: take the handle, P leg, D leg, keep the new handle; and what is tried again."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson

from runtime.contract.node import RouterSpec
from runtime.engine_api import KV_PARAMS, RECEIPT, Receipt
from runtime.router import legs
from runtime.router.engines import (
    LegFailed,
    NotConnected,
    PassThrough,
    Reply,
    ReplyStream,
    content_type,
    post_leg,
    read_reply,
)
from runtime.router.failure import RequestFailed, no_node
from runtime.router.metrics import RouterMetrics
from runtime.router.release import Releases
from runtime.router.sse import clean_json
from runtime.router.store import HandleStore, StoredHandle

Path = Literal["cold", "warm", "cold_retry", "direct"]

LEASE_GUARD_S = 5
"""A decode leg is not sent this close to the end of P's lease: D must still accept it."""

logger = logging.getLogger("turnback.router")


@dataclass(slots=True)
class Turn:
    """One client request on its way.

    Attributes:
        body: the client's request.
        authorization: its Authorization header.
        key: the conversation; None when the turn takes no handle and leaves none.
        is_last: it takes a handle and leaves none.
        path: how it is being served.
        receipt: what P did with the handle.
        decode_receipt: what D did with the P dict; there once D has finished.
    """

    body: Mapping[str, Any]
    authorization: str | None
    key: str | None
    is_last: bool = False
    path: Path = "cold"
    receipt: Receipt | None = None
    decode_receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes to the client: a whole body, or a stream."""

    status: int
    content_type: str
    body: bytes = b""
    stream: ReplyStream | None = None

    @classmethod
    def of_reply(cls, reply: Reply) -> "Answer":
        """An engine's error as it is, less what no client may see."""
        try:
            body, _ = clean_json(reply.body)
        except ValueError:
            body = b""  # names internal fields and cannot be cleaned
        return cls(reply.status, reply.content_type, body)


@dataclass
class Turns:
    """Serves turns over the nodes of a spec.

    Attributes:
        spec: addresses and limits.
        session: HTTP client with the spec's timeouts.
        store: handles between turns.
        metrics: what is counted.
    """

    spec: RouterSpec
    session: aiohttp.ClientSession
    store: HandleStore = field(default_factory=HandleStore)
    metrics: RouterMetrics = field(default_factory=RouterMetrics)

    def __post_init__(self) -> None:
        self.prefills = legs.RoundRobin(self.spec.prefill_urls)
        self.decodes = legs.RoundRobin(self.spec.decode_urls)
        self._engine_at: dict[str, str] = {}
        self._releases = Releases(self.session, self.metrics)

    async def close(self) -> None:
        """Give back all handles: nobody can use them when this router has gone."""
        await self._releases.all(self.store.take_all())

    def end(self, key: str, authorization: str | None) -> bool:
        """Give back a conversation's handle; False when it has none."""
        stored = self.store.take(key, asyncio.get_running_loop().time())
        if stored is not None:
            self._releases.start(stored, authorization)
        return stored is not None

    async def answer(self, turn: Turn) -> Answer:
        """Serve one turn; a stream in the answer must be closed by the caller.

        Raises:
            RequestFailed: no node could serve it.
        """
        is_direct = legs.asks_for_several_answers(turn.body)
        stored = None
        if is_direct:
            turn.path = "direct"
        elif turn.key is not None:
            stored = self.store.take(turn.key, asyncio.get_running_loop().time())
        try:
            try:
                return await self._attempt(turn, stored)
            except LegFailed as failure:
                logger.warning("decode leg failed, the turn starts anew: %s", failure)
                failed_url = failure.url
            if turn.path == "warm":
                turn.path = "cold_retry"
            try:
                return await self._attempt(turn, None, avoid=failed_url)
            except LegFailed as failure:
                raise failure.for_client("decode") from failure
        except PassThrough as passed:
            return Answer.of_reply(passed.reply)

    async def _attempt(
        self, turn: Turn, stored: StoredHandle | None, *, avoid: str | None = None
    ) -> Answer:
        """Both legs once; LegFailed means that D failed after it was reached."""
        if turn.path == "direct":
            body = legs.direct_body(turn.body)
        else:
            p_dict = await self._prefill(turn, stored)
            turn.receipt = Receipt.from_dict(p_dict.get(RECEIPT))
            if turn.receipt is not None:
                self.metrics.observe("prefill", turn.receipt)
            pin = turn.key is not None and not turn.is_last
            body = legs.decode_body(turn.body, p_dict, pin=pin)
        dispatch_by_s = self._lease_end_s()
        tried = self.decodes.order(first=stored.decode_url if stored else None, last=avoid)
        for url in tried:
            if turn.path != "direct" and asyncio.get_running_loop().time() > dispatch_by_s:
                raise LegFailed(url, "the prefill node's lease ran out before it was reached")
            try:
                response = await post_leg(self.session, url, body, turn.authorization)
            except NotConnected:
                continue
            return await self._receive(turn, url, response)
        raise no_node("decode", tried)

    def _lease_end_s(self) -> float:
        """When P's blocks may be gone, if D has not begun to ask for them by then."""
        lease_s = self.spec.kv.kv_lease_duration_s - LEASE_GUARD_S
        return asyncio.get_running_loop().time() + lease_s

    async def _prefill(self, turn: Turn, stored: StoredHandle | None) -> Mapping[str, Any]:
        failed_url = None
        if stored is not None:
            try:
                p_dict = await self._prefill_warm(turn, stored)
            except LegFailed as failure:
                logger.warning("prefill leg with a handle failed, retrying cold: %s", failure)
                turn.path, failed_url = "cold_retry", failure.url
            else:
                turn.path = "warm"
                return p_dict
        try:
            return await self._prefill_at_one(turn, None, last=failed_url)
        except LegFailed as failure:
            raise failure.for_client("prefill") from failure

    async def _prefill_warm(self, turn: Turn, stored: StoredHandle) -> Mapping[str, Any]:
        """With the handle; one that no engine has seen is not lost."""
        try:
            return await self._prefill_at_one(turn, stored.handle)
        except PassThrough:
            # Refused before it reached the engine: P will not read it, and nobody else may.
            self._releases.start(stored, turn.authorization)
            raise
        except RequestFailed:
            # It was sent to nobody: the conversation's next turn may have it.
            if turn.key is None or not self.store.put_back(turn.key, stored):
                self._releases.start(stored, turn.authorization)
            raise

    async def _prefill_at_one(
        self, turn: Turn, handle: Mapping[str, Any] | None, *, last: str | None = None
    ) -> Mapping[str, Any]:
        """At the first P that can be reached."""
        tried = self.prefills.order(last=last)
        for url in tried:
            try:
                return await self._prefill_once(url, turn, handle)
            except NotConnected:
                continue
        raise no_node("prefill", tried)

    async def _prefill_once(
        self, url: str, turn: Turn, handle: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        body = legs.prefill_body(turn.body, handle)
        response = await post_leg(self.session, url, body, turn.authorization)
        reply = await read_reply(url, response)
        if 400 <= reply.status < 500:
            raise PassThrough(reply)
        if reply.status != 200:
            raise LegFailed(url, f"HTTP {reply.status}", reply)
        try:
            parsed = orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise LegFailed(url, f"the reply is not JSON: {error}") from error
        p_dict = parsed.get(KV_PARAMS) if isinstance(parsed, dict) else None
        if problem := legs.p_dict_problem(p_dict, self.spec.kv.block_size_tokens):
            raise LegFailed(url, problem)
        return p_dict  # type: ignore[return-value]  # p_dict_problem refuses all but mappings

    async def _receive(self, turn: Turn, url: str, response: aiohttp.ClientResponse) -> Answer:
        media_type = content_type(response)
        if response.status == 200 and media_type.startswith("text/event-stream"):
            stream = ReplyStream(url, response, lambda params: self._keep(turn, url, params))
            try:
                await stream.begin()
            except BaseException:  # cancellation too: the engine's request must end
                stream.close()
                raise
            return Answer(response.status, media_type, stream=stream)
        reply = await read_reply(url, response)
        if reply.status >= 500:
            raise LegFailed(url, f"HTTP {reply.status}", reply)
        try:
            body, params = clean_json(reply.body)
        except ValueError as error:
            raise LegFailed(url, f"unreadable reply: {error}") from error
        if params is not None:
            self._keep(turn, url, params)
        return Answer(reply.status, reply.content_type, body)

    def _keep(self, turn: Turn, url: str, params: Any) -> None:
        """Store D's handle for the conversation's next turn, and count its receipt."""
        if isinstance(params, dict):
            turn.decode_receipt = Receipt.from_dict(params.pop(RECEIPT, None))
            if turn.decode_receipt is not None:
                self.metrics.observe("decode", turn.decode_receipt)
            if not params:
                return  # D was asked not to pin
        if problem := legs.handle_problem(params, self.spec.kv.block_size_tokens):
            logger.warning("handle of %s not stored: %s", url, problem)
            return
        self._note_engine(url, params["remote_engine_id"])
        if turn.key is None:
            return
        now_s = asyncio.get_running_loop().time()
        deadline_s = now_s + self.spec.kv.handle_lifetime_s
        older = self.store.put(turn.key, StoredHandle(params, url, deadline_s), now_s)
        if older is not None:
            self._releases.start(older, turn.authorization)

    def _note_engine(self, url: str, engine_id: str) -> None:
        before = self._engine_at.get(url)
        self._engine_at[url] = engine_id
        if before is not None and before != engine_id:
            dropped = self.store.drop_engine(before)
            logger.warning("%s restarted: %d handles dropped", url, dropped)
