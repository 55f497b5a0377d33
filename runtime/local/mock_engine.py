"""A stand-in for a vLLM server with this kit's plugin: same HTTP shapes, no model.

It moves no KV, but keeps books of who holds which blocks, so that the router and the
benchmark meet the replies, receipts and counters of real engines within milliseconds.
"""

import argparse
import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from runtime.contract.node import Role
from runtime.engine_api import KV_PARAMS, PIN, RECEIPT, RELEASE_PATH, transfer_params_problem
from runtime.local.mock_replies import Job, stream_chunks, whole_reply
from runtime.local.mock_tokens import MockTokens, block_hashes, tail_hash
from runtime.local.mock_transfer import COUNTER_NAMES, TransferFailed, Transfers, compute
from runtime.verification.record import Sequenced

_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class MockConfig:
    """How a mock engine behaves; times are what it sleeps."""

    role: Role
    model: Path
    served_model_name: str
    port: int = 0
    host: str = "127.0.0.1"
    block_size_tokens: int = 32
    threshold_tokens: int = 64
    ttl_s: float = 480.0
    prefill_us_per_token: float = 20.0
    token_ms: float = 1.0


@dataclass(frozen=True)
class Seen:
    """A chat request as it arrived."""

    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class Faults:
    """What to do wrong; a test sets these, each counts down as it is used.

    Attributes:
        fail_next: statuses of the next chat replies.
        reset_next: how many connections to drop before any reply.
        stall_next: how many requests never to answer.
        die_after_chunks: drop the next stream after so many chunks; None is never.
        spoil_next: fields to put into the next kv_transfer_params returned; a whole
            replacement under the key `replace`.
    """

    fail_next: list[int] = field(default_factory=list)
    reset_next: int = 0
    stall_next: int = 0
    die_after_chunks: int | None = None
    spoil_next: list[dict[str, Any]] = field(default_factory=list)


