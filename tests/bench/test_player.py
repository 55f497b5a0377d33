"""Who is asked what, and in which order: blocks, histories, control, aborts, arrivals."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from runtime.bench.folder import PassFolder
from runtime.bench.player import Target
from runtime.bench.report import build_report
from runtime.bench.run import run_pass
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.conversation import Conversation
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from tests.bench.stub_router import (
    MODEL,
    Asked,
    Events,
    StubRouter,
    counted,
    info_of,
    play,
    runs,
    talk,
)

Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]
Play = Callable[..., Awaitable[list[TurnResult]]]
A, B, AGAIN = "one_way", "bidirectional", "one_way-again"


@pytest.fixture
def stub(answer_events: Events) -> StubRouter:
    """A router that always answers."""
    return StubRouter(answer_events)


@pytest.fixture
async def playing(serve: Serve, stub: StubRouter, profile: Profile, tmp_path: Path) -> Play:
    """Plays conversations against the stub; the folder is `tmp_path / "pass"`."""
    url = await serve(stub.handle)

    async def go(
        conversations: list[Conversation],
        bench: BenchSpec,
        *,
        is_feature_on: bool = True,
        **more: Any,
    ) -> list[TurnResult]:
        info = info_of(profile, bench, is_feature_on=is_feature_on)
        return await play(url, PassFolder(tmp_path / "pass"), conversations, info, **more)

    return go


async def test_one_client_interleaves_arms_by_conversation(playing: Play, stub: StubRouter) -> None:
    """All turns of one arm, of its control, then of the other; who is first alternates."""
    await playing([talk(0), talk(1)], BenchSpec(again_share=1.0))
    assert runs(stub.asked) == [
        (f"run-0-c0-{A}", 3),
        (f"run-0-c0-{AGAIN}", 3),
        (f"run-0-c0-{B}", 3),
        (f"run-0-c1-{B}", 3),
        (f"run-0-c1-{A}", 3),
        (f"run-0-c1-{AGAIN}", 3),
    ]


async def test_blocks_are_played_abba_and_drained(playing: Play, stub: StubRouter) -> None:
    """With several clients an arm plays its block, ends, and only then the other begins."""
    stub.pause_s = 0.002
    await playing([talk(index) for index in range(8)], BenchSpec(clients=2, again_share=0))
    assert stub.most_at_a_time == 2
    blocks = [stub.asked[at : at + 12] for at in range(0, 48, 12)]
    arms = [{asked.key.rsplit("-", 1)[1] for asked in block} for block in blocks]
    assert arms == [{A}, {B}, {B}, {A}]
    for block, following in pairwise(blocks):
        ended_s = [asked.ended_s for asked in block if asked.ended_s]
        assert len(ended_s) == 12
        assert max(ended_s) <= following[0].began_s
    told = [{int(asked.key.split("-")[2][1:]) for asked in block} for block in blocks]
    assert told == [{0, 1, 2, 3}] * 2 + [{4, 5, 6, 7}] * 2


@pytest.mark.parametrize("bench", [{"clients": 1}, {"clients": 3}, {"arrivals_per_s": 500.0}])
async def test_all_parts_have_one_history_and_caches_of_their_own(
    playing: Play, stub: StubRouter, bench: dict[str, Any]
) -> None:
    """The first part's answers are in every history; each (conversation, arm) has its salt."""
    results = await playing(
        [talk(index) for index in range(4)], BenchSpec(again_share=1.0, **bench)
    )
    assert counted(results) == {(A, False): 12, (B, False): 12, (A, True): 12}
    by_key: dict[str, list[Asked]] = {}
    for asked in stub.asked:
        by_key.setdefault(asked.key, []).append(asked)
    assert len(by_key) == 12
    for index in range(4):
        told = [
            [asked.contents for asked in by_key[f"run-0-c{index}-{part}"]] for part in (A, B, AGAIN)
        ]
        assert told[0] == told[1] == told[2]
        first = min((by_key[f"run-0-c{index}-{part}"] for part in (A, B)), key=began)
        assert told[0][2][2::2] == [asked.answer for asked in first[:2]]
    for key, asked_of in by_key.items():
        off = "off" if A in key else None
        assert {asked.headers.get("X-Turnback-Reuse") for asked in asked_of} == {off}


def began(asked: list[Asked]) -> float:
    return asked[0].began_s


