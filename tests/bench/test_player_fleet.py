"""A pass through the real router, on mock engines."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import aiohttp
import pytest

from runtime.bench.folder import PassFolder
from runtime.bench.player import Target
from runtime.bench.run import run_pass
from runtime.bench.scrape import ROUTER_NOW
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.engine_api import samples
from tests.bench.stub_router import info_of
from tests.router.fleet import LONG_TEXT, MODEL, assert_used_once, running_fleet, write_tokenizer


@pytest.fixture(scope="session")
def mock_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("mock-model")
    write_tokenizer(folder)
    return folder


def talks(count: int, *, edit: bool = False) -> list[Conversation]:
    """Conversations of three turns, longer than the threshold; a warm-up one first."""

    def user(text: str) -> PlannedTurn:
        return PlannedTurn(({"role": "user", "content": text},), 6)

    def talk(index: int, name: str) -> Conversation:
        first = f"{name} {index}: {LONG_TEXT}"
        last = user("and more")
        if edit:
            changed = ({"role": "user", "content": f"again {first}"},)
            last = PlannedTurn(last.messages, 6, edit=(0, changed))
        turns = (user(first), user("tell me more"), last)
        return Conversation(index, name == "warm-up", (), turns)

    return [talk(0, "warm-up"), *(talk(index, "talk") for index in range(count))]


def of_arm(results: list[TurnResult], arm: str) -> Iterator[TurnResult]:
    return (each for each in results if each.arm == arm)


@pytest.mark.parametrize(
    "bench",
    [
        BenchSpec(again_share=0.5),
        BenchSpec(clients=3, again_share=0.5),
        BenchSpec(arrivals_per_s=200.0, again_share=0.5),
    ],
    ids=["one client", "three clients", "arrivals"],
)
async def test_a_pass_through_the_router(
    mock_model: Path, profile: Profile, tmp_path: Path, bench: BenchSpec
) -> None:
    """Later bidirectional turns pull, one-way turns never; evidence comes with each turn."""
    folder = PassFolder(tmp_path / "pass")
    async with running_fleet(mock_model) as fleet:
        target = Target(fleet.url, MODEL, "2026-11-30T10:00:00+00:00")
        results = await run_pass(target, talks(4), folder, info_of(profile, bench))
        assert fleet.stored == []  # ended conversations leave nothing behind
        assert_used_once(fleet)
    assert [each.error for each in results if not each.is_successful] == []
    assert {each.path for each in of_arm(results, "one_way")} == {"cold"}
    for each in of_arm(results, "bidirectional"):
        assert each.path == ("warm" if each.turn > 1 else "cold")
        assert each.receipt is not None
        assert (each.receipt.pulled_tokens > 0) == (each.turn > 1)
    assert all(set(each.router_ms) >= {"prefill", "first_byte"} for each in results)
    assert all(each.decode_receipt is not None for each in results)
    for _, same in groupby(sorted(results, key=turn_of), key=turn_of):
        assert len({each.token_ids for each in same}) == 1  # mocks answer by their prompt
    assert folder.read()[1] == results


def turn_of(result: TurnResult) -> tuple[int, int]:
    return result.conversation, result.turn


async def test_edits_and_aborts_through_the_router(
    mock_model: Path, profile: Profile, tmp_path: Path
) -> None:
    """An edited history is verified away; an aborted turn leaves no handle for the next."""
    bench = BenchSpec(abort_share=0.34, again_share=0, seed=1)
    async with running_fleet(mock_model, engine={"token_ms": 5.0}) as fleet:
        target = Target(fleet.url, MODEL, "run")
        conversations = talks(4, edit=True)
        info = info_of(profile, bench)
        results = await run_pass(target, conversations, PassFolder(tmp_path / "p"), info)
        assert_used_once(fleet)
        assert fleet.stored == []
    aborted = {turn_of(each) for each in results if each.outcome == "aborted"}
    assert len(aborted) == 4
    for arm in ("one_way", "bidirectional"):
        assert {turn_of(each) for each in of_arm(results, arm) if each.outcome == "aborted"} == (
            aborted
        )
    bidirectional = {turn_of(each): each for each in of_arm(results, "bidirectional")}
    for (conversation, turn), each in bidirectional.items():
        assert each.is_edited == (turn == 3)
        if turn == 3 and each.receipt is not None:
            assert each.receipt.pulled_tokens == 0
        if turn == 2 and (conversation, 1) in aborted and each.path is not None:
            assert each.path == "cold"
    assert len(results) == 24


async def test_a_routers_page_has_what_a_timeline_reads(mock_model: Path) -> None:
    """Under these names: one that is not there would read as 0."""
    async with (
        running_fleet(mock_model) as fleet,
        aiohttp.ClientSession() as session,
        session.get(f"{fleet.url}/metrics") as reply,
    ):
        shown = {name for name, _ in samples(await reply.text())}
    assert {*ROUTER_NOW.values()} <= shown
