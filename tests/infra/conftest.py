"""Each topology is synthesized once per session."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.infra.synth import TOPOLOGIES, Synth, raw_settings, synth

Changed = Callable[..., Synth]


@pytest.fixture(scope="session")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Synth]:
    """A topology by its name."""

    @cache
    def make(name: str) -> Synth:
        return synth(raw_settings(TOPOLOGIES[name]), tmp_path_factory.mktemp(name))

    return make


@pytest.fixture(scope="session")
def pair(topology: Callable[[str], Synth]) -> Synth:
    """The committed settings: one prefill and one decode node."""
    return topology("1p1d")


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """The committed settings with changes at dotted paths."""

    def make(changes: dict[str, Any], **rest: Any) -> Synth:
        return synth(raw_settings(changes), tmp_path, **rest)

    return make
