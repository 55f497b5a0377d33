"""One turn: what is sent, what is read, and how failures are told apart."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter

import aiohttp
import pytest
from aiohttp import web

from runtime.bench.client import open_session, run_turn
from runtime.bench.turn import TurnRequest, TurnResult
from runtime.contract.http import DECODE_RECEIPT_HEADER
from runtime.engine_api import Receipt

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]
Events = Callable[[Sequence[int], Sequence[str], int], list[bytes]]

REQUEST = TurnRequest(
    conversation=4,
    turn=2,
    arm="bidirectional",
    model="tiny",
    messages=({"role": "user", "content": " one two"},),
    answer_tokens=3,
    allowed_token_ids=(7, 8, 9),
    conversation_key="run-c4-bidirectional",
    timeout_s=5.0,
)
IDS, WORDS = (7, 8, 9), (" ka", " lo", " é")
RECEIPT = Receipt(96, 64, 0, 64, "pulled")


@pytest.fixture
def whole(answer_events: Events) -> list[bytes]:
    """A whole answer of three tokens."""
    return answer_events(IDS, WORDS, 120)


def streaming(pieces: Sequence[bytes], headers: dict[str, str] | None = None) -> Handler:
    """A handler that sends the pieces as separate chunks."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.headers.update(headers or {})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    return handle


async def turn(url: str, request: TurnRequest = REQUEST) -> TurnResult:
    async with aiohttp.ClientSession() as session:
        return await run_turn(session, url, request)


async def test_a_whole_answer_is_successful(serve: Serve, whole: list[bytes]) -> None:
    """Text, ids, logprobs, usage, receipt and path are read from a whole stream."""
    headers = {"X-Turnback-Receipt": json.dumps(RECEIPT.to_dict()), "X-Turnback-Path": "warm"}
    result = await turn(await serve(streaming(whole, headers)))
    assert (result.conversation, result.turn, result.arm) == (4, 2, "bidirectional")
    assert (result.outcome, result.error) == ("successful", None)
    assert (result.text, result.token_ids) == (" ka lo é", IDS)
    assert result.logprobs == (-0.5, -0.5, -0.5)
    assert result.top2 == ((-0.5, -1.5),) * 3
    assert (result.prompt_tokens, result.receipt, result.path) == (120, RECEIPT, "warm")
    assert result.ttft_ms is not None
    assert result.e2e_ms is not None
    assert 0 < result.ttft_ms <= result.e2e_ms
    assert json.loads(json.dumps(result.to_dict()))["receipt"]["pulled_tokens"] == 64


@pytest.mark.parametrize(("arm", "reuse"), [("one_way", "off"), ("bidirectional", None)])
async def test_the_request_carries_what_both_arms_need(
    serve: Serve, whole: list[bytes], arm: str, reuse: str | None
) -> None:
    """Body and headers are the benchmark's; only the one-way arm switches reuse off."""
    seen: list[tuple[web.Request, dict[str, object]]] = []
    reply = streaming(whole)

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((request, await request.json()))
        return await reply(request)

    await turn(await serve(handle), replace(REQUEST, arm=arm))  # type: ignore[arg-type]
    ((request, body),) = seen
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers.get("X-Turnback-Reuse") == reuse
    assert request.headers["X-Turnback-Debug"] == "1"
    assert request.headers["X-Conversation-ID"] == "run-c4-bidirectional"
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": " one two"}],
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logprobs": True,
        "top_logprobs": 2,
        "allowed_token_ids": [7, 8, 9],
        "ignore_eos": True,
        "cache_salt": "run-c4-bidirectional",
    }


async def test_tools_are_told_and_not_parsed(serve: Serve, whole: list[bytes]) -> None:
    """They are in the prompt; no parser, which a server may lack, is asked for."""
    bodies: list[dict[str, object]] = []
    reply = streaming(whole)

    async def handle(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await reply(request)

    tools = ({"type": "function", "function": {"name": "look"}},)
    url = await serve(handle)
    await turn(url, replace(REQUEST, tools=tools, allowed_token_ids=()))
    await turn(url)
    assert (bodies[0]["tools"], bodies[0]["tool_choice"]) == (list(tools), "none")
    assert "allowed_token_ids" not in bodies[0]
    assert not {"tools", "tool_choice"} & set(bodies[1])


@pytest.mark.parametrize(
    ("details", "cached"),
    [({"cached_tokens": 96}, 96), ({"cached_tokens": None}, 0), ({}, 0), (None, None)],
)
async def test_cached_tokens_are_told_or_unknown(
    serve: Serve, whole: list[bytes], details: dict[str, int] | None, cached: int | None
) -> None:
    """No details is not the same as nothing cached."""
    usage = {"prompt_tokens": 120, "prompt_tokens_details": details}
    event = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    result = await turn(await serve(streaming([*whole[:-2], event, whole[-1]])))
    assert (result.outcome, result.prompt_tokens) == ("successful", 120)
    assert result.cached_tokens == cached


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (
            "queue;dur=0.12, take;dur=3, prefill;dur=41.50, first_byte;dur=7.1",
            {"queue": 0.12, "take": 3.0, "prefill": 41.5, "first_byte": 7.1},
        ),
        ('refused;desc="no room", total;dur=1', {"total": 1.0}),
        ("prefill;dur=much", {}),
        (None, {}),
    ],
)
async def test_the_routers_stages_are_read(
    serve: Serve, whole: list[bytes], header: str | None, told: dict[str, float]
) -> None:
    """Milliseconds out of Server-Timing; what is no such thing is left out."""
    result = await turn(await serve(streaming(whole, {"Server-Timing": header} if header else {})))
    assert result.router_ms == told