class MockEngine:
    """One server.

    Attributes:
        faults: what to do wrong next.
        requests: chat requests that arrived, oldest first.
        transfers: kept blocks, engine id and counters.
    """

    def __init__(self, config: MockConfig) -> None:
        self.config = config
        self.faults = Faults()
        self.requests: list[Seen] = []
        self.tokens = MockTokens(config.model)
        self.transfers = Transfers(
            is_prefill=config.role == "prefill",
            block_size_tokens=config.block_size_tokens,
            threshold_tokens=config.threshold_tokens,
            ttl_s=config.ttl_s,
            host=config.host,
            port=config.port,
        )
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The server as an application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._client)
        app.router.add_get("/health", _health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/mock/read", self._read)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post(RELEASE_PATH, self._release)
        return app

    async def _client(self, _app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._session:
            yield

    async def _models(self, _request: web.Request) -> web.Response:
        card = {"id": self.config.served_model_name, "object": "model", "owned_by": "vllm"}
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.config.served_model_name}"}}'
        counters = self.transfers.counters
        lines = [f"{name}{labels} {float(counters[name])}" for name in COUNTER_NAMES]
        return web.Response(text="\n".join(lines) + "\n")

    async def _read(self, request: web.Request) -> web.Response:
        asked = await request.json()
        is_mine = self.transfers.done(asked["request_id"], asked["engine_id"])
        return web.json_response({}, status=200 if is_mine else 409)

    async def _release(self, request: web.Request) -> web.Response:
        try:
            handle = (await request.json())[KV_PARAMS]
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, "BadRequestError", f"no handle in the body: {error!r}")
        if problem := transfer_params_problem(handle):
            return _error(400, "BadRequestError", problem)
        self.transfers.release(handle["remote_request_id"], handle["remote_engine_id"])
        return web.json_response({}, status=202)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.requests.append(Seen(request.headers, body))
        if (fault := await self._fault(request)) is not None:
            return fault
        if (refusal := self._refusal(body)) is not None:
            return refusal
        job = self._job(body, request.headers.get("X-Request-Id") or uuid.uuid4().hex)
        try:
            result = await self._serve(job)
        except TransferFailed as error:
            return _error(500, "InternalServerError", str(error))
        if body.get("stream"):
            return await self._stream(request, job, result)
        await asyncio.sleep(len(job.choices) * self.config.token_ms / 1000)
        return web.Response(
            body=orjson.dumps(whole_reply(job, self.tokens, result)),
            content_type="application/json",
        )

    async def _fault(self, request: web.Request) -> web.Response | None:
        faults = self.faults
        if faults.fail_next:
            return _error(faults.fail_next.pop(0), "InternalServerError", "told to fail")
        if faults.reset_next:
            faults.reset_next -= 1
            _drop(request)
            return web.Response()
        if faults.stall_next:
            faults.stall_next -= 1
            await asyncio.Event().wait()
        return None

    def _refusal(self, body: Mapping[str, Any]) -> web.Response | None:
        if body.get("model") not in (None, self.config.served_model_name):
            message = f"The model `{body['model']}` does not exist."
            return _error(404, "NotFoundError", message)
        if not body.get("messages"):
            return _error(400, "BadRequestError", "messages: Field required")
        return None

    def _job(self, body: Mapping[str, Any], request_id: str) -> Job:
        prompt = self.tokens.prompt_ids(body["messages"])
        count = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        ranked = int(body.get("top_logprobs") or 0) if body.get("logprobs") else 0
        choices = self.tokens.answer(
            prompt, count, allowed=body.get("allowed_token_ids"), ranked=ranked
        )
        external_id = f"chatcmpl-{request_id}"
        return Job(body, external_id, f"{external_id}-{uuid.uuid4().hex[:8]}", prompt, choices)

    async def _serve(self, job: Job) -> dict[str, Any] | None:
        """Prefill, by whatever means; returns the kv_transfer_params of the reply."""
        if not job.params:
            await compute(len(job.prompt), self.config.prefill_us_per_token)
            return None
        params = dict(job.params)
        leg = self.transfers.gate.admit(params, self._sequenced(job, job.prompt))
        pulled = leg.match(0, self.config.threshold_tokens)
        if leg.is_owed:
            leg.allocated(pulled)
            await self.transfers.read(self._open_session(), params, pulled)
            leg.pull_ended_s = time.perf_counter() if pulled else None
        leg.allocated(0)
        await compute(len(job.prompt) - pulled, self.config.prefill_us_per_token)
        result: dict[str, Any] = {}
        if leg.is_prefill:
            sequence = self._sequenced(job, job.prompt)
            result = self.transfers.params(job.internal_id, sequence)
            result["remote_prefill_cached_tokens"] = pulled
        elif params and params.get(PIN) is not False:
            # The KV of the last token is not written when the sequence ends.
            ids = job.prompt + [choice.token_id for choice in job.choices]
            result = self.transfers.params(job.internal_id, self._sequenced(job, ids[:-1]))
        result[RECEIPT] = leg.receipt().to_dict()
        if self.faults.spoil_next:
            spoiled = self.faults.spoil_next.pop(0)
            result = spoiled.get("replace", result | spoiled)
        return result

    def _sequenced(self, job: Job, ids: list[int]) -> Sequenced:
        size, salt = self.config.block_size_tokens, job.body.get("cache_salt")
        return Sequenced(
            tokens=len(ids),
            block_hashes=block_hashes(ids, size, salt),
            tail_hash=lambda start, end: tail_hash(ids[:end], start, size, salt),
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the application has not been started")
        return self._session

    async def _stream(
        self, request: web.Request, job: Job, result: dict[str, Any] | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for sent, chunk in enumerate(stream_chunks(job, self.tokens, result)):
            if sent == self.faults.die_after_chunks:
                self.faults.die_after_chunks = None
                _drop(request)
                return response
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
            await asyncio.sleep(self.config.token_ms / 1000)
        await response.write(b"data: [DONE]\n\n")
        return response


async def _health(_request: web.Request) -> web.Response:
    return web.Response()


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _error(status: int, kind: str, message: str) -> web.Response:
    """An error in vLLM's shape."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


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