async def test_results_say_what_they_are_of(playing: Play) -> None:
    """Point, block, repeat, control, edit and moments are told with every turn."""
    told = talk(1, point=500)
    edited = replace(told.turns[2], edit=(0, ({"role": "user", "content": "changed"},)))
    talks = [talk(0, point=2000), replace(told, turns=(*told.turns[:2], edited))]
    results = await playing(talks, BenchSpec(repeats=2, again_share=0.25))
    assert counted(results) == {(A, False): 12, (B, False): 12, (A, True): 3}
    assert {(each.conversation, each.point) for each in results} == {(0, 2000), (1, 500)}
    assert {(each.repeat, each.block) for each in results} == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert {(each.conversation, each.turn) for each in results if each.is_edited} == {(1, 3)}
    moments = [moment for each in results for moment in (each.started_s, each.ended_s)]
    assert moments == sorted(moments)
    assert moments[0] >= 0


async def test_every_repeat_has_salts_of_its_own(playing: Play, stub: StubRouter) -> None:
    """Else its first turns would find the caches of the repeat before."""
    await playing([talk(0, turns=1)], BenchSpec(repeats=3, again_share=0))
    assert len({asked.key for asked in stub.asked}) == len(stub.asked) == 6


async def test_without_the_feature_one_arm_is_played(playing: Play, stub: StubRouter) -> None:
    """Nothing to return, nothing to compare, and nothing to end."""
    bench = BenchSpec(again_share=1.0)
    results = await playing([talk(0), talk(0, is_warmup=True)], bench, is_feature_on=False)
    assert counted(results) == {(A, False): 3}
    assert {asked.headers.get("X-Turnback-Reuse") for asked in stub.asked} == {"off"}
    assert stub.ends == []


async def test_warm_up_comes_first_and_is_in_no_result(playing: Play, stub: StubRouter) -> None:
    """Both arms play two turns of each warm-up conversation before all else."""
    when_warm: list[int] = []

    async def on_warm() -> None:
        when_warm.append(len(stub.asked))
        await asyncio.sleep(0.2)

    warm = [talk(index, is_warmup=True) for index in (0, 1)]
    results = await playing([*warm, talk(0)], BenchSpec(again_share=1.0), on_warm=on_warm)
    assert when_warm == [8]
    assert {asked.key for asked in stub.asked[:8]} == {
        f"run-0-w{index}-{arm}" for index in (0, 1) for arm in (A, B)
    }
    assert counted(results) == {(A, False): 3, (B, False): 3, (A, True): 3}
    assert 0 <= results[0].started_s < 0.2  # what on_warm takes is no part of the pass


@pytest.mark.parametrize("clients", [1, 3])
async def test_both_arms_leave_at_the_same_token(
    playing: Play, stub: StubRouter, clients: int
) -> None:
    """The connection is closed in mid-answer; what had come is the history of all."""
    stub.pause_s = 0.005
    talks = [talk(index) for index in range(3)]
    bench = BenchSpec(abort_share=1.0, again_share=1.0, clients=clients, seed=3)
    results = await playing(talks, bench)
    assert {each.outcome for each in results} == {"aborted"}
    assert {each.error for each in results} == {None}
    assert {each.ttft_ms for each in results} == {None}
    tokens: dict[tuple[int, int], set[int]] = {}
    for each in results:
        tokens.setdefault((each.conversation, each.turn), set()).add(len(each.token_ids))
    assert {len(counts) for counts in tokens.values()} == {1}
    assert set().union(*tokens.values()) == {1, 2, 3}
    firsts = {each.conversation: each for each in reversed(results) if each.turn == 1}
    for asked in stub.asked:
        if len(asked.contents) > 2:
            index = int(asked.key.split("-")[2][1:])
            assert asked.contents[2] == firsts[index].text
            assert len(asked.contents[2].split()) == len(firsts[index].token_ids)