async def test_moments_count_from_the_passs_beginning(serve: Serve, whole: list[bytes]) -> None:
    """A turn begins and ends between the moments around it, and takes as long as it says."""
    url = await serve(streaming(whole))
    began_s = perf_counter() - 100
    async with open_session() as session:
        result = await run_turn(session, url, REQUEST, began_s)
    assert 100 <= result.started_s <= result.ended_s <= perf_counter() - began_s
    assert result.e2e_ms is not None
    assert result.e2e_ms / 1000 <= result.ended_s - result.started_s


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]},
        {"content": " ka"},
    ],
)
async def test_whatever_the_model_says_first_ends_ttft(
    serve: Serve, whole: list[bytes], delta: dict[str, object]
) -> None:
    """Reasoning and tool calls are tokens too, also where ids are not told; text is content."""
    first = b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(first)
        await asyncio.sleep(0.1)
        await response.write(b"".join(whole[1:]))
        return response

    result = await turn(await serve(handle))
    assert result.ttft_ms is not None
    assert result.e2e_ms is not None
    assert result.e2e_ms - result.ttft_ms >= 95
    assert result.text == f"{delta.get('content', '')} ka lo é"


@pytest.mark.parametrize("after", [1, 2])
async def test_a_client_that_leaves_closes_the_connection(
    serve: Serve, whole: list[bytes], after: int
) -> None:
    """Aborted, with what had come and without latencies; the server sees the client go."""
    left = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"".join(whole[: 1 + after]))
        try:
            await asyncio.Event().wait()  # the test's server cancels it when its client goes
        finally:
            left.set()
        return response

    url = await serve(handle)
    async with open_session() as session:
        result = await run_turn(session, url, replace(REQUEST, abort_after_tokens=after))
        await asyncio.wait_for(left.wait(), 5)
    unsuccessful_latency = (result.ttft_ms, result.e2e_ms)
    assert (result.outcome, result.error, unsuccessful_latency) == ("aborted", None, (None, None))
    assert (result.token_ids, result.text) == (IDS[:after], "".join(WORDS[:after]))


async def test_a_client_that_leaves_takes_no_token_more(serve: Serve, whole: list[bytes]) -> None:
    """Both arms are cut at the same one, however their tokens came in."""
    result = await turn(
        await serve(streaming([b"".join(whole)])), replace(REQUEST, abort_after_tokens=2)
    )
    assert (result.outcome, result.token_ids) == ("aborted", IDS[:2])


async def test_a_session_bounds_no_streams(serve: Serve, whole: list[bytes]) -> None:
    """More turns at a time than aiohttp's usual hundred; each has the key."""
    together = asyncio.Barrier(130)
    keys: list[str | None] = []
    reply = streaming(whole)

    async def handle(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers.get("Authorization"))
        await together.wait()
        return await reply(request)

    url = await serve(handle)
    async with open_session("sk-1") as session:
        turns = (run_turn(session, url, REQUEST) for _ in range(130))
        results = await asyncio.wait_for(asyncio.gather(*turns), 20)
    assert {each.outcome for each in results} == {"successful"}
    assert set(keys) == {"Bearer sk-1"}


async def test_chunk_borders_and_comments_do_not_matter(serve: Serve, whole: list[bytes]) -> None:
    """A stream with CRLF and keep-alives, cut every five bytes, reads the same."""
    stream = b": hi\r\n\r\n" + b": hi\r\n\r\n".join(whole).replace(b"\n\n", b"\r\n\r\n")
    pieces = [stream[at : at + 5] for at in range(0, len(stream), 5)]
    result = await turn(await serve(streaming(pieces)))
    assert (result.outcome, result.text, result.token_ids) == ("successful", " ka lo é", IDS)


