"""The doctor's scripts, run by the real engine environment."""

from pathlib import Path

import pytest

from runtime.launch.doctor.libraries import BACKEND_SCRIPT, VERSIONS_SCRIPT, told_by
from runtime.launch.machine import Machine

ENGINE_PYTHON = Path(__file__).parents[3] / ".venv-engine" / "bin" / "python"


@pytest.fixture
def machine() -> Machine:
    """This one."""
    return Machine()


def test_versions_of_the_engine_environment(machine: Machine) -> None:
    """As its packages say."""
    ran = machine.run([str(ENGINE_PYTHON), "-c", VERSIONS_SCRIPT], 60)
    assert told_by(ran.out) == {"engine": "0.32.0", "nixl": "1.5.1"}


def test_nixl_without_efa_says_that_it_makes_no_backend(machine: Machine) -> None:
    """In its own words; there is no libfabric here."""
    ran = machine.run([str(ENGINE_PYTHON), "-c", BACKEND_SCRIPT], 120)
    told = told_by(ran.out)
    assert told["made"] is False, ran
    assert "NIXL_ERR_NOT_FOUND" in str(told["error"])
