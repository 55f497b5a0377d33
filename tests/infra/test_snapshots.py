"""Whole templates change only on purpose."""

from collections.abc import Callable

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.infra.synth import TOPOLOGIES, Synth, scrubbed


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_templates_are_the_reviewed_ones(
    name: str, topology: Callable[[str], Synth], snapshot: SnapshotAssertion
) -> None:
    """Any change shows in the diff of a file. `pytest --snapshot-update` takes it over."""
    assert scrubbed(topology(name).all) == snapshot(extension_class=JSONSnapshotExtension)
