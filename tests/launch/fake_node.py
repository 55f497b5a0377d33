"""A node's root as a tree of files and a folder of small programs.

Form and wording of the files and of what programs print follow public examples: EC2's and
libfabric's documentation, the EFA installer's list of packages, the kernel's sysfs. None of
it was taken from a node of this kit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ami.versions import read_versions
from runtime.contract.node import NodeSpec
from runtime.contract.status import ENGINE_PYTHON, BootReport, NodeStatus
from runtime.launch.command import engine_command
from runtime.launch.machine import Machine

PINS = read_versions()
"""A good node has what images are made of."""
EFA, VLLM, NIXL = PINS["efa"], PINS["engine"]["vllm"], PINS["nixl"]["version"]
ENGINE_PID = 4100
WORKER_PID = 4200
_PCI = "sys/devices/pci0000:00"
VERBS_FOLDER = "usr/lib/x86_64-linux-gnu"
_COUNTERS = ("unresponsive_remote_events", "rdma_read_wr_err", "reg_mr_err", "alloc_pd_err")
SITE = "opt/turnback/venv-engine/lib/python3.12/site-packages"
PLUGIN = "nixl_cu13.libs/nixl/libplugin_LIBFABRIC.so"


@dataclass(frozen=True)
class Kind:
    """What is different between two good nodes."""

    instance: str
    gpu: str
    pci_device: str
    busses: Sequence[int]
    gpus: int = 8
    nvlinks: int = 18
    cards: int = 16


@dataclass
class FakeNode:
    """A node's root; its programs lie in `bin`."""

    root: Path
    kind: Kind
    role: str = "decode"
    engine_url: str = "http://127.0.0.1:9"
    spec_text: str = ""
    devices: list[str] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        """What boot and doctor are given."""
        return Machine(self.root, str(self.root / "bin"))

    def write(self, path: str, text: str) -> None:
        """A file."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, "utf-8")

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(target)

    def remove(self, path: str) -> None:
        """A file or link."""
        (self.root / path.lstrip("/")).unlink()

    def program(self, name: str, body: str, folder: str = "bin") -> None:
        """A shell script; `$*` are its words."""
        self.write(f"{folder}/{name}", f"#!/bin/sh\n{body}\n")
        (self.root / folder / name).chmod(0o755)

    def says(self, name: str, cases: dict[str, str], folder: str = "bin") -> None:
        """A program that prints a text for words that match a shell pattern."""
        lines = [
            f"{pattern}) /bin/cat <<'TEXT'\n{text}\nTEXT\n;;" for pattern, text in cases.items()
        ]
        self.program(name, 'case "$*" in\n' + "\n".join(lines) + "\n*) exit 64;;\nesac", folder)

    def add_efa(self, bus: int, *, bound: bool = True) -> str:
        """An EFA function on the PCI bus, and its device when a driver is bound."""
        address, name = f"0000:{bus:02x}:00.0", f"rdmap{bus}s0"
        self.write(f"{_PCI}/{address}/vendor", "0x1d0f\n")
        self.write(f"{_PCI}/{address}/device", f"{self.kind.pci_device}\n")
        self.link(f"sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")
        if bound:
            self.link(f"{_PCI}/{address}/driver", "../../../bus/pci/drivers/efa")
            self._add_verbs(address, name)
        return name

    def add_ena(self, bus: int) -> None:
        """A card's other function, which is no EFA."""
        address = f"0000:{bus:02x}:01.0"
        self.write(f"{_PCI}/{address}/vendor", "0x1d0f\n")
        self.write(f"{_PCI}/{address}/device", "0xec20\n")
        self.link(f"{_PCI}/{address}/driver", "../../../bus/pci/drivers/ena")
        self.link(f"sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")

    def drop_efa(self, bus: int, *, is_attached: bool) -> None:
        """A device that did not come up, or whose interface is not there at all."""
        address, name = f"0000:{bus:02x}:00.0", f"rdmap{bus}s0"
        self.remove(f"sys/class/infiniband/{name}")
        self.remove(f"{_PCI}/{address}/driver")
        if not is_attached:
            self.remove(f"sys/bus/pci/devices/{address}")
        self.devices.remove(name)
        self.fi_info()

    def _add_verbs(self, address: str, name: str) -> None:
        folder = f"{_PCI}/{address}/infiniband/{name}"
        for counter in (*_COUNTERS, "tx_bytes", "rx_bytes"):
            self.write(f"{folder}/ports/1/hw_counters/{counter}", "0\n")
        self.link(f"{folder}/device", f"../../../{address}")
        at = f"../../devices/pci0000:00/{address}/infiniband/{name}"
        self.link(f"sys/class/infiniband/{name}", at)
        self.devices.append(name)

    def count(self, tx_bytes: int, rx_bytes: int, devices: int | None = None) -> None:
        """Counters of the first devices, spread evenly; the others are at 0."""
        some = devices or len(self.devices)
        for at, name in enumerate(self.devices):
            folder = f"sys/class/infiniband/{name}/ports/1/hw_counters"
            self.write(f"{folder}/tx_bytes", f"{tx_bytes // some if at < some else 0}\n")
            self.write(f"{folder}/rx_bytes", f"{rx_bytes // some if at < some else 0}\n")

    def fi_info(self, *, broken: str = "", version: str = EFA["libfabric"]) -> None:
        """libfabric's program; `broken` replaces the answer about efa."""
        blocks = [
            f"provider: efa\n    fabric: {fabric}\n    domain: {name}-rdm\n    version: 207.0\n"
            "    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA"
            for name in self.devices
            for fabric in ("efa-direct", "efa")
        ]
        self.program(
            "fi_info",
            'case "$*" in\n'
            f"--version) echo 'fi_info: {version}'; echo 'libfabric: {version}';"
            " echo 'libfabric api: 2.4';;\n"
            "-l) printf '%s:\\n    version: 207.0\\n' "
            f"{'tcp shm sm2' if broken else 'efa tcp shm'};;\n"
            "'-p efa -t FI_EP_RDM') " + (broken or _here("\n".join(blocks))) + ";;\n"
            "*) exit 64;;\nesac",
        )

    def gpus(self, count: int, *, ecc: str = "0", pending: str = "No", after: str = "") -> None:
        """NVIDIA's program; `after` is run when the rows were printed."""
        rows = "\n".join(f"{index}, {ecc if index == 3 else 0}" for index in range(count))
        remapped = "\n".join(
            f"00000000:{index:02X}:00.0, {pending if index == 3 else 'No'}, No"
            for index in range(count)
        )
        links = "\n".join(
            f"GPU {index}: {self.kind.gpu} (UUID: GPU-{index:08x})\n"
            + "\n".join(f"\t Link {link}: 26.562 GB/s" for link in range(self.kind.nvlinks))
            for index in range(self.kind.gpus)
        )
        self.program(
            "nvidia-smi",
            'case "$*" in\n'
            f"--query-gpu*) {_here(rows)}{after}\n;;\n"
            f"--query-remapped-rows*) {_here(remapped)};;\n"
            f"'nvlink --status') {_here(links)};;\n*) exit 64;;\nesac",
        )

    def modules(
        self,
        *,
        efa: str = EFA["kernel_module"],
        nvidia: str = "595.91.07",
        licence: str = "Dual MIT/GPL",
    ) -> None:
        """What is installed for the kernel."""
        self.says(
            "modinfo",
            {
                "'-F version efa'": efa,
                "'-F version nvidia'": nvidia,
                "'-F license nvidia'": licence,
            },
        )

    def engine_environment(
        self, *, engine: str = VLLM, backend: str = '{"made": true, "memory": ["VRAM"]}'
    ) -> None:
        """The engine's interpreter: it answers the doctor's scripts."""
        self.program(
            "python",
            'case "$2" in\n'
            f"*create_backend*) echo 'nixl: a line of its log'; echo 'turnback {backend}';;\n"
            f'*importlib*) echo \'turnback {{"engine": "{engine}", "nixl": "{NIXL}"}}\';;\n'
            "*) exit 64;;\nesac",
            str(ENGINE_PYTHON.parent.relative_to("/")),
        )

    def units(self, *, memlock: str = "infinity", manager: str = "active") -> None:
        """systemd's answers."""
        self.says(
            "systemctl",
            {
                "'show turnback-node.service --property=LimitMEMLOCK'": f"LimitMEMLOCK={memlock}",
                "'is-active nvidia-fabricmanager.service'": manager,
            },
        )

    def clock(self, off_s: str = "0.000004211", leap: str = "Normal") -> None:
        """chrony's answer, comma separated."""
        self.says(
            "chronyc",
            {
                "'-c tracking'": f"A9FEA97B,169.254.169.123,4,1764500000.1,{off_s},0.000001,"
                f"0.000007,-5.1,0.001,0.02,0.0003,0.0002,16.2,{leap}"
            },
        )

    def loader(
        self, libfabric: str = "/opt/amazon/efa/lib/libfabric.so.1", without: str = ""
    ) -> None:
        """ldconfig's cache."""
        folder = "/lib/x86_64-linux-gnu"
        paths = {
            "libfabric.so.1": libfabric,
            "libibverbs.so.1": f"/{VERBS_FOLDER}/libibverbs.so.1",
        }
        paths |= {
            name: f"{folder}/{name}" for name in ("libefa.so.1", "libhwloc.so.15", "libc.so.6")
        }
        lines = [
            f"\t{name} (libc6,x86-64) => {at}" for name, at in paths.items() if name != without
        ]
        self.says(
            "ldconfig", {"-p": "\n".join(["5 libs found in cache `/etc/ld.so.cache'", *lines])}
        )

    def ldd(self, *missing: str) -> None:
        """What the loader finds for NIXL's plugin, alone: wheels bring what it misses."""
        lines = ["\tlibfabric.so.1 => /opt/amazon/efa/lib/libfabric.so.1 (0x00007f10)"]
        self.says(
            "ldd", {"*": "\n".join([*lines, *(f"\t{name} => not found" for name in missing)])}
        )

    def free(self, free_bytes: int) -> None:
        """df's answer."""
        self.says("df", {"*--output=avail*": f"Avail\n{free_bytes}"})

    def packages(
        self, *, installer: str = EFA["installer"], rdma_core: str = EFA["rdma_core"]
    ) -> None:
        """What the EFA installer leaves of itself."""
        words = f"efa_{EFA['kernel_module']}-1.amzn1_amd64 rdma-core_{rdma_core}-1_amd64"
        self.write(
            "opt/amazon/efa_installed_packages",
            f"# EFA installer version: {installer}\n# Debug packages installed: no\n"
            f"# Packages installed:\n{words} libfabric1-aws_{EFA['libfabric']}_amd64\n",
        )

    def image(self, **changes: object) -> None:
        """/etc/turnback/image.json."""
        told = {
            "kind": "node",
            "built_at": "2026-11-29T10:00:00Z",
            "python": "3.12.3",
            "engine": VLLM,
            "nixl": NIXL,
            "efa_installer": EFA["installer"],
            "libfabric": EFA["libfabric"],
            "rdma_core": EFA["rdma_core"],
            "driver": "595.91.07",
        }
        self.write("etc/turnback/image.json", json.dumps(told | changes))

    def spec(self) -> NodeSpec:
        """Its spec."""
        return NodeSpec.model_validate_json(self.spec_text)

    def listen(self, *ports: int, address: str = "0A00000A") -> None:
        """Listening sockets; the address is 10.0.0.10 as the kernel writes it."""
        rows = [
            f"   {row}: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 "
            "00000000     0        0 31337 1 0000000000000000 100 0 0 10 0"
            for row, port in enumerate(ports)
        ]
        self.write(
            "proc/net/tcp", "\n".join(["  sl  local_address rem_address   st", *rows]) + "\n"
        )

    def boot(self, **changes: object) -> None:
        """/var/lib/turnback/boot.json."""
        told = {"state": "serving", "step": "engine", "since_unix_s": 1.0, "starts": 1} | changes
        report = BootReport.model_validate(told)
        self.write("var/lib/turnback/boot.json", report.model_dump_json())

    def status(self, **changes: object) -> None:
        """/run/turnback/status.json."""
        told = {"role": self.role, "generation": "ab12", "url": self.engine_url} | changes
        self.write("run/turnback/status.json", NodeStatus.model_validate(told).model_dump_json())

    def engine(
        self,
        *,
        env: dict[str, str] | None = None,
        argv: Sequence[str] | None = None,
        memlock: str = "unlimited",
        plugin: str = "libplugin_LIBFABRIC.so",
    ) -> None:
        """The API server and one worker in /proc, started from the spec but for the changes."""
        command = engine_command(self.spec().at("10.0.0.10"), ENGINE_PYTHON)
        words, variables = argv or command.argv, {**command.env, **(env or {})}
        pairs = [f"{name}={value}" for name, value in variables.items() if value]
        for pid, parent in ((ENGINE_PID, 1), (WORKER_PID, ENGINE_PID)):
            line = words if pid == ENGINE_PID else ("VLLM::Worker_TP0",)
            self.write(f"proc/{pid}/cmdline", "\0".join(line) + "\0")
            self.write(f"proc/{pid}/environ", "\0".join(pairs) + "\0")
            self.write(f"proc/{pid}/status", f"Name:\tpython\nPid:\t{pid}\nPPid:\t{parent}\n")
            self.write(
                f"proc/{pid}/limits",
                f"Limit                     Soft Limit           Hard Limit           Units\n"
                f"Max locked memory         {memlock:20} {memlock:20} bytes\n",
            )
        self.write(f"proc/{WORKER_PID}/maps", f"7f00-7f01 r-xp 0 00:00 0    /x/{plugin}\n")


def _here(text: str) -> str:
    return f"/bin/cat <<'TEXT'\n{text}\nTEXT\n"
