"""The router's HTTP edges: routes, headers, streams."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import orjson

from runtime.contract.http import (
    DEBUG_HEADER,
    END_PATH,
    PATH_HEADER,
    REQUEST_ID_HEADER,
    REUSE_PATH,
    TIMING_HEADER,
)
from runtime.contract.node import RouterSpec
from runtime.router.answer import ClientLeft
from runtime.router.apis import APIS, Api
from runtime.router.auth import Gate
from runtime.router.discovery import Listing, follow, read_nodes_file
from runtime.router.edge import Edge
from runtime.router.exchange import Handler, Request, Response, Sent
from runtime.router.failure import JSON_TYPE, RequestFailed, bad_request, error_body
from runtime.router.gauges import gauges
from runtime.router.health import HealthChecks
from runtime.router.legs import parse_request
from runtime.router.logs import REQUEST_ID, fresh_id
from runtime.router.metrics import CONTENT_TYPE
from runtime.router.passing import Passing
from runtime.router.request import turn_headers, turn_of
from runtime.router.store import HandleStore, MemoryStore
from runtime.router.turn import Turns
from runtime.router.valkey_store import ValkeyStore
from runtime.router.wire import EngineClient

_END_PATH = re.compile(re.escape(END_PATH).replace(r"\{id\}", "([^/]+)"))
_RESPONSE_PATH = re.compile(r"/v1/responses/(resp_[\w-]{1,64})(/cancel)?")
_RESPONSE_CALLS = (("GET", False), ("POST", True))
_SAFE_ID = re.compile(r"[!-~]{1,128}")
_FILE_EVERY_S = 1.0
_DISCOVER_EVERY_S = 10.0
_KEYS_EVERY_S = 5.0
_PINS_EVERY_S = 2.0
_LAST_S = 0.5
_FEW, _PAUSE_S, _LONGEST_PAUSE_S = 8, 0.00025, 0.010
"""From so many running turns on, so long for each of them, lies between two reads of a
stream: below the time between two tokens, and each read and write carries more of them."""

logger = logging.getLogger("turnback.router")


class Router:
    """Everything behind the router's port.

    Args:
        spec: addresses and limits.
        gate: tells callers by their keys.
        engine_authorization: for the engines; None passes the client's on.
        listing: names further nodes, beside those of the spec.
    """

    def __init__(
        self,
        spec: RouterSpec,
        gate: Gate | None = None,
        engine_authorization: str | None = None,
        listing: Listing | None = None,
    ) -> None:
        self.spec = spec
        self._gate = gate or Gate(None)
        self._listing = listing
        self._engine_authorization = engine_authorization
        self._behind: list[asyncio.Task[None]] = []
        self.is_draining = False
        self._edge = Edge(spec, self._pause_s)
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._ready,
            ("GET", "/health/live"): self._live,
            ("GET", "/metrics"): self._metrics,
            ("GET", REUSE_PATH): self._reuse,
            ("PUT", REUSE_PATH): self._switch,
        }

    async def start(self) -> None:
        """Begin to serve: the engines are asked how they are."""
        spec = self.spec
        self.client = EngineClient(spec.connect_timeout_s)
        store: HandleStore = (
            ValkeyStore(spec.store_url, spec.deployment or "default", spec.store_timeout_s)
            if spec.store_url
            else MemoryStore()
        )
        await store.check()
        self.turns = Turns(spec, self.client, store, self._engine_authorization)
        self.turns.metrics.read_on_request(partial(gauges, self.turns))
        self.passing = Passing(self.client, self.turns, self._engine_authorization)
        fleet = self.turns.fleet
        self.health = HealthChecks(fleet, self.client, spec.health_interval_s)
        works = [self.health.run, self.turns.switch.follow, self._follow_keys, self._follow_pins]
        if spec.nodes_file is not None or self._listing is not None:
            every_s = _FILE_EVERY_S if self._listing is None else _DISCOVER_EVERY_S
            fleet.update(await asyncio.to_thread(self._listed))
            works.append(partial(follow, self._listed, fleet, every_s))
        await self.health.once()
        self._behind = [asyncio.create_task(_for_ever(work)) for work in works]

    def _listed(self) -> list[Any]:
        """All nodes: given, of the file, and discovered."""
        nodes = self.spec.listed_nodes()
        if self.spec.nodes_file is not None:
            nodes += read_nodes_file(self.spec.nodes_file)
        if self._listing is not None:
            nodes += self._listing()
        return nodes

    async def _follow_keys(self) -> None:
        while True:
            await asyncio.sleep(_KEYS_EVERY_S)
            try:
                if await asyncio.to_thread(self._gate.reload):
                    logger.warning("the API keys have changed")
            except Exception as error:  # noqa: BLE001 - of any source of keys; the last ones stay
                logger.warning("the API keys cannot be read, the last ones stay: %s", error)

    async def _follow_pins(self) -> None:
        """For /metrics: what the handles of all routers pin on each D."""
        while True:
            await asyncio.sleep(_PINS_EVERY_S)
            for node in self.turns.fleet.nodes:
                if node.role == "decode":
                    ids = list(node.engine_ids.values())
                    node.pinned_tokens = await self.turns.store.pinned_tokens(ids)

    async def stop(self) -> None:
        """Let running turns end, then give back what nobody can use."""
        self.is_draining = True
        try:
            async with asyncio.timeout(self.spec.drain_s):
                await self.turns.admission.idle.wait()
        except TimeoutError:
            logger.warning("%d turns had not ended", self.turns.admission.running)
            self.client.break_all("the router stops")  # each stream is told why
            await asyncio.sleep(_LAST_S)
        for task in self._behind:
            task.cancel()
        await asyncio.gather(*self._behind, return_exceptions=True)

    async def close(self) -> None:
        """After the last connection has ended."""
        await self.turns.close()
        await self.client.close()

    # Requests

    async def handle(self, request: Request) -> Response | Sent:
        """Answer any request; nothing it does wrong reaches another one."""
        given = request.headers.get(REQUEST_ID_HEADER, "")
        request_id = given if _SAFE_ID.fullmatch(given) else fresh_id()
        REQUEST_ID.set(request_id)
        began_s = time.perf_counter()
        try:
            response = await self._dispatch(request, request_id)
            if isinstance(response, Response):
                response.headers.setdefault(REQUEST_ID_HEADER, request_id)
            return response
        except RequestFailed as failure:
            refused = failure
        except ConnectionResetError:
            raise
        except Exception:
            logger.exception("a request failed for a reason the router does not know")
            refused = _unknown()
        return self._refusal(request, refused, request_id, began_s)

    def _refusal(
        self, request: Request, refused: RequestFailed, request_id: str, began_s: float
    ) -> Response:
        self.turns.metrics.refused(refused.status)
        headers = {"Content-Type": JSON_TYPE, REQUEST_ID_HEADER: request_id}
        if refused.retry_after_s is not None:
            headers["Retry-After"] = str(refused.retry_after_s)
        if refused.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if request.path in APIS:
            taken_ms = (time.perf_counter() - began_s) * 1000
            headers |= {PATH_HEADER: "refused", TIMING_HEADER: f"refused;dur={taken_ms:.2f}"}
        if refused.status == 405:
            mine = {method for method, path in self._routes if path == request.path}
            headers["Allow"] = ", ".join(sorted(mine or {"POST"}))
        return Response(refused.status, error_body(refused), headers)

    async def _dispatch(self, request: Request, request_id: str) -> Response | Sent:
        api = APIS.get(request.path)
        if api is not None and request.method == "POST":
            return await self._turn(request, api, request_id)
        handler = self._routes.get((request.method, request.path))
        if handler is not None:
            return await handler(request)
        stored = _RESPONSE_PATH.fullmatch(request.path)
        if stored is not None and (request.method, bool(stored[2])) in _RESPONSE_CALLS:
            return await self.passing.response(
                *(request.method, request.path, stored[1]),
                self._gate.caller(request.headers).tenant,
                request.headers.get("Authorization"),
            )
        ended = _END_PATH.fullmatch(request.raw_path)
        if ended is not None and request.method == "POST":
            return await self._end(request, unquote(ended[1]))
        paths = {path for _, path in self._routes} | set(APIS)
        raise RequestFailed(
            "Method Not Allowed" if request.path in paths else "Not Found",
            status=405 if request.path in paths else 404,
            got=f"{request.method} {request.path[:200]}",
            allowed=", ".join([*(f"POST {path}" for path in APIS), f"POST {END_PATH}"])
            + ", "
            + ", ".join(f"{method} {path}" for method, path in self._routes),
            fix="correct the method or the path",
        )

    async def _turn(self, request: Request, api: Api, request_id: str) -> Response | Sent:
        caller = self._gate.caller(request.headers)
        raw = await self._edge.read(request)
        if self.is_draining:
            raise _draining()
        turn = turn_of(api, parse_request(api, raw), len(raw), request, caller)
        is_debug = request.headers.get(DEBUG_HEADER) == "1"
        headers = {REQUEST_ID_HEADER: request_id}
        request.on_left = partial(self.turns.left, turn)
        try:
            answer = await self.turns.answer(turn)
        except ClientLeft as left:
            raise ConnectionResetError("the client has left") from left
        except RequestFailed as failure:
            response = self._refusal(request, failure, request_id, turn.began_s)
            response.headers.update(turn_headers(turn, is_debug=is_debug))
            return response
        finally:
            request.on_left = None
        outcome = "left" if turn.is_left else "failed"
        try:
            if turn.is_left:
                raise ConnectionResetError("the client has left")
            headers |= {"Content-Type": answer.content_type, **answer.headers}
            headers |= turn_headers(turn, is_debug=is_debug)
            if answer.stream is None:
                outcome = "done" if answer.status < 400 else "failed"
                return Response(answer.status, answer.body, headers)
            debugged = turn if is_debug else None
            sent = await self._edge.send(request, answer.stream, headers, debugged)
            outcome = "failed" if answer.stream.is_broken else "done"
            return sent
        except (asyncio.CancelledError, ConnectionResetError):
            outcome = "left"
            raise
        finally:
            if outcome == "left":
                self.turns.left_stream(answer)
            else:
                answer.close(outcome)

    def _pause_s(self) -> float:
        """Wait between two reads of a stream."""
        running = self.turns.admission.running
        return 0.0 if running < _FEW else min(_LONGEST_PAUSE_S, running * _PAUSE_S)

    async def _end(self, request: Request, conversation: str) -> Response:
        caller = self._gate.caller(request.headers)
        released = await self.turns.handles.end(
            caller.tenant, conversation, request.headers.get("Authorization")
        )
        return Response.of_json({"released": released})

    async def _models(self, request: Request) -> Response:
        self._gate.caller(request.headers)
        return await self.passing.models(request.headers.get("Authorization"))

    async def _metrics(self, _request: Request) -> Response:
        body = self.turns.metrics.page()
        return Response(200, body, {"Content-Type": CONTENT_TYPE})

    async def _live(self, _request: Request) -> Response:
        return Response.of_json({"status": "live"})

    async def _ready(self, _request: Request) -> Response:
        fleet = self.turns.fleet
        is_ready = not self.is_draining and fleet.generation() is not None
        told = [
            {"name": node.name, "state": node.state, "generation": node.generation}
            for node in fleet.nodes
        ]
        status = "draining" if self.is_draining else "ready" if is_ready else "no_pair"
        return Response.of_json(
            {"status": status, "store_up": self.turns.store.is_up, "nodes": told},
            status=200 if is_ready else 503,
        )

    async def _reuse(self, request: Request) -> Response:
        self._gate.admin(request.headers)
        return Response.of_json(self._reuse_state())

    def _reuse_state(self) -> dict[str, Any]:
        reason = self.turns.switch.off_reason
        return {"reuse": "on" if reason is None else "off", "reason": reason}

    async def _switch(self, request: Request) -> Response:
        self._gate.admin(request.headers)
        try:
            wanted = orjson.loads(await self._edge.read(request))
            reuse, reason = wanted["reuse"], wanted.get("reason", "switched off")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            reuse, reason = None, ""
        if reuse not in ("on", "off") or not isinstance(reason, str):
            raise bad_request(
                "the switch cannot be read",
                got="another body",
                allowed='{"reuse": "on"} or {"reuse": "off", "reason": "..."}',
                param="reuse",
            )
        off_reason = None if reuse == "on" else reason[:200] or "switched off"
        is_told = await self.turns.switch.switch(off_reason)
        return Response.of_json({**self._reuse_state(), "all_routers": is_told})


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Begin again what ended for a reason that nobody foresaw; the log tells it."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("a task of the router failed and begins again")
        await asyncio.sleep(1.0)


def _draining() -> RequestFailed:
    return RequestFailed(
        "this router is stopping",
        status=503,
        got="a new turn while the running ones end",
        allowed="no new turns",
        fix="send the request again; another router, or the next one, will serve it",
        retry_after_s=1,
    )


def _unknown() -> RequestFailed:
    return RequestFailed(
        "the router failed",
        status=500,
        got="an error that its log tells under this request's id",
        allowed="no such error",
        fix="send the request again, and report the log line",
    )
