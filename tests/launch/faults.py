"""Broken nodes: each is a good one with one fault, and names the check that must see it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runtime.contract.doctor import Stage, Status
from runtime.launch.command import engine_command
from runtime.launch.doctor.check import Facts
from tests.launch.engine_double import EngineDouble, closed_port
from tests.launch.fake_node import EFA, VLLM, FakeNode

_GIB = 2**30


@dataclass(frozen=True)
class Fault:
    """What is broken.

    Attributes:
        name: of the row in docs/doctor.md.
        check: that sees it, and no other does.
        status: what it says.
        told: part of its evidence.
        breaks: breaks a good node, or what answers for its engine.
        stage: in which.
        asks: what the doctor is asked beside.
    """

    name: str
    check: str
    status: Status
    told: str
    breaks: Callable[[FakeNode, EngineDouble], object]
    stage: Stage = "live"
    asks: Callable[[Facts], Facts] = lambda facts: facts


def _argv(node: FakeNode, old: str, new: str) -> None:
    command = engine_command(node.spec().at("10.0.0.10"), Path("/x/python"))
    node.engine(argv=[word.replace(old, new) for word in command.argv])


def _old_driver_without_peermem(node: FakeNode, _: EngineDouble) -> None:
    node.write("proc/modules", "efa 139264 16 - Live 0x0\n")
    node.modules(licence="NVIDIA")


def _device_without_provider(node: FakeNode, _: EngineDouble) -> None:
    names = node.devices[:-1]
    blocks = "\n".join(f"provider: efa\n    domain: {name}-rdm" for name in names)
    node.fi_info(broken=f"/bin/cat <<'TEXT'\n{blocks}\nTEXT\n")


def _older_verbs_provider(node: FakeNode, _: EngineDouble) -> None:
    folder = "usr/lib/x86_64-linux-gnu/libibverbs"
    node.remove(f"{folder}/libefa-rdmav59.so")
    node.write(f"{folder}/libefa-rdmav34.so", "")


def _nvlink(node: FakeNode, _: EngineDouble) -> None:
    few = replace(node.kind, nvlinks=17)
    node.kind = few
    node.gpus(8)


def _foreign_verbs(node: FakeNode, _: EngineDouble) -> None:
    node.link("sys/class/infiniband/mlx5_0/device/driver", "../../../bus/pci/drivers/mlx5_core")


def _spec_field(node: FakeNode, **fields: object) -> None:
    node.spec_text = json.dumps(json.loads(node.spec_text) | fields)


def _model_gone(node: FakeNode, _: EngineDouble) -> None:
    node.remove("opt/turnback/models/Qwen/Qwen3-32B/1/config.json")
    node.free(500 * _GIB)


def _silent_peer(facts: Facts) -> Facts:
    return replace(facts, peers=(("127.0.0.1", closed_port()),))


def _old_efa_kernel(node: FakeNode, _: EngineDouble) -> None:
    node.program(
        "modinfo",
        'case "$*" in\n*efa) echo "modinfo: ERROR: Module efa not found." >&2; exit 1;;\n'
        "*license*) echo 'Dual MIT/GPL';;\n*) echo 595.91.07;;\nesac",
    )


def _samples(name: str, value: float, _: FakeNode, engine: EngineDouble) -> None:
    engine.samples[name] = value


def _no_traffic(node: FakeNode, engine: EngineDouble) -> None:
    node.count(0, 0)
    engine.samples["vllm:nixl_bytes_transferred_sum"] = 0.0


_NO_READS = partial(_samples, "vllm:nixl_xfer_time_seconds_count", 0.0)

FAULTS: tuple[Fault, ...] = (
    Fault("no image.json", "image-file", "fail", "no /etc/turnback/image.json",
          lambda node, _: node.remove("etc/turnback/image.json"), "boot"),
    Fault("image of another vLLM", "image-file", "fail", "the spec wants 0.32",
          lambda node, _: _spec_field(node, image={"engine_version": "0.32"}), "boot"),
    Fault("image of a router", "image-file", "fail", "the image is for routers",
          lambda node, _: node.image(kind="router"), "boot"),
    Fault("no spec", "spec", "fail", "(whole): Invalid JSON",
          lambda node, _: setattr(node, "spec_text", "")),
    Fault("spec of a newer kit", "spec", "fail", "flux: Extra inputs are not permitted",
          lambda node, _: _spec_field(node, flux=1)),
    Fault("boot failed", "boot", "fail", "failed at model: the model's checksum is wrong, got ab",
          lambda node, _: node.boot(state="failed", step="model", got="ab", fix="stage it again",
                                    what="the model's checksum is wrong")),
    Fault("still booting", "boot", "warn", "booting at model",
          lambda node, _: node.boot(state="booting", step="model")),
    Fault("engine restarts", "boot", "warn", "the engine was started 4 times",
          lambda node, _: node.boot(starts=4, since_unix_s=time.time() - 60)),
    Fault("no efa module for the kernel", "efa-driver", "fail", "Module efa not found",
          _old_efa_kernel, "image"),
    Fault("older efa module loaded", "efa-driver", "fail",
          f"efa 2.13.0 is loaded, {EFA['kernel_module']}",
          lambda node, _: node.write("sys/module/efa/version", "2.13.0\n")),
    Fault("15 devices", "efa-devices", "fail", "no device from PCI 0000:53:00.0 (driver none)",
          lambda node, _: node.drop_efa(83, is_attached=True), "boot"),
    Fault("15 interfaces", "efa-devices", "fail", "the PCI bus has 15",
          lambda node, _: node.drop_efa(83, is_attached=False), "boot"),
    Fault("verbs device of another driver", "verbs-devices", "warn", "mlx5_0", _foreign_verbs),
    Fault("TCP is all that libfabric has", "fi-info", "fail", "libfabric has shm, sm2, tcp",
          lambda node, _: node.fi_info(broken="echo 'fi_getinfo: -61 (No data)' >&2; exit 61")),
    Fault("fi_info hangs", "fi-info", "fail", "no end within",
          lambda node, _: node.fi_info(broken="exec /bin/sleep 60")),
    Fault("device without provider", "fi-info", "fail", "not on rdmap94s0",
          _device_without_provider),
    Fault("libfabric too old", "libfabric", "fail", "libfabric 1.17.1; NIXL wants 1.21",
          lambda node, _: node.fi_info(version="1.17.1")),
    Fault("libfabric updated", "libfabric", "fail",
          f"the image was built with {EFA['libfabric']}",
          lambda node, _: node.fi_info(version="2.8.0amzn1.0"), "image"),
    Fault("no hwloc", "loader", "fail", "not on the loader's path: libhwloc.so.15",
          lambda node, _: node.loader(without="libhwloc.so.15"), "image"),
    Fault("the distribution's libfabric", "loader", "fail", "not EFA's",
          lambda node, _: node.loader("/lib/x86_64-linux-gnu/libfabric.so.1")),
    Fault("rdma-core of two builds", "rdma-core", "fail", "has libefa-rdmav34.so",
          _older_verbs_provider),
    Fault("rdma-core of the distribution", "rdma-core", "fail", "rdma-core 50.0",
          lambda node, _: node.packages(rdma_core="50.0")),
    Fault("another EFA installer", "efa-installer", "fail", "EFA installer 1.47.0",
          lambda node, _: node.packages(installer="1.47.0"), "image"),
    Fault("NIXL without its plugin", "nixl-plugin", "fail", "no libplugin_LIBFABRIC.so",
          lambda node, _: node.remove("opt/turnback/venv-engine/lib/python3.12/site-packages/"
                                      "nixl_cu13.libs/nixl/libplugin_LIBFABRIC.so"), "image"),
    Fault("plugin misses a library", "nixl-plugin", "fail", "misses libcudart.so.12",
          lambda node, _: node.ldd("libserdes.so", "libcudart.so.12"), "image"),
    Fault("NIXL makes no backend", "nixl-backend", "fail", "nixlBackendError: NIXL_ERR_BACKEND",
          lambda node, _: node.engine_environment(
              backend='{"made": false, "error": "nixlBackendError: NIXL_ERR_BACKEND"}'), "boot"),
    Fault("low memlock of the engine", "memlock", "fail", "the engine's limit is 65536",
          lambda node, _: node.engine(memlock="65536")),
    Fault("low memlock of the unit", "memlock", "fail", "limit is 8388608",
          lambda node, _: node.units(memlock="8388608"), "image"),
    Fault("no huge pages", "huge-pages", "warn", "no huge pages",
          lambda node, _: node.write("proc/meminfo", "HugePages_Total: 0\nHugepagesize: 2048 kB")),
    Fault("driver of another version loaded", "gpu-driver", "fail", "595.64 is loaded",
          lambda node, _: node.write("sys/module/nvidia/version", "595.64\n")),
    Fault("driver updated", "gpu-driver", "fail", "the image was built with 595.91.07",
          lambda node, _: node.modules(nvidia="600.1"), "image"),
    Fault("peermem missing, DMA-BUF there", "gpu-direct", "warn", "no peermem module",
          lambda node, _: node.write("proc/modules", "efa 139264 16 - Live 0x0\n")),
    Fault("peermem missing, closed driver", "gpu-direct", "fail", "neither DMA-BUF",
          _old_driver_without_peermem),
    Fault("no gdrcopy", "gdrcopy", "warn", "no /dev/gdrdrv",
          lambda node, _: node.remove("dev/gdrdrv")),
    Fault("GPU lost", "gpus", "fail", "7 of 8 GPUs answer",
          lambda node, _: node.gpus(7, after="echo 'Unable to determine the device handle for "
                                             "GPU0000:9A:00.0: GPU is lost.'; exit 15")),
    Fault("uncorrected memory fault", "gpus", "fail", "GPU 3: 2 uncorrected",
          lambda node, _: node.gpus(8, ecc="2")),
    Fault("memory repair pending", "gpus", "fail", "00000000:03:00.0: row remapping pending Yes",
          lambda node, _: node.gpus(8, pending="Yes")),
    Fault("NVLink down", "nvlink", "fail", "of 18 NVLinks are up: GPU 0: 17", _nvlink),
    Fault("no fabric manager", "nvlink", "fail", "nvidia-fabricmanager is failed",
          lambda node, _: node.units(manager="failed")),
    Fault("clock off", "clock", "fail", "7.250 s off",
          lambda node, _: node.clock("-7.25")),
    Fault("clock not kept", "clock", "fail", "not synchronised",
          lambda node, _: node.clock(leap="Not synchronised")),
    Fault("disk full", "disk", "fail", "2 GiB free", lambda node, _: node.free(2 * _GIB)),
    Fault("no room for the model", "disk", "warn", "the model is not there yet", _model_gone,
          "boot"),
    Fault("port taken", "ports", "fail", "something listens at side channel 5600",
          lambda node, _: node.listen(22, 5600), "boot"),
    Fault("engine does not listen", "ports", "fail", "nothing listens at serving 8000",
          lambda node, _: node.listen(22, 5600)),
    Fault("side channel on localhost", "ports", "fail", "only this node can reach",
          lambda node, _: node.listen(8000, 5600, address="0100007F")),
    Fault("vLLM updated", "vllm", "fail", f"the image was built with {VLLM}",
          lambda node, _: node.engine_environment(engine="0.34.0"), "image"),
    Fault("older vLLM still runs", "vllm", "fail", f"vLLM 0.32.0 runs, {VLLM} is installed",
          lambda _, engine: setattr(engine, "version", "0.32.0")),
    Fault("no engine runs", "generation", "fail", "ff00 runs, ab12 is deployed",
          lambda node, _: node.status(generation="ff00")),
    Fault("engine with UCX", "connector", "fail", '"backends":["UCX"]',
          lambda node, _: _argv(node, '["LIBFABRIC"]', '["UCX"]')),
    Fault("other block size", "connector", "fail", "--block-size 16, not 128",
          lambda node, _: _argv(node, "128", "16")),
    Fault("wrong seed", "hash-seed", "fail", "PYTHONHASHSEED is 7",
          lambda node, _: node.engine(env={"PYTHONHASHSEED": "7"})),
    Fault("engine may take TCP", "transport", "fail", "FI_PROVIDER is not set",
          lambda node, _: node.engine(env={"FI_PROVIDER": ""})),
    Fault("plugin not loaded", "transport", "fail", "none of the engine's 2 processes",
          lambda node, _: node.engine(plugin="libplugin_UCX.so")),
    Fault("peer out of reach", "peers", "fail", "1 of 1 peers", lambda *_: None,
          asks=_silent_peer),
    Fault("transfers fail", "transfers", "fail", "3 failed",
          partial(_samples, "vllm:nixl_num_failed_transfers_total", 3.0)),
    Fault("not disaggregated", "transfers", "fail", "computes every prompt itself", _NO_READS),
    Fault("read after the lease", "transfers", "warn", "after their blocks were freed",
          partial(_samples, "vllm:nixl_num_notifications_after_expiry_total", 1.0)),
    Fault("EFA blocked between nodes", "efa-errors", "warn", "unresponsive_remote_events 12",
          lambda node, _: node.write("sys/class/infiniband/rdmap79s0/ports/1/hw_counters/"
                                     "unresponsive_remote_events", "12\n")),
    Fault("engine on TCP", "traffic", "fail", "did not come over EFA",
          lambda node, _: node.count(0, 0)),
    Fault("no traffic", "traffic", "warn", "no traffic, so nothing is proven",
          _no_traffic),
    Fault("one device carries all", "rails", "warn", "1 of 16 devices carried KV",
          lambda node, _: node.count(9 * _GIB, 9 * _GIB, devices=1)),
)  # fmt: skip
"""In the order of the checks."""
