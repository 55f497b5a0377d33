"""What was measured comes back whole, also after a crash."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.bench.folder import PASS, TURNS, PassFolder, PassInfo, Sample
from runtime.bench.turn import TurnResult
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt
from runtime.errors import BadInput


@pytest.fixture
def info(profile: Profile) -> PassInfo:
    return PassInfo(
        name="caching off",
        created_utc="2026-01-01T00:00:00+00:00",
        profile=profile,
        bench=BenchSpec(clients=2),
        workload="test",
        prefill_prefix_caching=False,
    )


def test_comes_back(tmp_path: Path, info: PassInfo, make_turn: Callable[..., TurnResult]) -> None:
    """Info, turns and samples are the ones that were written."""
    turn = make_turn(receipt=Receipt(10, 10, 0, 10, "pulled"), router_ms={"queue": 0.5})
    sample = Sample(1.5, "prefill", "http://127.0.0.1:8100", {"kv_usage": 0.25})
    folder = PassFolder(tmp_path / "a" / "pass")
    folder.begin(info)
    folder.add_turn(turn)
    folder.add_sample(sample)
    assert folder.read() == (info, [turn], [sample])
    ended = folder.end(info, None)
    assert folder.read()[0] == ended == replace(info, stopped_by=None)


def test_half_a_line(tmp_path: Path, info: PassInfo, make_turn: Callable[..., TurnResult]) -> None:
    """A turn that was being written at a crash is left out; those before it stay."""
    folder = PassFolder(tmp_path)
    folder.begin(info)
    folder.add_turn(make_turn())
    with (tmp_path / TURNS).open("a") as file:
        file.write('{"conversation":')
    assert folder.read()[1] == [make_turn()]


@pytest.mark.parametrize("text", [None, "", "[]", '{"format": 9}', '{"format": 1}'])
def test_another_thing(tmp_path: Path, text: str | None) -> None:
    """A folder without a readable pass.json is refused by name."""
    if text is not None:
        (tmp_path / PASS).write_text(text)
    with pytest.raises(BadInput, match=PASS):
        PassFolder(tmp_path).read()


def test_garbage_between(tmp_path: Path, info: PassInfo) -> None:
    """A broken line that is not the last is no crash's trace."""
    folder = PassFolder(tmp_path)
    folder.begin(info)
    (tmp_path / TURNS).write_text("nonsense\n{}\n")
    with pytest.raises(BadInput, match=TURNS):
        folder.read()
