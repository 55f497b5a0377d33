"""Clients that are slow, engines that are odd, races: each wait ends, nothing is mixed up."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from runtime.router import edge, relay
from runtime.router.exchange import head_of
from tests.router.clients import BODIES
from tests.router.fleet import (
    HI,
    HOST,
    LONG_TEXT,
    MODEL,
    Fleet,
    listening,
    router_spec,
    running_fleet,
    until,
    url_of,
)


def head(fleet: Fleet, length: int, *more: bytes) -> bytes:
    """A chat request's head."""
    lines = [b"POST /v1/chat/completions HTTP/1.1", b"Host: x", b"Content-Length: %d" % length]
    return b"\r\n".join([*lines, *more, b"", b""])


async def connected(fleet: Fleet) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection to the router that buffers little."""
    port = int(fleet.url.rsplit(":", 1)[1])
    return await asyncio.open_connection(HOST, port, limit=2048)


async def test_body_that_does_not_come_is_408(model: Path) -> None:
    """A client that stops in the middle of its body is told so, and holds nothing."""
    async with running_fleet(model, client_timeout_s=0.2) as fleet:
        reader, writer = await connected(fleet)
        writer.write(head(fleet, 1000) + b"{")
        async with asyncio.timeout(5):
            got = await reader.read()
        assert got.startswith(b"HTTP/1.1 408")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == 408
        writer.close()
        assert (await fleet.post(HI)).status == 200


async def test_client_that_does_not_read_loses_its_turn_and_no_other(model: Path) -> None:
    """What it does not read is bounded, its turn ends, and others are served meanwhile."""
    engine = {"token_ms": 0.0}
    async with running_fleet(model, engine=engine, client_timeout_s=0.5) as fleet:
        body = json.dumps(HI | {"stream": True, "max_tokens": 30_000}).encode()
        reader, writer = await connected(fleet)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # TCP's has it
        writer.write(head(fleet, len(body)) + body)
        await until(lambda: fleet.decodes[0].requests)
        await asyncio.sleep(0.2)
        assert fleet.turns.admission.running == 1
        (busy,) = fleet.router.client._busy
        assert busy._buffered_bytes < 4 * 1024 * 1024
        assert (await fleet.post(HI)).status == 200
        await until(lambda: not fleet.turns.admission.running)
        await until(lambda: not fleet.router.client.busy_count)
        writer.close()
        del reader


async def test_expect_continue_is_answered(model: Path) -> None:
    """curl waits for it before it sends a large body."""
    async with running_fleet(model) as fleet:
        reader, writer = await connected(fleet)
        body = json.dumps(HI).encode()
        writer.write(head(fleet, len(body), b"Expect: 100-continue"))
        async with asyncio.timeout(5):
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert await reader.readline() == b"\r\n"
            writer.write(body)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


async def test_node_that_refuses_connections_is_waited_for(model: Path) -> None:
    """Nothing was sent: the turn, warm or cold, waits for the node to come back."""
    async with running_fleet(model, queue_timeout_s=5, health_interval_s=60) as fleet:
        await fleet.turn()
        (node,) = fleet.turns.fleet.usable("prefill")
        reachable, node.url = node.url, f"http://{HOST}:1"
        turns = [asyncio.create_task(fleet.turn()), asyncio.create_task(fleet.post(HI))]
        await asyncio.sleep(0.2)
        assert not any(turn.done() for turn in turns)
        node.url = reachable
        warm, cold = await asyncio.gather(*turns)
        assert (warm.path, cold.path) == ("warm", "cold")


async def test_decode_node_that_refuses_connections_is_waited_for(model: Path) -> None:
    """P's blocks wait with the turn, within their lease; the dict goes out once."""
    async with running_fleet(model, queue_timeout_s=5, health_interval_s=60) as fleet:
        (node,) = fleet.turns.fleet.usable("decode")
        reachable, node.url = node.url, f"http://{HOST}:1"
        turn = asyncio.create_task(fleet.post(HI))
        await until(lambda: fleet.prefills[0].requests)
        await asyncio.sleep(0.2)
        assert not turn.done()
        node.url = reachable
        assert (await turn).status == 200
        assert len(fleet.prefills[0].requests) == 1


async def test_restarted_prefill_node_is_not_the_decode_nodes_fault(model: Path) -> None:
    """D cannot read what P has forgotten: the retry succeeds there, and its breaker stays shut."""
    async with running_fleet(model, breaker_failures=1) as fleet:
        d = fleet.decodes[0]
        d.faults.slow_next = [0.2]
        turn = asyncio.create_task(fleet.post(HI))
        await until(lambda: d.requests)
        fleet.prefills[0].restart()
        assert (await turn).status == 200
        node = fleet.turns.fleet.find("decode", url_of(d))
        assert node is not None
        assert not node.breaker.is_open


