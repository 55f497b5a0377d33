"""Mock engines and a router on free loopback ports, and a client that plays turns."""

import asyncio
import io
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.contract.http import (
    CONVERSATION_HEADER,
    DEBUG_HEADER,
    PATH_HEADER,
    RECEIPT_HEADER,
    REUSE_HEADER,
)
from runtime.contract.node import KvTransferSpec, Role, RouterSpec
from runtime.engine_api import KV_PARAMS, Receipt
from runtime.local.checks import free_ports
from runtime.local.mock_engine import MockConfig, MockEngine, Seen
from runtime.router import server
from runtime.router.app import Router
from runtime.router.auth import Gate
from runtime.router.store import MemoryStore, StoredHandle
from runtime.router.turn import Turns

MODEL = "mock"
HOST = "127.0.0.1"
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LONG_TEXT = " ".join(f"fact {number} about the sea" for number in range(40))
"""A few hundred tokens: more than threshold and block size."""

HI: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
"""A chat turn that takes no time."""

Message = dict[str, str]


def write_tokenizer(folder: Path) -> None:
    """Train a small byte-level BPE and save it as a model folder."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([LONG_TEXT, "system user assistant tell me more of it"], trainer)
    bpe.save(str(folder / "tokenizer.json"))


@asynccontextmanager
async def listening(app: web.Application, port: int = 0) -> AsyncIterator[int]:
    """Serve an application; yields its port."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def unused_port() -> int:
    """A port on which nothing listens."""
    return free_ports(1)[0]


@asynccontextmanager
async def running_engine(model: Path, role: Role, **config: Any) -> AsyncIterator[MockEngine]:
    """One mock engine without delays."""
    settings = {"prefill_us_per_token": 0.0, "token_ms": 0.0} | config
    engine = MockEngine(MockConfig(role, model, MODEL, **settings))
    async with listening(engine.app()) as port:
        engine.transfers.port = port
        yield engine


def url_of(engine: MockEngine) -> str:
    """Address of a running engine."""
    return f"http://{HOST}:{engine.transfers.port}"


@dataclass
class TurnReply:
    """What the client saw."""

    status: int
    headers: Any
    raw: bytes

    @property
    def path(self) -> str | None:
        return self.headers.get(PATH_HEADER)  # type: ignore[no-any-return]

    @property
    def receipt(self) -> Receipt | None:
        raw = self.headers.get(RECEIPT_HEADER)
        return Receipt.from_dict(orjson.loads(raw)) if raw else None

    @property
    def body(self) -> Any:
        return orjson.loads(self.raw)

    @property
    def text(self) -> str:
        """The answer, streamed or not."""
        if not self.headers["Content-Type"].startswith("text/event-stream"):
            return str(self.body["choices"][0]["message"]["content"])
        choices = [choice for event in self.events[:-1] for choice in event.get("choices", ())]
        return "".join(choice["delta"].get("content", "") for choice in choices)

    @property
    def events(self) -> list[Any]:
        """Data of the stream's events; `[DONE]` as text."""
        frames = [frame for frame in self.raw.split(b"\n\n") if frame.startswith(b"data: ")]
        data = [frame.removeprefix(b"data: ") for frame in frames]
        return [item.decode() if item == b"[DONE]" else orjson.loads(item) for item in data]


