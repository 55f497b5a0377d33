"""From the settings file to the engine's command line, through what is deployed."""

from pathlib import Path

import pytest

from runtime.contract.node import NodeSpec
from runtime.contract.status import ENGINE_PYTHON
from runtime.launch.command import engine_command
from tests.infra.synth import golden, raw_settings, synth


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_settings_reach_the_engine(role: str, tmp_path: Path) -> None:
    """deployment.toml -> template -> SSM value -> NodeSpec -> argv: the reviewed one."""
    text = synth(raw_settings(), tmp_path).spec_text(role)
    spec = NodeSpec.model_validate_json(text).at("10.20.0.7")
    command = engine_command(spec, ENGINE_PYTHON)
    assert {"argv": [*command.argv], "env": {**command.env}} == golden(f"seam-{role}.json")


def test_spec_of_a_role_starts_nothing_without_an_address(tmp_path: Path) -> None:
    """A side channel on localhost would look well and serve no peer."""
    spec = NodeSpec.model_validate_json(synth(raw_settings(), tmp_path).spec_text("decode"))
    with pytest.raises(ValueError, match="address is not filled in"):
        engine_command(spec, Path("python"))
