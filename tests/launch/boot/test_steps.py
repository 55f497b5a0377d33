"""What must hold before an engine starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.contract.image import IMAGE_FILE
from runtime.contract.node import ImageSpec, TransportSpec
from runtime.contract.status import KIT_STAMP
from runtime.errors import BadInput, StartFailed
from runtime.launch.boot.steps import (
    check_image,
    check_kit,
    check_model,
    read_spec,
    wait_for_devices,
)
from runtime.launch.machine import Machine
from tests.launch.boot.node import KIT, spec, tree
from tests.launch.engine_double import EngineDouble
from tests.launch.fake_node import FakeNode, Kind
from tests.launch.faults import FAULTS, Fault
from tests.launch.nodes import P5EN, P6_B300, good_node

SPEC = spec(8000)
WANTED = ImageSpec(engine_version="0.33")
EFA = TransportSpec(efa_devices=16)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that is as it should be."""
    return tree(tmp_path, SPEC)


@pytest.mark.parametrize("stamp", [None, "", "cd" * 32])
def test_half_a_kit_is_not_used(stamp: str | None, machine: Machine) -> None:
    """No stamp, an empty one, another wheel's."""
    check_kit(machine, KIT)
    path = machine.at(KIT_STAMP)
    path.unlink() if stamp is None else path.write_text(stamp, "utf-8")
    with pytest.raises(StartFailed, match="not wholly installed") as failure:
        check_kit(machine, KIT)
    assert "turnback-kit" in failure.value.fix
    check_kit(machine, "")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"role": "decode"}'])
def test_unreadable_spec_is_told(text: str) -> None:
    """With where it came from."""
    with pytest.raises(BadInput, match=r"parameter x: \d+ value"):
        read_spec(text, "parameter x")


@pytest.mark.parametrize("where", [(), ("kv",), ("serving",)])
def test_newer_spec_is_told_as_such(where: tuple[str, ...]) -> None:
    """A field that this kit does not know, at any depth, with its path."""
    raw: dict[str, Any] = json.loads(SPEC.model_dump_json(exclude_none=True))
    at = raw
    for name in where:
        at = at[name]
    at["tomorrow"] = 1
    with pytest.raises(BadInput, match="newer than this node's kit") as failure:
        read_spec(json.dumps(raw), "parameter x")
    assert ".".join([*where, "tomorrow"]) in failure.value.got
    assert "turnback rollout" in failure.value.fix


def test_image_of_the_spec_is_accepted(machine: Machine) -> None:
    """And what it has is told."""
    assert "vLLM 0.33.0" in check_image(machine, WANTED)
    assert "none" in check_image(machine, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": "0.32.1"}, "0.32.1"),
        ({"kind": "router"}, "for routers"),
        (None, "no /etc/turnback/image.json"),
    ],
)
def test_other_image_is_refused(change: dict[str, str] | None, said: str, machine: Machine) -> None:
    """Another engine, a router's image, one of someone else."""
    path = machine.at(IMAGE_FILE)
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}), "utf-8")
    with pytest.raises(BadInput, match="not the one that the spec wants") as failure:
        check_image(machine, WANTED)
    assert said in failure.value.got


def test_newer_image_file_is_refused(machine: Machine) -> None:
    """Of another agreement between image and kit."""
    path = machine.at(IMAGE_FILE)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format": 2}), "utf-8")
    with pytest.raises(BadInput, match=r"image\.json"):
        check_image(machine, WANTED)


class Time:
    """A clock that its sleeps move; devices may come up while it runs."""

    def __init__(self, machine: Machine, late: int, at_s: float) -> None:
        self.now_s, self.at_s = 0.0, at_s
        folder = machine.at("/sys/class/infiniband")
        self.late = sorted(folder.iterdir())[len(list(folder.iterdir())) - late :] if late else []
        self.links = {device: (device / "device/driver").readlink() for device in self.late}
        for device in self.late:
            (device / "device/driver").unlink()

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now_s += seconds
        if self.now_s >= self.at_s:
            for device, link in self.links.items():
                (device / "device/driver").symlink_to(link)
            self.links = {}


def wait(machine: Machine, time: Time, wanted: TransportSpec | None, said: list[str]) -> str:
    """As boot does it."""
    return wait_for_devices(
        machine, wanted, said.append, wait_s=60, clock=lambda: time.now_s, sleep=time.sleep
    )


def test_late_devices_are_waited_for(machine: Machine) -> None:
    """P5en: 15 of 16 for half a minute; told at once and every 15 s."""
    said: list[str] = []
    assert "16 EFA devices" in wait(machine, Time(machine, 1, 32.0), EFA, said)
    assert said == [f"15 of 16 EFA devices after {seconds} s" for seconds in (0, 15, 30)]


def test_missing_devices_end_the_boot(machine: Machine) -> None:
    """With those that are there; a wait has an end."""
    with pytest.raises(StartFailed, match="EFA devices are missing") as failure:
        wait(machine, Time(machine, 1, 1e9), EFA, [])
    assert "15 of 16 after 60 s: rdmap0s0, " in failure.value.got
    assert "turnback doctor" in failure.value.fix


def test_other_verbs_devices_do_not_count(machine: Machine) -> None:
    """HGX hosts have mlx5 ones beside."""
    link = machine.at("/sys/class/infiniband/rdmap3s0/device/driver")
    link.unlink()
    link.symlink_to("/sys/bus/pci/drivers/mlx5_core")
    with pytest.raises(StartFailed, match="EFA devices are missing"):
        wait(machine, Time(machine, 0, 0.0), EFA, [])


def test_tcp_is_served_over_where_it_is_allowed(machine: Machine) -> None:
    """And said, never silent."""
    wanted = TransportSpec(efa_devices=16, allow_tcp=True)
    assert "may go over TCP, as allowed" in wait(machine, Time(machine, 16, 1e9), wanted, [])


def test_peers_on_this_machine_want_no_device(tmp_path: Path) -> None:
    """A spec without transport."""
    assert wait_for_devices(Machine(tmp_path), None, print, wait_s=0) == "peers on this machine"


def test_folder_without_a_model_is_refused(machine: Machine) -> None:
    """vLLM would ask the hub for it."""
    assert check_model(machine, SPEC) == machine.at(SPEC.serving.model)
    machine.at(SPEC.serving.model / "config.json").unlink()
    with pytest.raises(StartFailed, match="no model to serve"):
        check_model(machine, SPEC)


def refuse_what_does_not_fit(node: FakeNode) -> None:
    """The steps from the spec to the devices, on a node as doctor is given it."""
    wanted = read_spec(node.spec_text, "parameter x")
    check_image(node.machine, wanted.image)
    wait_for_devices(node.machine, wanted.transport, lambda _line: None, wait_s=0)


@pytest.mark.parametrize("kind", [P5EN, P6_B300], ids=lambda kind: kind.instance)
def test_nodes_that_doctor_calls_good_boot(kind: Kind, tmp_path: Path) -> None:
    """Both read the same tree."""
    refuse_what_does_not_fit(good_node(tmp_path, kind))


@pytest.mark.parametrize(
    "fault",
    [each for each in FAULTS if each.check in ("image-file", "spec", "efa-devices")],
    ids=lambda fault: fault.name,
)
def test_broken_nodes_of_doctor_do_not_boot(fault: Fault, tmp_path: Path) -> None:
    """What doctor fails of a boot's own steps, boot refuses."""
    node = good_node(tmp_path)
    fault.breaks(node, EngineDouble())
    with pytest.raises((BadInput, StartFailed)):
        refuse_what_does_not_fit(node)
