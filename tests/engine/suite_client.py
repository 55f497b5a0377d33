"""Plays legs against any pair of servers, mock or real, for the shared suite."""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from runtime.engine_api import (
    COLD_PREFILL,
    EXTERNAL_HIT_TOKENS,
    KV_PARAMS,
    RECEIPT,
    RELEASE_PATH,
    Receipt,
    parse_metrics,
    transfer_params_problem,
)

Reply = dict[str, Any]
Message = dict[str, str]

CHAT_PATH = "/v1/chat/completions"
KV_USAGE = "vllm:kv_cache_usage_perc"
LONG_ANSWER_TOKENS = 4000
"""More than either server generates before it sees that its client has left."""

BLOCK_SIZE_TOKENS = 32
THRESHOLD_TOKENS = 64
_TIMEOUT = aiohttp.ClientTimeout(total=60)
TEXT = " ".join(f"ship {number} left the harbour" for number in range(60))
"""A few hundred tokens under any tokenizer: more than the threshold."""


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode server with block size 32 and threshold 64.

    Attributes:
        given: handles and P dicts that the servers gave out, as (owner's URL, dict).
    """

    prefill_url: str
    decode_url: str
    model: str
    given: list[tuple[str, Reply]] = field(default_factory=list)


@dataclass(frozen=True)
class PlayedTurn:
    """One turn: P's reply, D's reply."""

    prefilled: Reply
    answered: Reply

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self.answered["choices"][0]["token_ids"]
        return ids

    @property
    def text(self) -> str:
        return str(self.answered["choices"][0]["message"]["content"])


class Client:
    """Plays legs of one conversation with a salt of its own."""

    def __init__(self, pair: Pair, session: aiohttp.ClientSession) -> None:
        self._pair, self._session = pair, session
        self._salt = uuid.uuid4().hex

    @property
    def prefill_url(self) -> str:
        return self._pair.prefill_url

    def extras(self) -> Reply:
        """Fields that every endpoint takes."""
        return {"model": self._pair.model, "temperature": 0, "cache_salt": self._salt}

    def body(self, messages: list[Message], **more: Any) -> Reply:
        return self.extras() | {"messages": messages, "ignore_eos": True} | more

    async def raw(self, url: str, body: Mapping[str, Any], path: str = CHAT_PATH) -> bytes:
        async with self._session.post(
            f"{url}{path}", json=body, headers={"X-Request-Id": uuid.uuid4().hex}
        ) as reply:
            raw = await reply.read()
            assert reply.status == 200, raw
        for line in raw.splitlines():
            data = line.removeprefix(b"data: ")
            if data.startswith(b"{"):
                read = orjson.loads(data)
                nested = (read.get("response") or {}).get(KV_PARAMS)
                if params := read.get(KV_PARAMS) or nested:
                    self._pair.given.append((url, params))
        return raw

    async def begin_and_leave(self, url: str, params: Mapping[str, Any], **more: Any) -> None:
        """Ask for a long stream, read two of its lines, and close the connection."""
        body = self.decode_body(first_messages(), params, stream=True, **more)
        body |= {"max_tokens": LONG_ANSWER_TOKENS}
        reply = await self._session.post(f"{url}{CHAT_PATH}", json=body)
        assert reply.status == 200
        for _ in range(2):
            assert await reply.content.readline()
        reply.close()

    async def prefill(
        self, messages: list[Message], handle: Mapping[str, Any] | None = None
    ) -> Reply:
        body = self.body(messages, max_tokens=1) | {KV_PARAMS: dict(handle or COLD_PREFILL)}
        reply: Reply = orjson.loads(await self.raw(self._pair.prefill_url, body))
        return reply

    def decode_body(self, messages: list[Message], params: Mapping[str, Any], **more: Any) -> Reply:
        sent = {name: value for name, value in params.items() if name != RECEIPT}
        return self.body(messages, **({"max_tokens": 8, "return_token_ids": True} | more)) | {
            KV_PARAMS: sent
        }

    async def turn(
        self, messages: list[Message], handle: Mapping[str, Any] | None = None, **more: Any
    ) -> PlayedTurn:
        prefilled = await self.prefill(messages, handle)
        body = self.decode_body(messages, prefilled[KV_PARAMS], **more)
        return PlayedTurn(prefilled, orjson.loads(await self.raw(self._pair.decode_url, body)))

    async def stream(self, messages: list[Message], **more: Any) -> list[Reply]:
        """Chunks of a streamed turn; checks that `[DONE]` ends it."""
        prefilled = await self.prefill(messages)
        body = self.decode_body(messages, prefilled[KV_PARAMS], stream=True, **more)
        raw = await self.raw(self._pair.decode_url, body)
        data = [frame.removeprefix(b"data: ") for frame in raw.strip().split(b"\n\n")]
        assert data[-1] == b"[DONE]"
        return [orjson.loads(item) for item in data[:-1]]

    async def hit_tokens(self) -> float:
        return await self.metric(self._pair.prefill_url, EXTERNAL_HIT_TOKENS)

    async def metric(self, url: str, name: str) -> float:
        async with self._session.get(f"{url}/metrics") as reply:
            return parse_metrics(await reply.text(), [name])[name]

    async def wait_idle(self, limit_s: float) -> None:
        """Poll until neither server holds a block.

        Raises:
            TimeoutError: one still does.
        """
        for url in (self._pair.prefill_url, self._pair.decode_url):
            async with asyncio.timeout(limit_s):
                while await self.metric(url, KV_USAGE) > 0:
                    await asyncio.sleep(0.05)


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=_TIMEOUT)


def first_messages() -> list[Message]:
    return [{"role": "system", "content": TEXT}, {"role": "user", "content": TEXT}]


def next_messages(played: PlayedTurn) -> list[Message]:
    return [
        *first_messages(),
        {"role": "assistant", "content": played.text},
        {"role": "user", "content": "and then"},
    ]


def receipt_of(reply: Reply) -> Receipt:
    receipt = Receipt.from_dict(reply[KV_PARAMS][RECEIPT])
    assert receipt is not None
    return receipt


def assert_sendable(params: Any) -> None:
    assert transfer_params_problem(params, block_size_tokens=BLOCK_SIZE_TOKENS) is None


async def release_all(pair: Pair) -> None:
    """Give back everything that the checks were given and did not use."""
    async with open_session() as session:
        for url, params in pair.given:
            if "remote_request_id" not in params:
                continue
            async with session.post(f"{url}{RELEASE_PATH}", json={KV_PARAMS: params}) as reply:
                assert reply.status == 202
