"""One pass against servers that run: what must have come of it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from runtime.bench.folder import PassFolder
from runtime.bench.measure import Workload, measure
from runtime.bench.player import Target
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.errors import EngineDied
from tests.bench.stub_router import MODEL, Events, StubRouter, info_of, talk

Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


async def measured(
    url: str, stub: StubRouter, profile: Profile, folder: PassFolder, *, is_feature_on: bool = True
) -> None:
    """Four conversations of three turns; with both arms 24 turns."""
    info = info_of(profile, BenchSpec(again_share=0), is_feature_on=is_feature_on)
    workload = Workload("test", [talk(index) for index in range(4)])
    target = Target(url, MODEL, "run")
    await measure(target, (), workload, folder, info, lambda _: None, lambda: None)


@pytest.mark.parametrize("arm", ["one_way", "bidirectional"])
async def test_an_arm_without_a_good_turn_ends_badly(
    arm: str, serve: Serve, answer_events: Events, profile: Profile, tmp_path: Path
) -> None:
    """The other arm's turns are kept; exit code 4 and the first error, not a good end."""
    stub = StubRouter(answer_events)
    # The one-way arm is told by what it asks the router for.
    stub.fails = lambda number: (
        (stub.asked[number].headers.get("X-Turnback-Reuse") == "off") == (arm == "one_way")
    )
    folder = PassFolder(tmp_path / "pass")
    with pytest.raises(EngineDied) as caught:
        await measured(await serve(stub.handle), stub, profile, folder)
    assert caught.value.what == f"no turn of the {arm} arm succeeded"
    assert "stub failure" in caught.value.got
    kept = folder.read()[1]
    assert {each.arm for each in kept if each.is_successful} == {"one_way", "bidirectional"} - {arm}


async def test_a_pass_without_the_feature_has_one_arm_to_succeed(
    serve: Serve, answer_events: Events, profile: Profile, tmp_path: Path
) -> None:
    """The other was not played."""
    stub, folder = StubRouter(answer_events), PassFolder(tmp_path / "pass")
    url = await serve(stub.handle)
    await measured(url, stub, profile, folder, is_feature_on=False)
    assert len(folder.read()[1]) == 12