async def test_turns_wait_for_the_trial_of_a_half_open_breaker(model: Path) -> None:
    """One tries the node; the others use its answer and send no leg in vain."""
    async with running_fleet(
        model, breaker_failures=1, breaker_open_s=0.2, queue_timeout_s=5
    ) as fleet:
        fleet.decodes[0].faults.fail_next = [500, 500]
        await fleet.post(HI)
        before = len(fleet.prefills[0].requests)
        await asyncio.sleep(0.25)
        replies = await asyncio.gather(*(fleet.post(HI) for _ in range(6)))
        assert [reply.status for reply in replies] == [200] * 6
        assert len(fleet.prefills[0].requests) == before + 6


async def test_broken_streams_count_against_their_node(model: Path) -> None:
    """A D that breaks off every answer is left alone, though each began."""
    async with running_fleet(model, breaker_failures=2, breaker_open_s=60) as fleet:
        for _ in range(2):
            fleet.decodes[0].faults.die_after_chunks = 2
            await fleet.post(HI | {"stream": True, "max_tokens": 8})
        assert [node.breaker.is_open for node in fleet.turns.fleet.nodes] == [False, True]
        line = 'turnback_leg_failures_total{kind="broken",role="decode"} 2.0'
        assert await fleet.metric(line)


async def test_stream_that_fails_in_the_router_is_one_reply(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in its middle, no second head stands among its chunks."""

    def broken(_frame: bytes) -> Any:
        raise RuntimeError("for a test")

    monkeypatch.setattr(relay, "clean_frame", broken)
    async with running_fleet(model, engine={"token_ms": 5.0}) as fleet:
        reader, writer = await connected(fleet)
        body = json.dumps(HI | {"stream": True}).encode()
        writer.write(head(fleet, len(body)) + body)
        async with asyncio.timeout(5):
            got = await reader.read()
        assert got.count(b"HTTP/1.1") == 1
        assert not got.endswith(b"0\r\n\r\n")
        writer.close()
        await until(lambda: not fleet.turns.admission.running)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
async def test_error_event_is_one_for_each_api(model: Path, path: str) -> None:
    """Clients of named events act on the name; chat has none."""
    async with running_fleet(model) as fleet:
        fleet.decodes[0].faults.die_after_chunks = 3
        body = BODIES[path]([{"role": "user", "content": LONG_TEXT}])
        reply = await fleet.post(body | {"model": MODEL, "stream": True}, path=path)
        last = reply.raw.split(b"\n\n")[-2]
        assert b'"error"' in last
        assert last.startswith(b"data: " if path == "/v1/chat/completions" else b"event: error\n")


async def test_plain_text_of_an_engine_becomes_an_error(model: Path) -> None:
    """uvicorn's own 500 is text; clients get OpenAI's shape with the same status."""

    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=500, text="Internal Server Error at 10.0.0.7:8000")

    async def version(_request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    app = web.Application()
    app.router.add_get("/health", version)
    app.router.add_get("/version", version)
    app.router.add_post("/v1/chat/completions", refuse)
    async with (
        listening(app) as port,
        running_fleet(model, decodes=0, extra_decodes=(f"http://{HOST}:{port}",)) as fleet,
    ):
        reply = await fleet.post(HI)
        assert reply.status == 500
        error = reply.body["error"]
        assert error["got"] == "Internal Server Error at (address)"
        assert "10.0.0.7" not in reply.raw.decode()


async def test_other_tenants_response_is_not_to_be_had(model: Path) -> None:
    """Neither as a beginning, nor read: an id belongs to the tenant that it was given to."""
    async with running_fleet(model) as fleet:
        mine, other = ({"Authorization": f"Bearer {name}"} for name in ("ann", "bob"))
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 2}
        first = await fleet.post(body, path="/v1/responses", headers=mine)
        more = body | {"previous_response_id": first.body["id"]}
        refused = await fleet.post(more, path="/v1/responses", headers=other)
        assert refused.status == 404
        assert refused.body["error"]["what"] == "there is no such response"
        assert len(fleet.decodes[0].requests) == 1
        url = f"{fleet.url}/v1/responses/{first.body['id']}"
        async with fleet.session.get(url, headers=other) as reply:
            assert reply.status == 404
            assert "error" in await reply.json()
        seen = len(fleet.decodes[0].requests)
        await fleet.post(more, path="/v1/responses", headers=mine)
        assert len(fleet.decodes[0].requests) == seen + 1


async def test_http_1_0_stream_ends_with_its_connection(model: Path) -> None:
    """It has no chunks: a kept connection would have no end."""
    async with running_fleet(model) as fleet:
        reader, writer = await connected(fleet)
        body = json.dumps(HI | {"stream": True}).encode()
        lines = b"POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\n"
        writer.write(lines + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        async with asyncio.timeout(5):
            got = await reader.read()
        assert got.endswith(b"data: [DONE]\n\n")
        writer.close()


async def test_declared_length_is_looked_at_before_the_body(model: Path) -> None:
    """A gigabyte is refused before a byte of it has come."""
    async with running_fleet(model) as fleet:
        reader, writer = await connected(fleet)
        writer.write(head(fleet, 1_000_000_000))
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_half_a_head_is_not_waited_for(model: Path) -> None:
    """A connection that never asks anything is closed."""
    async with running_fleet(model, client_timeout_s=0.2) as fleet:
        reader, writer = await connected(fleet)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_millions_of_parts_are_refused(model: Path) -> None:
    """They would hold up everyone while they are read; a long text is not one of them."""
    async with running_fleet(model) as fleet:
        many = b'{"messages":[' + b"{}," * 200_000 + b"{}]}"
        reply = await fleet.post(many)
        assert (reply.status, "100000" in reply.body["error"]["allowed"]) == (400, True)
        text = HI | {"messages": [{"role": "user", "content": "word, " * 200_000}]}
        assert (await fleet.post(text)).status == 200


@pytest.mark.parametrize(
    "message", [{"role": []}, {"role": "user", "content": [[[]]]}, {"role": {"a": 1}}]
)
async def test_odd_roles_are_the_engines_to_refuse(model: Path, message: dict[str, Any]) -> None:
    """Deep or of another type: no error of the router's own."""
    async with running_fleet(model) as fleet:
        deep: Any = json.loads("[" * 200 + "]" * 200)
        for body in ({"messages": [message]}, {"messages": [{"role": deep}]}):
            reply = await fleet.post({"model": MODEL} | body)
            assert "the router failed" not in reply.raw.decode()
        assert (await fleet.post(HI)).status == 200


async def test_stream_that_outlives_the_drain_is_told_why(model: Path) -> None:
    """At the end of the drain it gets an error event, and not just an end."""
    async with running_fleet(model, engine={"token_ms": 50.0}, drain_s=0.3) as fleet:
        streaming = asyncio.create_task(fleet.post(HI | {"stream": True, "max_tokens": 200}))
        await until(lambda: fleet.decodes[0].requests)
        await asyncio.sleep(0.2)
        await fleet.router.stop()
        reply = await streaming
        assert "the router stops" in reply.events[-1]["error"]["got"]


def test_head_holds_no_more_lines_than_it_should() -> None:
    """What an engine says of its answer cannot add a header, or begin another reply."""
    head = head_of(200, {"Content-Type": "text/event-stream"}, is_http_11=True, stays=True)
    assert head.startswith(b"HTTP/1.1 200 OK\r\nDate: ")
    assert head.endswith(b"\r\nContent-Type: text/event-stream\r\n\r\n")
    for value in ("a\r\nX: y", "a\nX: y", "a\rX: y"):
        with pytest.raises(ValueError, match="line's end"):
            head_of(200, {"X-Any": value}, is_http_11=True, stays=True)


@pytest.mark.parametrize("more", [(), (b"Connection: close",)], ids=["stays", "closes"])
async def test_connection_stays_after_a_stream_unless_the_client_says_so(
    model: Path, more: tuple[bytes, ...]
) -> None:
    """Two streams on one connection; or one, and its head says that it was the last."""
    body = json.dumps(HI | {"stream": True}).encode()
    async with running_fleet(model) as fleet:
        reader, writer = await connected(fleet)
        async with asyncio.timeout(5):
            for _ in range(1 if more else 2):
                writer.write(head(fleet, len(body), *more) + body)
                got = await reader.readuntil(b"\r\n0\r\n\r\n")
                top = got.partition(b"\r\n\r\n")[0]
                assert b"Transfer-Encoding: chunked" in top
                assert (b"Connection: close" in top) is bool(more)
                assert b"data: [DONE]" in got
            if more:
                assert await reader.read() == b""
        writer.close()


class StuckTransport:
    """A client that reads nothing."""

    def __init__(self) -> None:
        self.written = b""
        self.is_aborted = False

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def abort(self) -> None:
        self.is_aborted = True


async def test_client_that_does_not_read_is_cut_off() -> None:
    """What waits for it is bounded in time; then its connection ends at once."""
    transport, is_read = StuckTransport(), asyncio.Event()
    client = SimpleNamespace(drain=is_read.wait)
    request: Any = SimpleNamespace(transport=transport, client=client)
    nodes = {"prefill_urls": ("http://h:1",), "decode_urls": ("http://h:2",)}
    mine = edge.Edge(router_spec(client_timeout_s=0.05, **nodes), lambda: 0.0)
    with pytest.raises(ConnectionResetError, match="does not read"):
        await mine._write(request, b"x")
    assert transport.is_aborted
    is_read.set()
    await mine._write(request, b"y")
    assert transport.written == b"xy"