async def test_arrivals_are_not_bounded_by_clients(playing: Play, stub: StubRouter) -> None:
    """All conversations of a block run at once when none of them ends before the last came."""
    waiting = [asyncio.Barrier(5), asyncio.Barrier(5)]
    entered: list[None] = []

    async def gate() -> None:
        entered.append(None)
        if len(entered) <= 10:
            await waiting[(len(entered) - 1) // 5].wait()

    stub.gate = gate
    talks = [talk(index, turns=1) for index in range(5)]
    bench = BenchSpec(clients=1, arrivals_per_s=500.0, again_share=0)
    results = await asyncio.wait_for(playing(talks, bench), 10)
    assert [each.arm for each in results] == [A] * 5 + [B] * 5
    assert stub.most_at_a_time == 5


async def test_both_arms_arrive_at_the_same_moments(
    playing: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each arm waits for is the block's one list of moments."""
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        if delay_s:  # the stub's are none
            waited.append(delay_s)

    monkeypatch.setattr("runtime.bench.player.perf_counter", lambda: 0.0)
    monkeypatch.setattr("runtime.bench.player.asyncio.sleep", sleep)
    bench = BenchSpec(arrivals_per_s=0.1, again_share=0)
    await playing([talk(index, turns=1) for index in range(3)], bench)
    assert len(waited) == 6
    assert waited[:3] == waited[3:]


async def test_a_late_start_is_told(playing: Play, tmp_path: Path) -> None:
    """A client that cannot keep up says so in the folder, and in the report's problems."""
    bench = BenchSpec(arrivals_per_s=20.0, again_share=0)
    talks = [talk(index, turns=1) for index in range(4)]
    await playing(talks, bench, on_turn=lambda _: time.sleep(0.3))
    kept = PassFolder(tmp_path / "pass").read()
    assert kept[0].environment["client"]["latest_start_ms"] > 50
    assert any("did not keep up" in line for line in build_report([kept])["problems"])


async def test_an_idle_client_has_no_warning(
    playing: Play, stub: StubRouter, tmp_path: Path
) -> None:
    """Waiting for answers is no load."""
    stub.pause_s = 0.03
    await playing([talk(0, turns=1)], BenchSpec(again_share=0))
    client = PassFolder(tmp_path / "pass").read()[0].environment["client"]
    assert client["warnings"] == []
    assert 0 <= client["cpu_share"] < 1
    assert client["latest_start_ms"] == 0


@pytest.mark.parametrize(("scale", "wait_s"), [(1.0, 0.02), (0.5, 0.01), (0.0, 0.0)])
async def test_clients_think_between_turns(playing: Play, scale: float, wait_s: float) -> None:
    """Before each turn but the first, as long as the workload says times the scale."""
    turns = tuple(replace(turn, think_s=0.02) for turn in talk(0).turns)
    bench = BenchSpec(think_scale=scale, again_share=0)
    results = await playing([replace(talk(0), turns=turns)], bench)
    assert [each.think_s for each in results] == [0.0, wait_s, wait_s] * 2
    for arm in (results[:3], results[3:]):
        for before, after in pairwise(arm):
            assert after.started_s - before.ended_s >= wait_s


async def test_answer_tokens_are_each_turns_own(playing: Play, stub: StubRouter) -> None:
    """So are tools, which go along with every turn."""
    told = talk(0, turns=2)
    tools = ({"type": "function", "function": {"name": "look"}},)
    turns = (told.turns[0], replace(told.turns[1], answer_tokens=3))
    await playing([replace(told, turns=turns, tools=tools)], BenchSpec(again_share=0))
    assert [asked.body["max_tokens"] for asked in stub.asked] == [4, 3, 4, 3]
    assert all(asked.body["tools"] == list(tools) for asked in stub.asked)


async def test_answers_are_held_to_the_allowed_ids(
    serve: Serve, stub: StubRouter, profile: Profile, tmp_path: Path
) -> None:
    """The same list in every request of both arms; none where all ids are allowed."""
    url, folder = await serve(stub.handle), PassFolder(tmp_path / "pass")
    info = info_of(profile, BenchSpec())
    for ids in ((3, 5), ()):
        await run_pass(Target(url, MODEL, "run", ids), [talk(0, turns=1)], folder, info)
    asked = [each.body.get("allowed_token_ids") for each in stub.asked]
    assert asked == [[3, 5]] * 3 + [None] * 3


async def test_conversations_of_a_part_are_ended_after_it(playing: Play, stub: StubRouter) -> None:
    """What D keeps for one arm does not lie in the other's way."""
    counts: list[int] = []
    bench = BenchSpec(clients=2, again_share=0)
    talks = [talk(index, turns=1) for index in range(4)]
    await playing([*talks], bench, on_turn=lambda _: counts.append(len(stub.ends)))
    assert stub.ends == [f"run-0-c{index}-{B}" for index in range(4)]
    assert counts == [0] * 8


async def test_a_router_that_knows_no_end_is_asked_once(playing: Play, stub: StubRouter) -> None:
    """Another server's 404 is no failure."""
    stub.end_status = 404
    results = await playing([talk(0, turns=1), talk(1, turns=1)], BenchSpec(again_share=0))
    assert len(stub.ends) == 1
    assert all(each.is_successful for each in results)
