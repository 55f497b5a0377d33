"""Health checks over real connections, and what a node tells of itself."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from runtime.contract.node import NodeAddress
from runtime.router.health import HealthChecks, capacity_tokens
from runtime.router.nodes import Fleet, Node
from runtime.router.wire import EngineClient
from tests.router.fleet import HOST, listening, router_spec, until, unused_port

METRICS = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    'vllm:cache_config_info{block_size="32",engine="0",odd="{}",num_gpu_blocks="100"} 1.0\n'
    'vllm:num_requests_running{engine="0"} 0.0\n'
)


@dataclass
class Engine:
    """What an engine answers, path by path: status and body; None is silence."""

    port: int = 0
    answers: dict[str, tuple[int, str] | None] = field(
        default_factory=lambda: {
            "/health": (200, ""),
            "/version": (200, '{"version": "0.33.0"}'),
            "/metrics": (200, METRICS),
        }
    )
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if (answer := self.answers[request.path]) is None:
            await asyncio.Event().wait()
        assert answer is not None
        return web.Response(status=answer[0], text=answer[1])


@dataclass
class Checked:
    """One engine that is checked."""

    engine: Engine
    node: Node
    fleet: Fleet
    checks: HealthChecks


@asynccontextmanager
async def checked(interval_s: float = 5.0) -> AsyncIterator[Checked]:
    """Checks of one decode node."""
    engine, app = Engine(), web.Application()
    app.router.add_get("/{path}", engine.answer)
    client = EngineClient(1.0)
    async with listening(app) as port:
        fleet = Fleet(router_spec(nodes_file="/nowhere"))
        fleet.update([NodeAddress(role="decode", url=f"http://{HOST}:{port}")])
        try:
            yield Checked(engine, fleet.nodes[0], fleet, HealthChecks(fleet, client, interval_s))
        finally:
            await client.close()


async def test_node_tells_version_and_capacity_once() -> None:
    """The first check that succeeds asks for both, later ones for neither."""
    async with checked() as it:
        assert it.node.state == "joining"
        await it.checks.once()
        assert (it.node.version, it.node.capacity_tokens, it.node.state) == ("0.33.0", 3200, "ok")
        await it.checks.once()
        assert it.engine.asked == ["/health", "/version", "/metrics", "/health"]


async def test_two_failed_checks_are_down_and_one_good_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A single hiccup changes nothing; each change is told once."""
    async with checked() as it:
        await it.checks.once()
        states = []
        with caplog.at_level(logging.WARNING, "turnback.router"):
            for status in (503, 200, 503, 500, 503, 200):
                it.engine.answers["/health"] = (status, "")
                await it.checks.once()
                states.append(it.node.state)
        assert states == ["ok", "ok", "ok", "down", "down", "ok"]
        assert [record.message for record in caplog.records] == [
            "decode-1 is down",
            "decode-1 is healthy again",
        ]


async def test_node_that_comes_back_is_asked_anew() -> None:
    """It may have been replaced by another version of another size."""
    async with checked() as it:
        await it.checks.once()
        it.engine.answers["/health"] = (503, "")
        await it.checks.once()
        await it.checks.once()
        assert (it.node.version, it.node.capacity_tokens) == ("", None)
        it.engine.answers |= {"/health": (200, ""), "/version": (200, '{"version": "0.34.0"}')}
        await it.checks.once()
        assert (it.node.version, it.node.capacity_tokens) == ("0.34.0", 3200)


@pytest.mark.parametrize(
    "answer", [(404, "no"), (200, "no JSON"), (200, "[]"), (200, "{}"), (200, '{"version": ""}')]
)
async def test_node_without_a_version_is_of_an_unknown_one(answer: tuple[int, str]) -> None:
    """Such nodes serve with each other, and with no node that has told its version."""
    async with checked() as it:
        it.engine.answers["/version"] = answer
        await it.checks.once()
        assert (it.node.version, it.node.state) == ("unknown", "ok")


async def test_silent_node_is_down() -> None:
    """A check has the interval as its limit; one slow answer holds nothing else up."""
    async with checked(interval_s=0.02) as it:
        it.engine.answers["/health"] = None
        await it.checks.once()
        await it.checks.once()
        assert it.node.state == "down"


async def test_version_that_was_not_told_is_asked_for_again() -> None:
    """Until then the node takes no turns: it might be of any version."""
    async with checked(interval_s=0.05) as it:
        version, it.engine.answers["/version"] = it.engine.answers["/version"], None
        await it.checks.once()
        assert it.node.state == "joining"
        it.engine.answers["/version"] = version
        await it.checks.once()
        assert it.node.state == "ok"


async def test_unreachable_node_harms_no_other() -> None:
    """Refused ports and addresses that are none count as failed checks."""
    async with checked() as it:
        others = router_spec(
            prefill_urls=(f"http://{HOST}:{unused_port()}", "http://a..b:80"),
            decode_urls=(it.node.url,),
        )
        it.fleet.update(others.listed_nodes())
        await it.checks.once()
        await it.checks.once()
        assert it.fleet.told() == "decode-1 ok, prefill-1 down, prefill-2 down"


async def test_checks_wake_who_waits_for_a_node() -> None:
    """A waiting turn looks again after each round."""
    async with checked() as it:
        changed = it.fleet.changed
        await it.checks.once()
        assert changed.is_set()


async def test_checks_go_on_for_ever() -> None:
    """Round after round, one interval apart."""
    async with checked(interval_s=0.01) as it:
        task = asyncio.create_task(it.checks.run())
        await until(lambda: it.engine.asked.count("/health") > 3)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        (METRICS, 3200),
        ('vllm:cache_config_info{num_gpu_blocks="7",block_size="16"} 1.0', 112),
        ('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1.0', None),
        ('vllm:cache_config_info{block_size="32"} 1.0', None),
        ('# vllm:cache_config_info{block_size="32",num_gpu_blocks="7"} 1.0', None),
        ("", None),
    ],
)
def test_capacity_out_of_metrics(page: str, tokens: int | None) -> None:
    """Blocks times their size, of one engine; what is not told is no number."""
    assert capacity_tokens(page) == tokens
