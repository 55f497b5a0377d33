"""Reuse off and on, the canary, and --explain, through the whole router."""

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime.cli import app
from runtime.engine_api import PIN
from runtime.local.mock_tokens import Choice
from tests.router.fleet import params_of, running_fleet, until

RUNNER = CliRunner()


async def command(*argv: str) -> Any:
    """Run `turnback` in a thread."""
    return await asyncio.to_thread(RUNNER.invoke, app, list(argv))


async def test_reuse_command_stops_and_starts_reuse(model: Path) -> None:
    """Off: no handle is taken and none is made; on: as before; status tells why."""
    async with running_fleet(model) as fleet:
        await fleet.turn(key=None)
        off = await command("reuse", "off", "--router", fleet.url, "--reason", "a look")
        assert (off.exit_code, off.output) == (0, "reuse is off: a look\n")
        assert (await fleet.turn(key=None)).path == "cold"
        assert params_of(fleet.decodes[0])[PIN] is False
        assert len(fleet.stored) == 1
        assert await fleet.metric("turnback_reuse_on 0.0")
        status = await command("reuse", "status", "--router", fleet.url, "--json")
        assert json.loads(status.output) == {"reuse": "off", "reason": "a look"}
        assert (await command("reuse", "on", "--router", fleet.url)).output == "reuse is on\n"
        await fleet.turn(key=None)
        assert (await fleet.turn(key=None)).path == "warm"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("reuse", "maybe"), "on, off, status"),
        (("reuse", "off", "--router", "localhost:8000"), "http:// or https://"),
        (("reuse", "off", "--router", "http://127.0.0.1:1"), "could not be asked"),
        (("reuse", "off", "--api-key-file", "/nowhere"), "API key file"),
    ],
)
async def test_reuse_command_tells_what_is_wrong(argv: tuple[str, ...], told: str) -> None:
    """Exit code 2, and what, got, allowed and fix."""
    result = await command(*argv)
    assert result.exit_code == 2
    for part in (told, "got:", "allowed:", "fix:"):
        assert part in result.output


async def test_canary_runs_a_warm_turn_again_cold(model: Path) -> None:
    """Equal answers are counted; the second run has a salt of its own and pins nothing."""
    async with running_fleet(model, canary_share=1.0) as fleet:
        await fleet.turn(key=None)
        await fleet.turn(key=None, stream=True)
        await until(lambda: len(fleet.decodes[0].requests) == 3)
        again = fleet.decodes[0].requests[-1].body
        assert again["cache_salt"]
        assert again["stream"] is False
        assert again["kv_transfer_params"][PIN] is False
        canaries = fleet.turns.canary
        await until(lambda: canaries._running is not None and canaries._running.done())
        assert await fleet.metric('turnback_canary_total{outcome="equal"} 1.0')
        assert len(fleet.stored) == 1


async def test_canary_leaves_sampled_turns_alone(model: Path) -> None:
    """Without temperature 0 two runs may differ, and none is compared."""
    async with running_fleet(model, canary_share=1.0) as fleet:
        await fleet.turn(key=None)
        await fleet.turn(key=None, temperature=0.7)
        assert fleet.turns.canary._running is None


async def test_differences_switch_reuse_off(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm answers that differ from their cold runs: metric, log line, and past the bar, off."""
    async with running_fleet(model, canary_share=1.0, canary_max_differences=2) as fleet:
        decode = fleet.decodes[0]
        right = decode.tokens.answer

        def answer(prompt: Sequence[int], count: int, **more: Any) -> list[Choice]:
            is_again = bool(decode.requests[-1].body.get("cache_salt"))
            return right(prompt if is_again else [*prompt, 1], count, **more)

        monkeypatch.setattr(decode.tokens, "answer", answer)
        for different in (1, 2):
            fleet.history = []
            await fleet.turn(f"{different} times", key=None)
            await fleet.turn("and then", key=None)
            line = f'turnback_canary_total{{outcome="different"}} {different}.0'
            async with asyncio.timeout(5):
                while not await fleet.metric(line):
                    await asyncio.sleep(0.01)
        await until(lambda: not fleet.turns.switch.is_on)
        assert "2 of the last 2 compared" in str(fleet.turns.switch.off_reason)
        assert (await fleet.turn(key=None)).path == "cold"
    assert "canary: a warm answer differs" in caplog.text


async def test_explain_tells_each_turns_decisions(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line per turn: path, node, notes in words, receipts and stages."""
    caplog.set_level(logging.INFO, "turnback")
    async with running_fleet(model, explain=True) as fleet:
        await fleet.turn(key=None)
        await fleet.turn(key=None)
        await fleet.turn(key=None, n=2)
    turns = [record.turn for record in caplog.records if hasattr(record, "turn")]
    assert [turn["path"] for turn in turns] == ["cold", "warm", "direct"]
    assert turns[0]["notes"] == ["no handle: none of 0 answered beginnings is known"]
    assert turns[1]["notes"][0].startswith("handle of 224 tokens on decode-1")
    assert turns[1]["prefill_leg"]["reason"] == "pulled"
    assert turns[2]["notes"] == ["decode node alone: several answers are asked for"]
    assert set(turns[1]["stages_ms"]) == {"queue", "take", "prefill", "first_byte", "whole"}
