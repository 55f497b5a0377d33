"""The order of turns, what the second arm replays, and what survives a stop."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tokenizers import Tokenizer

from runtime.bench.run import BenchPlan, run_benchmark
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.synthetic import round_trip_ids
from runtime.contract.profile import WorkloadSpec
from runtime.errors import BadInput

Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]
Events = Callable[[Sequence[int], Sequence[str], int], list[bytes]]

ANSWER_TOKENS = 4


@dataclass
class StubRouter:
    """Answers every request with other tokens and keeps what it was asked.

    Attributes:
        fail_at: number of the request (from 0) that gets a 500.
        hang_at: number of the request that is never answered.
    """

    tokenizer: Tokenizer
    events: Events
    fail_at: int | None = None
    hang_at: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "tiny"}]})
        if request.path.endswith("/end"):
            return web.json_response({"released": 0})
        number = len(self.bodies)
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.answers.append("")
        if number == self.fail_at:
            return web.Response(status=500, text="stub failure")
        if number == self.hang_at:
            self.hanging.set()
            await asyncio.Event().wait()
        ids = round_trip_ids(self.tokenizer)
        chosen = [ids[(number * ANSWER_TOKENS + at) % len(ids)] for at in range(ANSWER_TOKENS)]
        words = [self.tokenizer.decode([token]) for token in chosen]
        self.answers[number] = "".join(words)
        response = web.StreamResponse()
        await response.prepare(request)
        for event in self.events(chosen, words, 100 + number):
            await response.write(event)
        return response


@pytest.fixture
async def stub(tokenizer: Tokenizer, answer_events: Events) -> StubRouter:
    """A router that always answers."""
    return StubRouter(tokenizer, answer_events)


@pytest.fixture
async def plan(serve: Serve, stub: StubRouter, tokenizer_path: Path) -> BenchPlan:
    """Two conversations of three turns, no warm-up."""
    return BenchPlan(
        router_url=await serve(stub.handle),
        served_model_name="tiny",
        tokenizer_path=tokenizer_path,
        workload=WorkloadSpec(
            conversations=2,
            turns=3,
            common_prefix_tokens=10,
            own_prefix_tokens=20,
            user_tokens=5,
            answer_tokens=ANSWER_TOKENS,
            warmup_conversations=0,
        ),
        run_id="r1",
        timeout_s=5.0,
    )


async def run(plan: BenchPlan, path: Path) -> list[TurnResult]:
    results: list[TurnResult] = []
    await run_benchmark(plan, results, path / "turns.jsonl")
    return results


def order(results: list[TurnResult]) -> list[tuple[int, str, int]]:
    return [(r.conversation, r.arm, r.turn) for r in results]


async def test_arms_alternate_conversation_by_conversation(plan: BenchPlan, tmp_path: Path) -> None:
    """One arm runs all turns of a conversation, then the other; who is first alternates."""
    results = await run(plan, tmp_path)
    assert order(results) == [
        *((0, "one_way", turn) for turn in (1, 2, 3)),
        *((0, "bidirectional", turn) for turn in (1, 2, 3)),
        *((1, "bidirectional", turn) for turn in (1, 2, 3)),
        *((1, "one_way", turn) for turn in (1, 2, 3)),
    ]
    assert all(result.is_successful for result in results)


async def test_the_second_arm_replays_the_first_arms_answers(
    plan: BenchPlan, stub: StubRouter, tmp_path: Path
) -> None:
    """Both arms send the same messages, although the second got other answers."""
    await run(plan, tmp_path)
    first, second = stub.bodies[:3], stub.bodies[3:6]
    assert [body["messages"] for body in first] == [body["messages"] for body in second]
    last = second[2]["messages"]
    assert [m["role"] for m in last] == ["system", *["user", "assistant"] * 2, "user"]
    assert [m["content"] for m in last[2::2]] == stub.answers[:2]
    assert stub.answers[:2] != stub.answers[3:5]


async def test_each_conversation_and_arm_has_its_own_salt(
    plan: BenchPlan, stub: StubRouter, tmp_path: Path
) -> None:
    """Salt and conversation id stay over the turns and are shared with nobody."""
    await run(plan, tmp_path)
    salts = [body["cache_salt"] for body in stub.bodies]
    assert [header["X-Conversation-ID"] for header in stub.headers] == salts
    assert all(len(set(salts[at : at + 3])) == 1 for at in range(0, 12, 3))
    assert len(set(salts)) == 4
    other = replace(plan, run_id="r2")
    await run(other, tmp_path)
    assert not set(salts) & {body["cache_salt"] for body in stub.bodies[12:]}


async def test_allowed_ids_are_the_same_in_every_request(
    plan: BenchPlan, stub: StubRouter, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Answers are held to tokens that survive being sent back as text."""
    await run(plan, tmp_path)
    lists = [body["allowed_token_ids"] for body in stub.bodies]
    assert lists[0]
    assert set(lists[0]) <= set(round_trip_ids(tokenizer))
    assert all(ids == lists[0] for ids in lists)


