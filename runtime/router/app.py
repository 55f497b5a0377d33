"""The router's HTTP edges: routes, headers, the client session, the process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import orjson
import uvloop
from aiohttp import web

from runtime.contract.http import (
    CONVERSATION_HEADER,
    DEBUG_HEADER,
    DECODE_RECEIPT_HEADER,
    END_PATH,
    PATH_HEADER,
    PIN_HEADER,
    RECEIPT_HEADER,
    REUSE_HEADER,
)
from runtime.contract.node import RouterSpec
from runtime.router.engines import CHAT_PATH
from runtime.router.failure import JSON_TYPE, RequestFailed, bad_request, error_body, no_node
from runtime.router.legs import parse_request
from runtime.router.metrics import CONTENT_TYPE
from runtime.router.turn import Answer, Turn, Turns

TURNS = web.AppKey("turns", Turns)

_ENGINE_KEEP_ALIVE_S = 3.0
"""Below the 5 s after which uvicorn closes idle connections: a POST on one that has
just been closed fails, and a leg that was sent is never sent again."""

_DRAIN_S = 10.0
"""How long a stopping router lets running turns end."""


def build_app(spec: RouterSpec) -> web.Application:
    """The router as an application; its HTTP client lives as long as the app does."""
    app = web.Application(client_max_size=spec.max_body_bytes, middlewares=[_json_errors])

    async def turns(app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=spec.connect_timeout_s, sock_read=spec.request_timeout_s
        )
        # The engines queue; a limit here would hide their queue from their metrics.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_ENGINE_KEEP_ALIVE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            app[TURNS] = Turns(spec, session)
            yield
            await app[TURNS].close()

    app.cleanup_ctx.append(turns)
    app.router.add_post(CHAT_PATH, _chat)
    app.router.add_post(END_PATH, _end)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _health)
    app.router.add_get("/metrics", _metrics)
    return app


def serve(spec: RouterSpec) -> None:
    """Run the router until SIGTERM or SIGINT; running turns get some seconds to end."""
    web.run_app(
        build_app(spec),
        host=spec.host,
        port=spec.port,
        access_log=None,
        print=None,
        handler_cancellation=True,
        shutdown_timeout=_DRAIN_S,
        loop=uvloop.new_event_loop(),
    )


@web.middleware
async def _json_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestFailed as failure:
        refused = failure
    except web.RequestPayloadError as error:
        refused = bad_request(
            "the request body cannot be decoded",
            got=f"Content-Encoding {request.headers.get('Content-Encoding')}: {error}",
            allowed="a body in the encoding that its header names",
        )
    except web.HTTPException as error:
        if error.status < 400:
            raise
        refused = _refusal_of_server(request, error)
    response = web.Response(
        status=refused.status, body=error_body(refused), headers={"Content-Type": JSON_TYPE}
    )
    if request.content.exception() is not None:
        response.force_close()  # what is left of the body cannot be read
    return response


def _refusal_of_server(request: web.Request, error: web.HTTPException) -> RequestFailed:
    """aiohttp's own refusals (no such route, body too large) in the router's shape."""
    if error.status == 413:
        limit_bytes = request.app[TURNS].spec.max_body_bytes
        return RequestFailed(
            "the request body is too large",
            status=413,
            got=f"{request.content_length or f'more than {limit_bytes}'} bytes",
            allowed=f"at most {limit_bytes} bytes",
            fix="shorten the conversation",
        )
    return RequestFailed(
        error.reason,
        status=error.status,
        got=f"{request.method} {request.path}",
        allowed=f"POST {CHAT_PATH}, POST {END_PATH}, GET /v1/models, /health, /metrics",
        fix="correct the method or the path",
    )


async def _chat(request: web.Request) -> web.StreamResponse:
    key = request.headers.get(CONVERSATION_HEADER)
    is_off = request.headers.get(REUSE_HEADER, "").lower() == "off"
    turn = Turn(
        body=parse_request(await request.read()),
        authorization=request.headers.get("Authorization"),
        key=None if is_off or not key else key,
        is_last=request.headers.get(PIN_HEADER, "").lower() == "off",
    )
    answer = await request.app[TURNS].answer(turn)
    headers = {"Content-Type": answer.content_type}
    is_debug = request.headers.get(DEBUG_HEADER) == "1"
    if is_debug:
        headers |= _debug_headers(turn)
    if answer.stream is None:
        return web.Response(status=answer.status, body=answer.body, headers=headers)
    return await _stream(request, answer, headers, turn if is_debug else None)


async def _end(request: web.Request) -> web.Response:
    is_given_back = request.app[TURNS].end(
        request.match_info["id"], request.headers.get("Authorization")
    )
    return web.json_response({"released": int(is_given_back)})


def _debug_headers(turn: Turn) -> dict[str, str]:
    headers: dict[str, str] = {PATH_HEADER: turn.path}
    for name, receipt in (
        (RECEIPT_HEADER, turn.receipt),
        (DECODE_RECEIPT_HEADER, turn.decode_receipt),
    ):
        if receipt is not None:
            headers[name] = orjson.dumps(receipt.to_dict()).decode()
    return headers


async def _stream(
    request: web.Request, answer: Answer, headers: dict[str, str], debugged: Turn | None
) -> web.StreamResponse:
    assert answer.stream is not None  # noqa: S101 - for the type checker; the caller has looked
    try:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        async for data in answer.stream.clean_bytes():
            if data:
                await response.write(data)
        if debugged is not None and debugged.decode_receipt is not None:
            told = orjson.dumps(debugged.decode_receipt.to_dict())
            await response.write(b": %s %s\n\n" % (DECODE_RECEIPT_HEADER.encode(), told))
        await response.write_eof()
        return response
    finally:
        answer.stream.close()


async def _models(request: web.Request) -> web.Response:
    turns = request.app[TURNS]
    tried = turns.decodes.order()
    headers = {
        name: value for name, value in request.headers.items() if name.lower() == "authorization"
    }
    for url in tried:
        try:
            async with turns.session.get(f"{url}/v1/models", headers=headers) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, TimeoutError):
            continue
        media_type = reply.headers.get("Content-Type", JSON_TYPE)
        return web.Response(status=reply.status, body=body, headers={"Content-Type": media_type})
    raise no_node("decode", tried)


async def _metrics(request: web.Request) -> web.Response:
    body = request.app[TURNS].metrics.page()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


async def _health(request: web.Request) -> web.Response:
    turns = request.app[TURNS]
    urls = [*turns.spec.prefill_urls, *turns.spec.decode_urls]
    healthy = await asyncio.gather(*(_is_healthy(turns, url) for url in urls))
    failing = [url for url, is_healthy in zip(urls, healthy, strict=True) if not is_healthy]
    body = {"status": "failing" if failing else "ok", "nodes": len(urls), "failing": failing}
    return web.Response(
        status=503 if failing else 200,
        body=orjson.dumps(body),
        headers={"Content-Type": JSON_TYPE},
    )


async def _is_healthy(turns: Turns, url: str) -> bool:
    timeout = aiohttp.ClientTimeout(total=turns.spec.connect_timeout_s)
    try:
        async with turns.session.get(f"{url.rstrip('/')}/health", timeout=timeout) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