@dataclass
class Fleet:
    """A router in front of engines."""

    url: str
    router: Router
    session: aiohttp.ClientSession
    prefills: list[MockEngine]
    decodes: list[MockEngine]
    history: list[Message] = field(default_factory=list)

    @property
    def turns(self) -> Turns:
        """What serves the turns."""
        return self.router.turns

    @property
    def stored(self) -> list[StoredHandle]:
        """Handles in the router's memory, oldest first."""
        assert isinstance(self.turns.store, MemoryStore)
        return self.turns.store.handles

    async def metric(self, line: str) -> bool:
        """Whether /metrics has this line."""
        async with self.session.get(f"{self.url}/metrics") as reply:
            return line in (await reply.text()).splitlines()

    async def post(
        self,
        body: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        path: str = "/v1/chat/completions",
    ) -> TurnReply:
        """Send a request as it is."""
        sent = {DEBUG_HEADER: "1", **(headers or {})}
        if key:
            sent[CONVERSATION_HEADER] = key
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(
            f"{self.url}{path}", data=io.BytesIO(data), headers=sent
        ) as reply:
            return TurnReply(reply.status, reply.headers, await reply.read())

    async def turn(
        self,
        text: str = LONG_TEXT,
        *,
        key: str | None = "talk",
        reuse: bool = True,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> TurnReply:
        """Play the next turn of the one conversation that a test has."""
        messages = [*self.history, {"role": "user", "content": text}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0} | more
        sent = (headers or {}) | ({} if reuse else {REUSE_HEADER: "off"})
        reply = await self.post(body, key=key, headers=sent)
        if reply.status == 200 and b'"error"' not in reply.raw:
            self.history = [*messages, {"role": "assistant", "content": reply.text}]
        return reply


def legs_of(engines: Iterable[MockEngine]) -> list[Seen]:
    """All chat requests that arrived, engine by engine."""
    return [seen for engine in engines for seen in engine.requests]


def params_of(engine: MockEngine, at: int = -1) -> dict[str, Any]:
    """The kv_transfer_params of a request that arrived."""
    params: dict[str, Any] = engine.requests[at].body[KV_PARAMS]
    return params


@asynccontextmanager
async def running_fleet(
    model: Path,
    *,
    prefills: int = 1,
    decodes: int = 1,
    dead_prefills: int = 0,
    dead_decodes: int = 0,
    engine: dict[str, Any] | None = None,
    gate: Gate | None = None,
    extra_prefills: tuple[str, ...] = (),
    extra_decodes: tuple[str, ...] = (),
    **spec: Any,
) -> AsyncIterator[Fleet]:
    """A router over mock engines; dead ones came first, and refuse."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        fleet_p = [
            await enter(running_engine(model, "prefill", **(engine or {}))) for _ in range(prefills)
        ]
        fleet_d = [
            await enter(running_engine(model, "decode", **(engine or {}))) for _ in range(decodes)
        ]
        # They answer while the router starts, and have gone when the test begins.
        dying = await enter(AsyncExitStack())
        dead_p = [
            url_of(await dying.enter_async_context(running_engine(model, "prefill")))
            for _ in range(dead_prefills)
        ]
        dead_d = [
            url_of(await dying.enter_async_context(running_engine(model, "decode")))
            for _ in range(dead_decodes)
        ]
        router = Router(
            router_spec(
                prefill_urls=(*dead_p, *map(url_of, fleet_p), *extra_prefills),
                decode_urls=(*dead_d, *map(url_of, fleet_d), *extra_decodes),
                **spec,
            ),
            gate,
        )
        port = await enter(server.listening(router))
        session = await enter(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)))
        await dying.aclose()
        yield Fleet(f"http://{HOST}:{port}", router, session, fleet_p, fleet_d)


def router_spec(**settings: Any) -> RouterSpec:
    """A spec on any free port, with short waits."""
    raw = {"kv": KvTransferSpec(), "port": 0, "queue_timeout_s": 0.2, "drain_s": 1.0} | settings
    return RouterSpec.model_validate({**raw, "port": 8000}).model_copy(update={"port": raw["port"]})


def assert_used_once(fleet: Fleet) -> None:
    """No handle and no P dict has been sent to two legs."""
    sent = [
        seen.body[KV_PARAMS]["remote_request_id"]
        for seen in legs_of([*fleet.prefills, *fleet.decodes])
        if "remote_request_id" in seen.body.get(KV_PARAMS, {})
    ]
    assert len(sent) == len(set(sent))


def wait_listening(port: int, limit_s: float = 20.0) -> None:
    """Poll until something accepts connections."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)
        else:
            return


async def until(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


def fresh_id() -> str:
    """A conversation id or salt of its own."""
    return uuid.uuid4().hex
