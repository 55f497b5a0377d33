"""A mock pair and a client, for the tests of the mock engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, RECEIPT
from runtime.local.mock_engine import MockEngine
from tests.router.fleet import LONG_TEXT, MODEL, running_engine, url_of

MESSAGES = [{"role": "user", "content": LONG_TEXT}]


@dataclass
class Mocks:
    """A mock pair and a client."""

    prefill: MockEngine
    decode: MockEngine
    session: aiohttp.ClientSession

    async def ask(
        self, engine: MockEngine, path: str, body: dict[str, Any], **headers: str
    ) -> tuple[int, Any]:
        """Status and JSON of any request."""
        url = f"{url_of(engine)}{path}"
        async with self.session.post(url, json=body, headers=headers) as reply:
            return reply.status, await reply.json()

    async def books(self, engine: MockEngine) -> dict[str, Any]:
        """What GET /mock/books says."""
        async with self.session.get(f"{url_of(engine)}/mock/books") as reply:
            books: dict[str, Any] = await reply.json()
            return books

    async def post(self, engine: MockEngine, params: Any, **more: Any) -> tuple[int, Any]:
        """Status and JSON of a chat request with these kv_transfer_params."""
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, KV_PARAMS: params} | more
        url = f"{url_of(engine)}/v1/chat/completions"
        async with self.session.post(url, json=body) as reply:
            return reply.status, await reply.json()

    async def p_dict(self, **more: Any) -> dict[str, Any]:
        """What a cold P leg returns."""
        _, reply = await self.post(self.prefill, dict(COLD_PREFILL), **more)
        params: dict[str, Any] = reply[KV_PARAMS]
        return params

    async def handle(self, **more: Any) -> dict[str, Any]:
        """What D returns after a cold P leg."""
        _, reply = await self.post(self.decode, await self.p_dict(**more), **more)
        params: dict[str, Any] = reply[KV_PARAMS]
        return params

    async def receipt(self, handle: dict[str, Any], **more: Any) -> dict[str, Any]:
        """P's receipt for a handle."""
        _, reply = await self.post(self.prefill, handle, **more)
        receipt: dict[str, Any] = reply[KV_PARAMS][RECEIPT]
        return receipt


@asynccontextmanager
async def running_mocks(model: Path, **config: Any) -> AsyncIterator[Mocks]:
    """A mock pair without delays."""
    async with (
        running_engine(model, "prefill", **config) as prefill,
        running_engine(model, "decode", **config) as decode,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
    ):
        yield Mocks(prefill, decode, session)
