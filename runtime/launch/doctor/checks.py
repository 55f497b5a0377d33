"""All checks, in the order in which they are shown."""

from typing import get_args

from runtime.contract.doctor import Stage
from runtime.contract.status import NODE_UNIT
from runtime.launch.doctor import efa, engine, gpu, host, libraries, traffic
from runtime.launch.doctor.check import Check

_ALL: tuple[Stage, ...] = get_args(Stage)
_NODE: tuple[Stage, ...] = ("boot", "live")
_LIVE: tuple[Stage, ...] = ("live",)

_EFA = "install the EFA userspace: `turnback image build`"
_GPU = "see `dmesg | grep -i -e nvrm -e xid`; reboot, or replace the node"
_HOST = "see the node's journal"
_IMAGE = "the engine environment is not whole: `turnback image build`"
_ENGINE = f"journalctl -u {NODE_UNIT}"

CHECKS: tuple[Check, ...] = (
    Check("image-file", "the image fits the spec", _ALL, 1, host.image_file, _HOST),
    Check("spec", "the node's spec can be read", _NODE, 1, host.spec, _HOST),
    Check("boot", "boot came to its end", _NODE, 1, host.boot, _HOST),
    Check(
        "efa-driver",
        "EFA's kernel module is the kernel's, and loaded",
        _ALL,
        5,
        efa.driver,
        _EFA,
        of="efa",
    ),
    Check("efa-devices", "all EFA devices are up", _NODE, 5, efa.devices, _EFA, of="efa"),
    Check("verbs-devices", "verbs devices are EFA's", _NODE, 5, efa.verbs_devices, _EFA, of="efa"),
    Check("fi-info", "libfabric offers efa on all devices", _NODE, 8, efa.provider, _EFA, of="efa"),
    Check("libfabric", "libfabric is the image's", _ALL, 5, libraries.libfabric, _EFA, of="efa"),
    Check("loader", "EFA's libraries are found", _ALL, 5, libraries.loader, _EFA, of="efa"),
    Check("rdma-core", "rdma-core is of one build", _ALL, 5, libraries.rdma_core, _EFA, of="efa"),
    Check(
        "efa-installer",
        "EFA's installer is the image's",
        _ALL,
        5,
        libraries.efa_installer,
        _EFA,
        of="efa",
    ),
    Check("nixl-plugin", "NIXL's plugin is whole", _ALL, 5, libraries.nixl_plugin, _EFA, of="efa"),
    Check(
        "nixl-backend",
        "NIXL makes LIBFABRIC",
        ("boot",),
        14,
        libraries.nixl_backend,
        "see `fi-info`; a backend that hangs waits for a device",
        of="efa",
    ),
    Check("memlock", "memory may be locked", _ALL, 5, host.memlock, _HOST, of="efa"),
    Check("huge-pages", "huge pages are reserved", _ALL, 5, host.huge_pages, _HOST, of="efa"),
    Check("gpu-driver", "NVIDIA's driver is the image's", _ALL, 5, gpu.driver, _GPU, of="gpu"),
    Check("gpu-direct", "EFA reaches GPU memory", _ALL, 5, gpu.gpu_direct, _GPU, of="gpu"),
    Check("gdrcopy", "gdrcopy is there", _NODE, 5, gpu.gdrcopy, _GPU, of="gpu"),
    Check("gpus", "all GPUs are well", _NODE, 10, gpu.gpus, _GPU, of="gpu"),
    Check("nvlink", "all NVLinks are up", _NODE, 10, gpu.nvlink, _GPU, of="gpu"),
    Check("clock", "the clock is right", _NODE, 5, host.clock, "install and start chrony"),
    Check("disk", "there is room on the disk", _NODE, 5, host.disk, _HOST),
    Check("ports", "ports are free, then listened at", _NODE, 5, host.ports, _HOST),
    Check("vllm", "vLLM is the image's", _ALL, 10, libraries.vllm, _IMAGE),
    Check("generation", "the deployed generation runs", _LIVE, 5, engine.generation, _ENGINE),
    Check("connector", "the connector's settings", _LIVE, 5, engine.connector, _ENGINE),
    Check("hash-seed", "the seed of block hashes", _LIVE, 5, engine.hash_seed, _ENGINE),
    Check(
        "transport", "the engine can only use EFA", _LIVE, 10, engine.transport, _ENGINE, of="efa"
    ),
    Check("peers", "side channels of peers", _LIVE, 8, engine.peers, _ENGINE),
    Check("transfers", "KV moves", _LIVE, 8, engine.transfers, _ENGINE),
    Check("efa-errors", "EFA's error counters", _LIVE, 5, efa.errors, _EFA, of="efa"),
    Check("traffic", "the KV moves over EFA", _LIVE, 10, traffic.traffic, _ENGINE, of="efa"),
    Check("rails", "all EFA devices carry KV", _LIVE, 10, traffic.rails, _ENGINE, of="efa"),
)


def checks_of(stage: Stage) -> list[Check]:
    """Those that are asked in a stage."""
    return [each for each in CHECKS if stage in each.stages]
