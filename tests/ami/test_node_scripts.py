"""What units of a node run, on played disks and devices."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from stacks.constructs.instance_role import METRICS_NAMESPACE

FILES = Path(__file__).parents[2] / "ami" / "files"


def wait_efa(sys: Path, limit_s: int = 0) -> str:
    done = subprocess.run(
        [str(FILES / "wait-efa"), str(limit_s)],
        env={"PATH": os.environ["PATH"], "TURNBACK_SYS": str(sys)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout


def tree(sys: Path, functions: int, devices: int) -> None:
    """EFA functions on the bus beside an ENA one, and those that have come up beside an mlx5."""
    for number in range(functions + 1):
        folder = sys / "bus" / "pci" / "devices" / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1d0f\n")
        (folder / "device").write_text("0xec20\n" if number == functions else "0xefa3\n")
    come_up(sys, "mlx5_0", "mlx5_core")
    for number in range(devices):
        come_up(sys, f"rdmap{number}s0")


def come_up(sys: Path, name: str, driver: str = "efa") -> None:
    """A verbs device."""
    device = sys / "class" / "infiniband" / name / "device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


@pytest.mark.parametrize(("functions", "devices"), [(16, 16), (16, 15), (0, 0)])
def test_wait_counts_what_has_come_up(functions: int, devices: int, tmp_path: Path) -> None:
    """ENA is none of them; a machine without EFA waits for nothing, one without all boots on."""
    tree(tmp_path, functions, devices)
    assert f"EFA: {devices} of {functions} devices" in wait_efa(tmp_path)


def test_wait_ends_when_the_last_comes_up(tmp_path: Path) -> None:
    """P5en brings them up late."""
    tree(tmp_path, 2, 1)
    waiting = subprocess.Popen(
        [str(FILES / "wait-efa"), "60"],
        env={"PATH": os.environ["PATH"], "TURNBACK_SYS": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.7)
    come_up(tmp_path, "rdmap1s0")
    said, _ = waiting.communicate(timeout=10)
    assert "EFA: 2 of 2 devices" in said


@pytest.mark.parametrize("kind", ["node", "router"])
def test_agent_measures_into_the_namespace_that_the_role_allows(kind: str) -> None:
    """Another one would be refused, each minute, without anyone seeing it."""
    metrics = json.loads((FILES / f"cloudwatch-{kind}.json").read_text("utf-8"))["metrics"]
    assert metrics["namespace"] == METRICS_NAMESPACE
    assert ("efa" in metrics["metrics_collected"]) is (kind == "node")