async def test_ttft_ends_with_the_first_token_not_the_role_chunk(
    serve: Serve, whole: list[bytes]
) -> None:
    """The clock runs on through chunks without a token and stops before later ones."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(whole[0])
        await asyncio.sleep(0.05)
        await response.write(whole[1])
        await asyncio.sleep(0.05)
        await response.write(b"".join(whole[2:]))
        return response

    result = await turn(await serve(handle))
    assert result.ttft_ms is not None
    assert result.e2e_ms is not None
    assert result.ttft_ms >= 45
    assert result.e2e_ms - result.ttft_ms >= 45


def unsuccessful(result: TurnResult, outcome: str, error: str) -> None:
    """Every failure keeps its message and has no latency."""
    assert result.outcome == outcome
    assert result.error is not None
    assert error in result.error
    assert result.ttft_ms is None
    assert result.e2e_ms is None


async def test_an_http_error_is_errored(serve: Serve) -> None:
    """A status other than 200 is an error and keeps status and body."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no room"}}, status=503)

    result = await turn(await serve(handle))
    unsuccessful(result, "errored", "HTTP 503")
    unsuccessful(result, "errored", "no room")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error": {"message": "engine dead", "code": 500}}\n\n', "engine dead"),
        (b'data: {"object": "error", "message": "out of blocks"}\n\n', "out of blocks"),
        (b"data: {not json\n\n", "unexpected event"),
        (b'data: ["no object"]\n\n', "unexpected event"),
        (b'data: {"choices": [{"logprobs": {"content": [{}]}}]}\n\n', "unexpected event"),
    ],
)
async def test_a_bad_event_is_errored(
    serve: Serve, whole: list[bytes], event: bytes, message: str
) -> None:
    """An error event or an unknown shape in mid-stream is an error with its text."""
    result = await turn(await serve(streaming([*whole[:2], event, *whole[2:]])))
    unsuccessful(result, "errored", message)


async def test_a_refused_connection_is_errored() -> None:
    """Nobody listening is an error of the turn, not of the benchmark."""
    unsuccessful(await turn("http://127.0.0.1:1"), "errored", "connection error")


async def test_a_torn_connection_is_errored(serve: Serve, whole: list[bytes]) -> None:
    """A connection that breaks in mid-stream is an error."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(whole[1])
        assert request.transport is not None
        request.transport.abort()
        return response

    unsuccessful(await turn(await serve(handle)), "errored", "connection error")


async def test_a_silent_server_times_out(serve: Serve) -> None:
    """A turn that takes longer than its timeout is an error that says so."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    result = await turn(await serve(handle), replace(REQUEST, timeout_s=0.1))
    unsuccessful(result, "errored", "timeout after 0.1 s")


async def test_a_stream_without_done_is_incomplete(serve: Serve, whole: list[bytes]) -> None:
    """Ending cleanly before [DONE] is no success, whatever came."""
    result = await turn(await serve(streaming(whole[:-1])))
    unsuccessful(result, "incomplete", "without [DONE] after 3 tokens")


async def test_a_stream_without_finish_reason_is_incomplete(
    serve: Serve, whole: list[bytes]
) -> None:
    """[DONE] alone does not make an answer whole."""
    result = await turn(await serve(streaming([*whole[:2], whole[-1]])))
    unsuccessful(result, "incomplete", "without a finish_reason after 1 tokens")


async def test_a_short_answer_is_incomplete(serve: Serve, whole: list[bytes]) -> None:
    """Fewer tokens than asked for are no success, also with a finish reason."""
    result = await turn(await serve(streaming(whole)), replace(REQUEST, answer_tokens=4))
    unsuccessful(result, "incomplete", "3 of 4 tokens")
    assert result.token_ids == IDS


@pytest.mark.parametrize("told", [RECEIPT, None, "broken"])
async def test_decode_receipt_comes_after_the_answer(
    serve: Serve, whole: list[bytes], told: Receipt | str | None
) -> None:
    """The router tells D's receipt in a comment at the stream's end; a broken one is none."""
    raw = json.dumps(told.to_dict()) if isinstance(told, Receipt) else str(told)
    comment = f": {DECODE_RECEIPT_HEADER} {raw}\n\n".encode()
    url = await serve(streaming([*whole, comment if told else b": ping\n\n"]))
    result = await turn(url)
    assert result.outcome == "successful"
    assert result.decode_receipt == (told if isinstance(told, Receipt) else None)


@pytest.mark.parametrize("header", ["not json", '{"reason": "pulled"}', "[]"])
async def test_a_broken_receipt_is_no_receipt(
    serve: Serve, whole: list[bytes], header: str
) -> None:
    """A receipt of another shape costs the receipt, not the turn."""
    result = await turn(await serve(streaming(whole, {"X-Turnback-Receipt": header})))
    assert (result.outcome, result.receipt) == ("successful", None)
