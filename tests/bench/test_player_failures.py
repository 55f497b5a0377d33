"""Failures, interruption, and what they leave in the folder."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from runtime.bench.folder import PassFolder
from runtime.bench.player import together
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.conversation import Conversation
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.errors import BadInput, EngineDied, StartFailed
from tests.bench.stub_router import Events, StubRouter, info_of, play, talk

Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]
ONE = BenchSpec(again_share=0)


@pytest.fixture
def stub(answer_events: Events) -> StubRouter:
    """A router that always answers."""
    return StubRouter(answer_events)


@pytest.fixture
def folder(tmp_path: Path) -> PassFolder:
    """Of the pass."""
    return PassFolder(tmp_path / "run" / "pass")


class Rig:
    """Plays against a server."""

    def __init__(self, url: str, folder: PassFolder, profile: Profile) -> None:
        self.url, self.folder, self.profile = url, folder, profile

    async def play(
        self, conversations: list[Conversation], bench: BenchSpec = ONE, **more: Any
    ) -> list[TurnResult]:
        info = info_of(self.profile, bench)
        return await play(self.url, self.folder, conversations, info, **more)

    def kept(self) -> tuple[str | None, list[TurnResult]]:
        """Why it ended and what was measured, from the folder."""
        info, turns, _ = self.folder.read()
        return info.stopped_by, turns


@pytest.fixture
async def rig(serve: Serve, stub: StubRouter, folder: PassFolder, profile: Profile) -> Rig:
    """Plays against the stub."""
    return Rig(await serve(stub.handle), folder, profile)


def order(results: list[TurnResult]) -> list[tuple[int, str, int]]:
    return [(each.conversation, each.arm, each.turn) for each in results]


async def test_a_whole_pass_is_in_its_folder(rig: Rig) -> None:
    """What is returned is what is kept, and nothing has stopped it."""
    results = await rig.play([talk(0), talk(1)])
    assert rig.kept() == (None, results)
    assert len(results) == 12


async def test_a_failed_turn_of_the_first_part_ends_its_conversation(
    rig: Rig, stub: StubRouter
) -> None:
    """The other parts replay what there is; the next conversation is played whole."""
    stub.fails = lambda number: number == 1
    results = await rig.play([talk(0), talk(1)], BenchSpec(again_share=1.0))
    assert [each.outcome for each in results[:2]] == ["successful", "errored"]
    assert [(each.arm, each.turn) for each in results[2:4]] == [
        ("one_way", 1),
        ("bidirectional", 1),
    ]
    assert len(results) == 4 + 9
    assert rig.kept() == (None, results)


async def test_a_failed_turn_of_a_later_part_does_not(rig: Rig, stub: StubRouter) -> None:
    """Its history is the first part's."""
    stub.fails = lambda number: number == 4
    results = await rig.play([talk(0)])
    outcomes = [each.outcome for each in results]
    assert outcomes == [*["successful"] * 4, "errored", "successful"]


async def test_a_fleet_that_fails_every_second_turn_is_measured(rig: Rig, stub: StubRouter) -> None:
    """Failures are results; none is dropped, and none has a latency."""
    stub.fails = lambda number: number % 2 == 1
    results = await rig.play([talk(index) for index in range(12)], BenchSpec(clients=3))
    assert len(results) == len(stub.asked)
    failed = [each for each in results if each.outcome == "errored"]
    assert len(failed) == len(stub.asked) // 2
    assert {each.ttft_ms for each in failed} == {None}
    assert rig.kept() == (None, results)


@pytest.mark.parametrize("bench", [ONE, BenchSpec(clients=8), BenchSpec(arrivals_per_s=500.0)])
async def test_a_fleet_that_serves_nothing_ends_the_pass(
    rig: Rig, stub: StubRouter, bench: BenchSpec
) -> None:
    """Five conversations without success are enough, and the reason stands in the folder."""
    stub.fails = lambda number: number >= 12
    with pytest.raises(EngineDied) as caught:
        await rig.play([talk(index) for index in range(40)], bench)
    assert "no turn of 5 conversations" in caught.value.what
    assert "stub failure" in caught.value.got
    stopped_by, turns = rig.kept()
    assert stopped_by == f"{caught.value.what}: {caught.value.got}"
    # Of the twelve that were served, some may still be on their way when it ends.
    served = sum(each.is_successful for each in turns)
    assert served == 12 if bench == ONE else 5 <= served <= 12
    assert sum(not each.is_successful for each in turns) >= 5
    assert len(stub.asked) < 40


async def test_failures_between_successes_do_not_add_up(rig: Rig, stub: StubRouter) -> None:
    """Only conversations that fail one after another end a pass."""
    # Of one turn each: four fail in the first part, the fifth is played by both.
    stub.fails = lambda number: number % 6 < 4
    results = await rig.play([talk(index, turns=1) for index in range(20)])
    assert [each.outcome for each in results].count("errored") == 16
    assert rig.kept()[0] is None


