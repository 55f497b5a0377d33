"""Negative control: with vLLM's own connector the same cases give wrong answers.

Run alone, with what it found on the terminal:

    .venv/bin/python -m pytest -s tests/engine/test_stock_control.py
"""

import json
from pathlib import Path

import pytest

from runtime.engine_api import RECORD
from runtime.launch.command import Command
from tests.engine.cases import FOLLOW_UPS, play
from tests.engine.pairs import ROOT, running_pair
from tests.engine.play import difference
from tests.engine.words import plain_words
from tests.fuzz.script import Texts

pytestmark = pytest.mark.engine


def with_stock_connector(command: Command) -> Command:
    """The same command line with vLLM's own connector."""
    argv = list(command.argv)
    at = argv.index("--kv-transfer-config") + 1
    config = json.loads(argv[at])
    config["kv_connector_module_path"] = "tests.engine.stock_connector"
    argv[at] = json.dumps(config)
    return Command(tuple(argv), {**command.env, "PYTHONPATH": str(ROOT)})


async def test_stock_connector_changes_answers(model: Path, tmp_path: Path) -> None:
    """Of the cases at least three differ from a cold run: the cases have power."""
    parted: dict[str, int | None] = {}
    async with running_pair(model, tmp_path, edit=with_stock_connector) as client:
        for seed, kind in enumerate(FOLLOW_UPS):
            played = await play(client, Texts(plain_words(model), seed), kind)
            assert RECORD not in played.prefilled.params
            parted[kind] = difference(played.warm, played.cold)
            print(f"stock, {kind}: first difference at token {parted[kind]}")  # noqa: T201
    assert sum(at is not None for at in parted.values()) >= 3, parted
