"""EFA: kernel module, devices, libfabric's provider, and what the devices count as errors."""

from runtime.launch.doctor import parse
from runtime.launch.doctor.check import Finding, Look, failed, passed, warned

_VENDOR = "0x1d0f"
_EFA_FUNCTIONS = "0xefa"
"""PCI device ids of EFA begin so: 0xefa2 on p5en."""
_ERRORS = (
    *("rdma_read_wr_err", "rdma_write_wr_err", "reg_mr_err", "alloc_pd_err", "create_qp_err"),
    *("create_cq_err", "unresponsive_remote_events", "impaired_remote_conn_events"),
)
_REBOOT = "reboot; where it stays so, build the image again with the EFA installer as its last step"


def driver(look: Look) -> Finding:
    """Whether EFA's kernel module is built for this kernel, and the loaded one is that one."""
    installed = look.run(("modinfo", "-F", "version", "efa"))
    kernel = look.machine.text("/proc/sys/kernel/osrelease") or "unknown"
    told = installed.out.strip()
    if not installed.is_good or not told:
        # The kernel's own module has no version.
        said = installed.err.strip() or "it has the kernel's own, not the EFA installer's"
        return failed(
            f"no efa module for kernel {kernel}: {said}",
            "build the image again: the EFA installer runs after the last kernel update",
        )
    loaded = look.machine.text("/sys/module/efa/version")
    if look.facts.stage == "image":
        return passed(f"efa {told} for kernel {kernel}")
    if loaded is None:
        return failed(
            f"efa {told} is installed and not loaded", "modprobe efa; see `dmesg | grep efa`"
        )
    if loaded != told:
        return failed(f"efa {loaded} is loaded, {told} is installed", _REBOOT)
    return passed(f"efa {told} for kernel {kernel}")


def devices(look: Look) -> Finding:
    """Whether all EFA devices of the spec are there; names those that are not."""
    found = look.machine.efa_devices()
    wanted = _wanted_devices(look)
    if wanted is None:
        return warned(f"{len(found)} EFA devices; how many there must be is not known", _NO_SPEC)
    if len(found) >= wanted:
        return passed(f"{len(found)} of {wanted}: {found[0]} .. {found[-1]}")
    return failed(
        f"{len(found)} of {wanted} EFA devices; {_missing_functions(look, found)}",
        "P5en brings them up late: wait 15 s and ask again; then reboot, then replace the node",
    )


_NO_SPEC = "see the finding of `spec`"


def _wanted_devices(look: Look) -> int | None:
    spec, row = look.facts.spec.value, look.facts.instance
    if spec is not None and spec.transport is not None:
        return spec.transport.efa_devices
    return row.efa_interfaces if row else None


def _missing_functions(look: Look, found: list[str]) -> str:
    """Which PCI functions make no device, or that the bus has too few of them."""
    machine = look.machine
    bound = {
        link.name
        for name in found
        if (link := machine.link(f"/sys/class/infiniband/{name}/device")) is not None
    }
    functions = [
        name
        for name in machine.names("/sys/bus/pci/devices")
        if machine.text(f"/sys/bus/pci/devices/{name}/vendor") == _VENDOR
        and (machine.text(f"/sys/bus/pci/devices/{name}/device") or "").startswith(_EFA_FUNCTIONS)
    ]
    idle = [name for name in functions if name not in bound]
    if not idle:
        return f"the PCI bus has {len(functions)}: an interface is not attached"
    drivers = (machine.link(f"/sys/bus/pci/devices/{name}/driver") for name in idle)
    shown = (
        f"{name} (driver {link.name if link else 'none'})"
        for name, link in zip(idle, drivers, strict=True)
    )
    return f"no device from PCI {', '.join(shown)}"


def verbs_devices(look: Look) -> Finding:
    """Whether verbs devices of other drivers stand beside EFA's, which can kill the provider.

    Source: aws-do-eks pull request 63, libfabric issue 12708.
    """
    ours = set(look.machine.efa_devices())
    others = [each for each in look.machine.names("/sys/class/infiniband") if each not in ours]
    if others:
        return warned(
            f"verbs devices of other drivers: {', '.join(others)}",
            "give the engine only the uverbs devices whose driver is efa",
        )
    return passed(f"{len(ours)} verbs devices, all of EFA")


def provider(look: Look) -> Finding:
    """Whether libfabric offers efa on every device."""
    ran = look.run(("fi_info", "-p", "efa", "-t", "FI_EP_RDM"))
    domains = parse.fi_info_domains(ran.out).get("efa", set())
    if not domains:
        others = parse.fi_info_providers(look.run(("fi_info", "-l")).out)
        told = ran.err.strip() or f"exit code {ran.code}"
        return failed(
            f"no efa ({told}); libfabric has {', '.join(others) or 'no provider'}",
            "see `efa-devices`, `loader` and `rdma-core`; without efa NIXL would take TCP",
        )
    missing = sorted(set(look.machine.efa_devices()) - domains)
    if missing:
        return failed(
            f"efa on {len(domains)} devices, not on {', '.join(missing)}",
            f"see `dmesg | grep efa`; {_REBOOT}",
        )
    return passed(f"efa on {len(domains)} devices")


def errors(look: Look) -> Finding:
    """Whether devices have counted errors since the driver was loaded."""
    counted = {
        f"{device}/{name}": int(text)
        for device in look.machine.efa_devices()
        for name in _ERRORS
        if (text := look.machine.text(f"{COUNTERS.format(device)}/{name}")) and text.isdecimal()
    }
    some = {name: count for name, count in counted.items() if count}
    if not some:
        return passed(f"{len(counted)} counters at 0")
    return warned(
        ", ".join(f"{name} {count}" for name, count in sorted(some.items())),
        "unresponsive_remote_events: the security group of the EFA interfaces must allow all "
        "traffic from and to itself; reg_mr_err: see `memlock` and `huge-pages`",
    )


COUNTERS = "/sys/class/infiniband/{}/ports/1/hw_counters"
