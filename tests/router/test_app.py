"""The router's edges: other routes, refusals, the process."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.router.fleet import (
    HI,
    MODEL,
    Fleet,
    running_fleet,
    until,
    unused_port,
    wait_listening,
)

HEAVY = b'{"messages": [{"content": "' + b"x" * 5000 + b'"}]}'


async def get(fleet: Fleet, path: str) -> tuple[int, Any]:
    """Status and JSON of a GET."""
    async with fleet.session.get(f"{fleet.url}{path}") as reply:
        return reply.status, await reply.json()


async def test_models_come_from_a_decode_node_that_answers(model: Path) -> None:
    """/v1/models is a D's, a dead D is skipped."""
    async with running_fleet(model, dead_decodes=1) as fleet:
        status, body = await get(fleet, "/v1/models")
        assert status == 200, body
        assert isinstance(body, dict)
        assert body["data"][0]["id"] == MODEL


async def test_models_without_a_decode_node_is_503(model: Path) -> None:
    """With no D there is no list of models."""
    async with running_fleet(model, decodes=0, dead_decodes=1) as fleet:
        assert (await get(fleet, "/v1/models"))[0] == 503


async def test_health_is_ok_when_every_node_is(model: Path) -> None:
    """200 means that all nodes answer 200."""
    async with running_fleet(model, prefills=2) as fleet:
        status, body = await get(fleet, "/health")
        assert (status, body["status"]) == (200, "ready")
        assert [node["state"] for node in body["nodes"]] == ["ok"] * 3
        assert await get(fleet, "/health/live") == (200, {"status": "live"})


async def test_health_tells_names_and_no_addresses(model: Path) -> None:
    """503 without a usable pair; every node is told by name and state."""
    async with running_fleet(model, prefills=0, dead_prefills=1, health_interval_s=0.05) as fleet:
        await until(lambda: [node.state for node in fleet.turns.fleet.nodes] == ["down", "ok"])
        async with fleet.session.get(f"{fleet.url}/health") as reply:
            assert reply.status == 503
            text = await reply.text()
        assert json.loads(text)["nodes"] == [
            {"name": "prefill-1", "state": "down", "generation": ""},
            {"name": "decode-1", "state": "ok", "generation": "0.32.0"},
        ]
        assert "127.0.0.1" not in text


@pytest.mark.parametrize("raw", [b"{", b"[]", b"{}"])
async def test_bad_body_is_an_openai_error(model: Path, raw: bytes) -> None:
    """A body that cannot be served is refused in OpenAI's shape, before any leg."""
    async with running_fleet(model) as fleet:
        reply = await fleet.post(raw)
        assert reply.status == 400
        error = reply.body["error"]
        assert set(error) == {"message", "type", "param", "code", "what", "got", "allowed", "fix"}
        assert (error["type"], error["code"]) == ("invalid_request_error", 400)
        assert fleet.prefills[0].requests == []


async def test_too_large_a_body_is_413(model: Path) -> None:
    """The limit of the spec holds, and the error names it."""
    async with running_fleet(model, max_body_bytes=4096) as fleet:
        reply = await fleet.post(HEAVY)
        assert reply.status == 413
        assert reply.body["error"]["allowed"] == "at most 4096 bytes"


@pytest.mark.parametrize(("text_bytes", "status"), [(4000, 200), (5000, 413), (1_000_000, 413)])
async def test_compressed_body_counts_as_what_it_becomes(
    model: Path, text_bytes: int, status: int
) -> None:
    """A small body that grows beyond the limit is refused as a large one is."""
    raw = gzip.compress(json.dumps(HI | {"user": "x" * text_bytes}).encode())
    async with running_fleet(model, max_body_bytes=4200) as fleet:
        assert len(raw) < 4200
        assert (await fleet.post(raw, headers={"Content-Encoding": "gzip"})).status == status


@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b'{"messages": [{}], "metadata": ' + b"[" * 300 + b"]" * 300 + b"}", {}),
        (b'{"messages": [{}]}', {"Content-Encoding": "gzip"}),
    ],
    ids=["nested", "not_gzip"],
)
async def test_body_that_cannot_be_passed_on_is_a_400(
    model: Path, raw: bytes, headers: dict[str, str]
) -> None:
    """A client's mistake is told to the client, and costs the conversation nothing."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        reply = await fleet.post(raw, key="talk", headers=headers)
        assert reply.status == 400
        for part in ("got:", "allowed:", "fix:"):
            assert part in reply.body["error"]["message"]
        assert (await fleet.turn()).path == "warm"


async def test_unknown_route_is_an_openai_error(model: Path) -> None:
    """A wrong path is refused in the same shape."""
    async with running_fleet(model) as fleet:
        status, body = await get(fleet, "/v1/nothing")
        assert status == 404
        assert isinstance(body, dict)
        assert body["error"]["got"] == "GET /v1/nothing"


def test_serve_ends_on_sigterm() -> None:
    """The router's process listens, and ends by itself with code 0 on SIGTERM."""
    port = unused_port()
    code = (
        "from tests.router.fleet import router_spec\n"
        "from runtime.router.app import Router\n"
        "from runtime.router.server import serve\n"
        "serve(Router(router_spec(prefill_urls=('http://127.0.0.1:1',),"
        f" decode_urls=('http://127.0.0.1:1',), port={port})))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ) as process:
        try:
            wait_listening(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()