@pytest.mark.parametrize("bench", [ONE, BenchSpec(clients=4), BenchSpec(arrivals_per_s=500.0)])
async def test_a_stop_keeps_what_was_measured(rig: Rig, stub: StubRouter, bench: BenchSpec) -> None:
    """Cancelled in mid-turn, a pass keeps every finished turn and says that it was stopped."""
    stub.hang_at = 7
    seen: list[TurnResult] = []
    talks = [talk(index) for index in range(4)]
    task = asyncio.create_task(rig.play(talks, bench, on_turn=seen.append))
    await asyncio.wait_for(stub.hanging.wait(), 5)
    assert rig.kept() == ("it has not ended", seen)  # as a kill would leave it
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.kept() == ("interrupted", seen)
    assert seen


async def test_a_failure_ends_what_runs_beside_it() -> None:
    """No turn is sent after a pass has ended, and the failure is told as it was."""
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise EngineDied("gone", got="", allowed="", fix="")

    with pytest.raises(EngineDied):
        await together([hang(), fail()])
    assert ended.is_set()


async def test_a_stop_in_the_warm_up_leaves_a_pass_without_turns(
    rig: Rig, stub: StubRouter
) -> None:
    """The folder says so."""
    stub.hang_at = 0
    task = asyncio.create_task(rig.play([talk(0, is_warmup=True), talk(0)]))
    await asyncio.wait_for(stub.hanging.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rig.kept() == ("interrupted", [])


async def test_a_fault_of_the_caller_is_told_too(rig: Rig) -> None:
    """Whatever ends a pass, its name is in the folder."""

    def on_turn(_: TurnResult) -> None:
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        await rig.play([talk(0)], on_turn=on_turn)
    stopped_by, turns = rig.kept()
    assert stopped_by == "RuntimeError('disk full')"
    assert len(turns) == 1


async def test_nothing_to_measure_is_bad_input(rig: Rig) -> None:
    """Warm-up alone measures nothing; nobody is asked."""
    with pytest.raises(BadInput) as caught:
        await rig.play([talk(0, is_warmup=True)])
    assert "1 conversations" in caught.value.got
    assert rig.kept() == (f"{caught.value.what}: {caught.value.got}", [])


async def test_an_unreachable_router_is_bad_input(folder: PassFolder, profile: Profile) -> None:
    """Nobody listens: told with the address, before any turn."""
    rig = Rig("http://127.0.0.1:1", folder, profile)
    with pytest.raises(BadInput) as caught:
        await rig.play([talk(0)])
    assert caught.value.got.startswith("http://127.0.0.1:1: ClientConnectorError")
    assert "http://127.0.0.1:8000" in caught.value.fix
    assert rig.kept() == (f"{caught.value.what}: {caught.value.got}", [])


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://", "nonsense"])
async def test_an_address_that_is_none_is_bad_input(
    folder: PassFolder, profile: Profile, url: str
) -> None:
    """It is told as it was given."""
    with pytest.raises(BadInput) as caught:
        await Rig(url, folder, profile).play([talk(0)])
    assert caught.value.got.startswith(url)


async def test_another_kind_of_server_is_bad_input(
    serve: Serve, folder: PassFolder, profile: Profile
) -> None:
    """A web page is no list of models."""

    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>welcome</html>")

    with pytest.raises(BadInput) as caught:
        await Rig(await serve(page), folder, profile).play([talk(0)])
    assert "welcome" in caught.value.got


async def test_a_router_without_engines_has_not_started(rig: Rig, stub: StubRouter) -> None:
    """It answers, they do not: exit code 3, not 2."""
    stub.models_status = 503
    with pytest.raises(StartFailed) as caught:
        await rig.play([talk(0)])
    assert "HTTP 503" in caught.value.got


async def test_another_model_is_bad_input(
    serve: Serve, folder: PassFolder, profile: Profile
) -> None:
    """The served names are told."""

    async def models(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "qwen"}, {"id": "glm"}]})

    with pytest.raises(BadInput) as caught:
        await Rig(await serve(models), folder, profile).play([talk(0)])
    assert (caught.value.got, caught.value.allowed) == ("tiny", "qwen, glm")


@pytest.mark.parametrize("key", [None, "sk-other"])
async def test_a_wrong_key_is_told_before_any_turn(
    rig: Rig, stub: StubRouter, key: str | None
) -> None:
    """401 is no failure of a turn, and the key is in no message."""
    stub.api_key = "sk-right"
    with pytest.raises(BadInput) as caught:
        await rig.play([talk(0)], api_key=key)
    assert caught.value.what == "the router refuses the API key"
    assert "HTTP 401" in caught.value.got
    assert "sk-" not in str(caught.value)
    assert stub.asked == []


async def test_the_key_goes_along_with_every_request(rig: Rig, stub: StubRouter) -> None:
    """Models, turns and ends."""
    stub.api_key = "sk-right"
    results = await rig.play([talk(0)], api_key="sk-right")
    assert all(each.is_successful for each in results)
    assert len(stub.keys) == 1 + 6 + 1
    assert set(stub.keys) == {"Bearer sk-right"}
