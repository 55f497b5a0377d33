"""From one HTTP request for tokens to its reply, whatever the endpoint."""

import asyncio
import uuid
from typing import Any, Protocol

import orjson
from aiohttp import web

from runtime.local.mock_config import Faults, MockConfig, Seen
from runtime.local.mock_faults import drop, garbage, huge, send_half, wait_as_told
from runtime.local.mock_replies import (
    Dialect,
    Job,
    Refused,
    Result,
    bad_request,
    carries_result,
    encoded,
)
from runtime.local.mock_run import Run
from runtime.local.mock_tokens import MockTokens
from runtime.local.mock_transfer import TransferFailed, Transfers

RANK_HEADER = "X-data-parallel-rank"

_SSE = "text/event-stream; charset=utf-8"


class TokenEngine(Protocol):
    """The parts of a mock engine that serve a request."""

    config: MockConfig
    faults: Faults
    requests: list[Seen]
    tokens: MockTokens

    def books_for(self, named: str) -> Transfers:
        """Books of the rank that serves a request."""

    def run(self, job: Job, transfers: Transfers) -> Run:
        """Let a rank see a request."""


class Endpoint:
    """One of the engine's endpoints that make tokens."""

    def __init__(self, engine: TokenEngine, dialect: Dialect) -> None:
        self._engine, self._dialect = engine, dialect

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        engine = self._engine
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            return self._refusal(bad_request(f"JSON decode error: {error}"))
        engine.requests.append(Seen(request.headers, body, request.path))
        if engine.config.keep_requests is not None:
            del engine.requests[: -engine.config.keep_requests or None]
        if (fault := self._fault(request, body)) is not None:
            return fault
        try:
            transfers, jobs = self._accept(request, body)
        except Refused as refusal:
            return self._refusal(refusal)
        runs = [engine.run(job, transfers) for job in jobs]
        try:
            return await self._answer(request, jobs, runs)
        except TransferFailed as error:
            return self._refusal(Refused(500, "InternalServerError", str(error)))
        finally:
            for run in runs:
                run.close()

    def _fault(self, request: web.Request, body: dict[str, Any]) -> web.Response | None:
        faults = self._engine.faults
        if faults.fail_next:
            status = faults.fail_next.pop(0)
            return self._refusal(Refused(status, "InternalServerError", "told to fail"))
        if faults.use("reset_next"):
            drop(request)
            return web.Response()
        if faults.use("garbage_next"):
            return garbage(is_streamed=bool(body.get("stream")))
        return None

    def _refusal(self, refusal: Refused) -> web.Response:
        error = self._dialect.error(refusal.status, refusal.kind, str(refusal))
        return web.json_response(error, status=refusal.status)

    def _accept(self, request: web.Request, body: Any) -> tuple[Transfers, list[Job]]:
        config, dialect = self._engine.config, self._dialect
        if not isinstance(body, dict):
            raise bad_request("the body must be a JSON object")
        if body.get("model") not in (None, config.served_model_name):
            raise Refused(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        dialect.check(body)
        transfers = self._engine.books_for(request.headers.get(RANK_HEADER, ""))
        reply_id = dialect.reply_id(request.headers.get("X-Request-Id") or uuid.uuid4().hex)
        tokens, jobs = self._engine.tokens, []
        for prompt in dialect.prompts(body, tokens):
            choices = tokens.answer(
                prompt,
                dialect.answer_tokens(body),
                allowed=body.get("allowed_token_ids"),
                ranked=dialect.ranked(body),
            )
            jobs.append(Job(body, reply_id, f"{reply_id}-{uuid.uuid4().hex[:8]}", prompt, choices))
        needed = sum(transfers.blocks_of(len(job.prompt) + len(job.choices)) for job in jobs)
        if needed > config.num_blocks:
            raise bad_request(f"the request needs {needed} blocks of {config.num_blocks}")
        return transfers, jobs

    async def _answer(
        self, request: web.Request, jobs: list[Job], runs: list[Run]
    ) -> web.StreamResponse:
        engine, dialect = self._engine, self._dialect
        await wait_as_told(engine.faults)
        if len(runs) == 1:
            await runs[0].start()
        else:
            # All of them end, one way or another, before their blocks are given back.
            ends = await asyncio.gather(*(run.start() for run in runs), return_exceptions=True)
            if failed := [end for end in ends if end is not None]:
                raise failed[0]
        if jobs[0].body.get("stream"):
            return await self._stream(request, jobs, runs)
        await asyncio.sleep(len(jobs[0].choices) * engine.config.token_ms / 1000)
        if engine.faults.use("early_close_next"):
            reply = dialect.whole(jobs, engine.tokens, [None for _ in jobs])
            return await send_half(request, orjson.dumps(reply), "application/json")
        if request.transport is None or request.transport.is_closing():
            return web.Response()
        results = [self._finished(run) for run in runs]
        reply = dialect.whole(jobs, engine.tokens, results)
        return web.Response(body=orjson.dumps(reply), content_type="application/json")

    def _finished(self, run: Run) -> Result:
        result = run.finish()
        if result is not None and self._engine.faults.spoil_next:
            spoiled = self._engine.faults.spoil_next.pop(0)
            result = spoiled.get("replace", result | spoiled)
        return result

    async def _stream(
        self, request: web.Request, jobs: list[Job], runs: list[Run]
    ) -> web.StreamResponse:
        faults, token_s = self._engine.faults, self._engine.config.token_ms / 1000
        by_job = {id(job): run for job, run in zip(jobs, runs, strict=True)}
        events = self._dialect.events(
            jobs, self._engine.tokens, lambda job: self._finished(by_job[id(job)])
        )
        if faults.use("early_close_next"):
            return await send_half(request, encoded(next(events)), _SSE)
        response = web.StreamResponse(headers={"Content-Type": _SSE})
        await response.prepare(request)
        is_huge, is_delivered = faults.use("huge_event_next"), False
        try:
            for sent, event in enumerate(events):
                if sent == faults.die_after_chunks:
                    faults.die_after_chunks = None
                    drop(request)
                    return response
                await response.write(encoded(huge(event) if is_huge and sent == 1 else event))
                is_delivered = is_delivered or carries_result(event)
                await asyncio.sleep(token_s)
            is_delivered = True
        finally:
            if not is_delivered:
                for run in runs:
                    run.undo()
        return response
