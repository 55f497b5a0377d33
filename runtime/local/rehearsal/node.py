"""A node of the rehearsal: `turnback serve` under a folder, with this machine's values.

python -m runtime.local.rehearsal.node FILE

The file is a `LocalNode`. Boot, its sources and its engine are those of a real node; other are
what `swaps.SWAPPED` names and the folder that stands for `/`.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from runtime.cli_node import aws_sources, run_node
from runtime.contract.image import IMAGE_FILE, ImageFile
from runtime.contract.node import CpuSpec, Frozen, NodeSpec, Port
from runtime.contract.status import KIT_STAMP
from runtime.launch.boot.boot import Node
from runtime.launch.boot.engine import Pace
from runtime.launch.boot.examine import boot_checks
from runtime.launch.command import Command, engine_command
from runtime.launch.doctor.check import Check
from runtime.launch.machine import Machine
from runtime.local.cluster import HOST, mock_command
from runtime.local.rehearsal.swaps import Here, local_spec

_GRACE_S = 5.0


class LocalNode(Frozen):
    """What a node of this machine is."""

    root: Annotated[Path, AfterValidator(Path.absolute)]
    """Folder that stands for `/`."""
    variables: dict[str, str]
    """Of its user data."""
    port: Port
    side_channel_port: Port
    cpu: CpuSpec
    engine_python: Path | None = None
    """Interpreter with vLLM; None: a mock engine."""


def make_tree(root: Path, spec: NodeSpec, kit_sha256: str) -> None:
    """What a machine of the right image has, before boot: devices, image.json, the kit's stamp.

    Args:
        root: folder that stands for `/`.
        spec: as deployed.
        kit_sha256: of the wheel that user data names.
    """
    driver = root / "sys/bus/pci/drivers/efa"
    driver.mkdir(parents=True, exist_ok=True)
    for number in range(spec.transport.efa_devices if spec.transport else 0):
        device = root / f"sys/class/infiniband/rdmap{number}s0/device"
        device.mkdir(parents=True, exist_ok=True)
        if not (device / "driver").is_symlink():
            (device / "driver").symlink_to(driver)
    engine = spec.image.engine_version if spec.image else "0"
    image = ImageFile(
        kind="node", built_at="2026-01-01T00:00:00Z", python="3.11", engine=f"{engine}.0"
    )
    texts = {IMAGE_FILE: image.model_dump_json(), KIT_STAMP: kit_sha256}
    for path, text in texts.items():
        at = Machine(root).at(path)
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, "utf-8")


def folder_checks() -> list[Check]:
    """Those of the doctor's that a folder can pass; others want a GPU node's programs."""
    asked = ("image-file", "spec", "efa-devices", "verbs-devices", "ports")
    return [each for each in boot_checks() if each.name in asked]


def main(file: Path) -> int:
    """Boot and serve; returns the exit code."""
    local = LocalNode.model_validate_json(file.read_bytes())

    def fit(spec: NodeSpec) -> NodeSpec:
        here = Here(
            root=local.root,
            port=local.port,
            side_channel_port=local.side_channel_port,
            cpu=local.cpu,
        )
        return local_spec(spec, here)

    def command(spec: NodeSpec) -> Command:
        if local.engine_python is None:
            return mock_command(spec)
        return engine_command(spec, local.engine_python)

    os.chdir(local.root)
    parameter = local.variables["TURNBACK_PARAMETER"]
    node = Node(
        Machine(local.root),
        parameter,
        kit_sha256=local.variables["TURNBACK_WHEEL_SHA256"],
        address=lambda: HOST,
        fit=fit,
        command=command,
        pace=replace(Pace(), grace_s=_GRACE_S),
        checks=folder_checks(),
    )
    return run_node(node, aws_sources(local.variables["TURNBACK_DEPLOYMENT"], parameter))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
