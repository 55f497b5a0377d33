"""What a mock engine shows beside tokens: metrics, books, and a test's levers."""

import asyncio
from typing import Any, Protocol

import orjson
from aiohttp import web

from runtime.engine_api import KV_USAGE, NIXL_EXPIRED, REQUESTS_RUNNING, REQUESTS_WAITING
from runtime.local.mock_config import Faults, MockConfig
from runtime.local.mock_replies import error_body
from runtime.local.mock_transfer import COUNTER_NAMES, Transfers


class Engine(Protocol):
    """The parts of a mock engine that this file looks at."""

    config: MockConfig
    faults: Faults
    ranks: list[Transfers]

    def restart(self, *, spare: asyncio.BaseTransport | None = None) -> None:
        """Play a crash and a new start."""


def add_admin_routes(app: web.Application, engine: Engine) -> None:
    """Add everything that makes no tokens and reads no KV."""
    admin = _Admin(engine)
    app.router.add_get("/health", admin.health)
    app.router.add_get("/version", admin.version)
    app.router.add_get("/v1/models", admin.models)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/mock/books", admin.books)
    app.router.add_post("/mock/faults", admin.set_faults)
    app.router.add_post("/mock/restart", admin.restart)


def books(engine: Engine) -> dict[str, Any]:
    """Who holds what, over all ranks."""
    ranks = engine.ranks
    return {
        "kept": sum(rank.kept_count for rank in ranks),
        "kept_blocks": sum(rank.kept_blocks for rank in ranks),
        "free_blocks": sum(rank.pool.free for rank in ranks),
        "waiting": sum(rank.pool.waiting_count for rank in ranks),
        "counters": {
            name: sum(rank.counters[name] for rank in ranks) for name in sorted(COUNTER_NAMES)
        },
        "engine_id": ranks[0].engine_id,
        "engine_ids": [rank.engine_id for rank in ranks],
    }


def metrics_page(engine: Engine) -> str:
    """The samples that the kit reads, one of each rank, with vLLM's labels."""
    config, lines = engine.config, []
    for at, rank in enumerate(engine.ranks):
        labels = f'{{engine="{at}",model_name="{config.served_model_name}"}}'
        lines += [f"{name}{labels} {float(rank.counters[name])}" for name in COUNTER_NAMES]
        _ = rank.kept_count  # lets go of what has expired
        used = 1 - rank.pool.free / rank.pool.capacity
        lines.append(f"{KV_USAGE}{labels} {used}")
        lines.append(f"{REQUESTS_RUNNING}{labels} {float(rank.running_count)}")
        lines.append(f"{NIXL_EXPIRED}{labels} {float(rank.expired_count)}")
        lines.append(f"{REQUESTS_WAITING}{labels} {float(rank.pool.waiting_count)}")
        # vLLM gives each rank the sum over all of them.
        blocks = config.num_blocks * config.data_parallel_size
        info = f'block_size="{config.block_size_tokens}",cache_dtype="auto",engine="{at}"'
        info += f',num_gpu_blocks="{blocks}"'
        lines.append(f"vllm:cache_config_info{{{info}}} 1.0")
    return "\n".join(lines) + "\n"


class _Admin:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self._engine.faults.is_sick else 200)

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self._engine.config.version})

    async def models(self, _request: web.Request) -> web.Response:
        name = self._engine.config.served_model_name
        card = {"id": name, "object": "model", "owned_by": "vllm"}
        return web.json_response({"object": "list", "data": [card]})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics_page(self._engine))

    async def books(self, _request: web.Request) -> web.Response:
        return web.json_response(books(self._engine))

    async def set_faults(self, request: web.Request) -> web.Response:
        try:
            problem = self._engine.faults.update(orjson.loads(await request.read()))
        except orjson.JSONDecodeError as error:
            problem = str(error)
        if problem:
            return web.json_response(error_body(400, "BadRequestError", problem), status=400)
        return web.json_response({})

    async def restart(self, request: web.Request) -> web.Response:
        self._engine.restart(spare=request.transport)
        return web.json_response({"engine_id": self._engine.ranks[0].engine_id})
