"""A pair of rigs."""

import pytest

pytest.importorskip("vllm", reason="run by the engine environment (make test does)")

from tests.plugin.rig import Rig


@pytest.fixture
def pair() -> tuple[Rig, Rig]:
    """P without a prefix cache, and D."""
    return Rig(caching=False), Rig()
