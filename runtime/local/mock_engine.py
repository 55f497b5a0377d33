"""A stand-in for a vLLM server with this kit's plugin: same HTTP shapes, no model.

It moves no KV, but keeps books of who holds which blocks, so that the router and the
benchmark meet the replies, receipts and counters of real engines within milliseconds.
"""

import argparse
import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from runtime.engine_api import KV_PARAMS, RELEASE_PATH, transfer_params_problem
from runtime.local.mock_admin import add_admin_routes
from runtime.local.mock_chat import Chat
from runtime.local.mock_completions import Completions
from runtime.local.mock_config import Faults, MockConfig, Seen
from runtime.local.mock_endpoint import Endpoint
from runtime.local.mock_messages import Messages
from runtime.local.mock_pool import BlockPool
from runtime.local.mock_replies import Job, bad_request, error_body
from runtime.local.mock_responses import Responses
from runtime.local.mock_run import Run
from runtime.local.mock_tokens import MockTokens
from runtime.local.mock_transfer import Transfers

__all__ = ["Faults", "MockConfig", "MockEngine", "Seen"]

_MAX_BODY_BYTES = 64 * 1024 * 1024
_CONNECTIONS_BEFORE_SWEEP = 256


class MockEngine:
    """One server.

    Attributes:
        faults: what to do wrong next.
        requests: requests for tokens that arrived, oldest first.
        ranks: kept blocks, engine id and counters of each data-parallel rank; others
            after a restart.
    """

    def __init__(self, config: MockConfig) -> None:
        self.config = config
        self.faults = Faults()
        self.requests: list[Seen] = []
        self.tokens = MockTokens(config.model)
        self.ranks = self._new_ranks(config.port)
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Transport] = set()
        self._next_rank = 0

    @property
    def transfers(self) -> Transfers:
        """Books of the first rank."""
        return self.ranks[0]

    def app(self) -> web.Application:
        """The server as an application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._connected])
        app.cleanup_ctx.append(self._client)
        add_admin_routes(app, self)
        app.router.add_post("/mock/read", self._read)
        app.router.add_post(RELEASE_PATH, self._release)
        for dialect in (Chat(), Completions(), Responses(), Messages()):
            app.router.add_post(dialect.path, Endpoint(self, dialect).serve)
        return app

    def restart(self, *, spare: asyncio.BaseTransport | None = None) -> None:
        """Play a crash and a new start: connections end, and nothing is known any more.

        Args:
            spare: the one connection that lives on.
        """
        for rank in self.ranks:
            rank.close()
        for task in self._tasks:
            task.cancel()
        self.ranks = self._new_ranks(self.transfers.port)
        for transport in self._connections:
            if transport is not spare:
                transport.abort()
        self._connections.clear()

    def books_for(self, named: str) -> Transfers:
        """Books of the rank that serves a request: the one it names, else the next.

        Raises:
            Refused: there is no such rank.
        """
        if named.isdecimal():
            rank = int(named)
            if rank >= len(self.ranks):
                raise bad_request(f"data_parallel_rank {rank} is out of range")
        else:
            rank = self._next_rank % len(self.ranks)
            self._next_rank = rank + 1
        self.ranks[rank].port = self.transfers.port  # known once the server listens
        return self.ranks[rank]

    def run(self, job: Job, transfers: Transfers) -> Run:
        """Let a rank see a request."""
        if self._session is None:
            raise RuntimeError("the application has not been started")
        return Run(job, self.config, transfers, self._session, self._spawn)

    def _new_ranks(self, port: int) -> list[Transfers]:
        config, engine_id = self.config, str(uuid.uuid4())
        is_prefill, count = config.role == "prefill", config.data_parallel_size
        return [
            Transfers(
                is_prefill=is_prefill,
                block_size_tokens=config.block_size_tokens,
                threshold_tokens=config.threshold_tokens,
                keep_s=config.lease_s if is_prefill else config.ttl_s,
                spent_s=config.ttl_s,
                host=config.host,
                port=port,
                pool=BlockPool(config.num_blocks),
                engine_id=f"{engine_id}_dp{rank}" if count > 1 else engine_id,
            )
            for rank in range(count)
        ]

    @web.middleware
    async def _connected(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Remember the connection, for a restart."""
        if (transport := request.transport) is not None:
            if len(self._connections) > _CONNECTIONS_BEFORE_SWEEP:
                self._connections = {one for one in self._connections if not one.is_closing()}
            self._connections.add(transport)
        response: web.StreamResponse = await handler(request)
        return response

    async def _client(self, _app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            yield
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for rank in self.ranks:
            rank.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # an aborted request leaves nobody else to look at it

    async def _read(self, request: web.Request) -> web.Response:
        asked = await request.json()
        is_mine = any(rank.done(asked["request_id"], asked["engine_id"]) for rank in self.ranks)
        return web.json_response({}, status=200 if is_mine else 409)

    async def _release(self, request: web.Request) -> web.Response:
        try:
            handle = (await request.json())[KV_PARAMS]
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, "BadRequestError", f"no handle in the body: {error!r}")
        if problem := transfer_params_problem(handle):
            return _error(400, "BadRequestError", problem)
        for rank in self.ranks:
            rank.release(handle["remote_request_id"], handle["remote_engine_id"])
        return web.json_response({}, status=202)


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response(error_body(status, kind, message), status=status)


def main() -> None:
    """Serve until SIGTERM or SIGINT, then end at once."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime.local.mock_engine", description=__doc__
    )
    parser.add_argument("--role", choices=("prefill", "decode"), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--block-size", type=int, default=32, dest="block_size_tokens")
    parser.add_argument("--threshold-tokens", type=int, default=64)
    parser.add_argument("--ttl-s", type=float, default=480.0)
    parser.add_argument("--one-way", action="store_true", dest="is_one_way")
    parser.add_argument("--lease-s", type=float, default=30.0)
    parser.add_argument("--num-blocks", type=int, default=100_000)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--version", default="0.32.0")
    parser.add_argument("--keep-requests", type=int)
    parser.add_argument("--prefill-us-per-token", type=float, default=20.0)
    parser.add_argument("--token-ms", type=float, default=1.0)
    config = MockConfig(**vars(parser.parse_args()))
    web.run_app(
        MockEngine(config).app(),
        host=config.host,
        port=config.port,
        access_log=None,
        print=None,
        handler_cancellation=True,
        shutdown_timeout=0.0,
    )


if __name__ == "__main__":
    main()