async def test_warmup_is_in_no_result(plan: BenchPlan, stub: StubRouter, tmp_path: Path) -> None:
    """Warm-up runs two turns in both arms before all else and is not recorded."""
    workload = plan.workload.model_copy(update={"warmup_conversations": 1})
    requests_when_warm: list[int] = []

    async def on_warm() -> None:
        requests_when_warm.append(len(stub.bodies))

    results: list[TurnResult] = []
    await run_benchmark(
        replace(plan, workload=workload), results, tmp_path / "t.jsonl", on_warm=on_warm
    )
    assert requests_when_warm == [4]
    assert len(stub.bodies) == 16
    assert len(results) == 12
    warm_salts = {body["cache_salt"] for body in stub.bodies[:4]}
    assert len(warm_salts) == 2
    assert not warm_salts & {body["cache_salt"] for body in stub.bodies[4:]}


async def test_a_failed_first_arm_ends_the_conversation_for_both(
    plan: BenchPlan, stub: StubRouter, tmp_path: Path
) -> None:
    """Turns after a failure cannot be compared; the next conversation goes on."""
    stub.fail_at = 1
    results = await run(plan, tmp_path)
    assert order(results)[:3] == [(0, "one_way", 1), (0, "one_way", 2), (0, "bidirectional", 1)]
    assert [r.outcome for r in results[:3]] == ["successful", "errored", "successful"]
    assert order(results)[3:] == [
        *((1, "bidirectional", turn) for turn in (1, 2, 3)),
        *((1, "one_way", turn) for turn in (1, 2, 3)),
    ]


async def test_a_failed_second_arm_goes_on(
    plan: BenchPlan, stub: StubRouter, tmp_path: Path
) -> None:
    """The second arm's history does not depend on its own answers, so it runs on."""
    stub.fail_at = 4
    results = await run(plan, tmp_path)
    assert len(results) == 12
    assert [r.outcome for r in results[3:6]] == ["successful", "errored", "successful"]


async def test_a_stop_keeps_every_finished_turn(
    plan: BenchPlan, stub: StubRouter, tmp_path: Path
) -> None:
    """After cancellation the finished turns are in the list and in the file."""
    stub.hang_at = 5
    results: list[TurnResult] = []
    seen: list[TurnResult] = []
    path = tmp_path / "run" / "turns.jsonl"
    task = asyncio.create_task(run_benchmark(plan, results, path, on_turn=seen.append))
    await asyncio.wait_for(stub.hanging.wait(), 5)
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) == 5
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [json.loads(line) for line in lines] == [
        json.loads(json.dumps(result.to_dict())) for result in results
    ]
    assert seen == results


async def test_an_unreadable_tokenizer_is_bad_input(plan: BenchPlan, tmp_path: Path) -> None:
    """A missing tokenizer ends before the first request, with its path."""
    with pytest.raises(BadInput) as caught:
        await run(replace(plan, tokenizer_path=tmp_path / "none.json"), tmp_path)
    assert "none.json" in caught.value.got
