"""NVIDIA's driver, GPUs, NVLink, and how EFA reaches GPU memory."""

from runtime.launch.doctor import parse
from runtime.launch.doctor.check import Finding, Look, failed, passed, warned

_LEAST_DMABUF_KERNEL = (5, 12)
_PEERMEM = ("efa_nv_peermem", "nvidia_peermem")
_NVLINKS = {"p5": 18, "p6": 18, "p4": 12}
"""Links of each GPU, by the beginning of the type. Source: NVIDIA's data sheets of A100 (12),
H100, H200, B200 and B300 (18); types of other families have none."""
_QUERY_GPUS = ("nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total")
_QUERY_ROWS = (
    "nvidia-smi",
    "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure",
)
_CSV = ("--format=csv,noheader,nounits",)
_BUS_ID = r"[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f.]+"
_NONE = {"0", "No", "[N/A]", "N/A", "[Not Supported]"}
_REPLACE = "reboot; where it stays so, replace the node: `turnback rollout` starts another"


def driver(look: Look) -> Finding:
    """Whether the driver is the image's, and the loaded module is the installed one."""
    ran = look.run(("modinfo", "-F", "version", "nvidia"))
    installed = ran.out.strip()
    if not ran.is_good or not installed:
        return failed(
            f"no nvidia module for this kernel: {ran.err.strip()}",
            "build the image again: its driver must be built for its last kernel",
        )
    image = look.facts.image.value
    if image is not None and image.driver is not None and image.driver != installed:
        return failed(
            f"driver {installed}, the image was built with {image.driver}",
            "undo the update, or build the image again",
        )
    loaded = look.machine.text("/sys/module/nvidia/version")
    if look.facts.stage == "image":
        return passed(f"driver {installed} is installed")
    if loaded != installed:
        return failed(
            f"driver {loaded or 'none'} is loaded, {installed} is installed",
            "reboot; never update the driver of a running node",
        )
    return passed(f"driver {installed}")


def gpu_direct(look: Look) -> Finding:
    """Whether EFA can reach GPU memory: DMA-BUF, or a peermem module.

    Source: DMA-BUF wants kernel 5.12 and NVIDIA's open module; peermem is then not needed.
    """
    kernel = look.machine.text("/proc/sys/kernel/osrelease") or ""
    licence = look.run(("modinfo", "-F", "license", "nvidia")).out.strip()
    is_open = "GPL" in licence
    has_dmabuf = is_open and parse.version(kernel) >= _LEAST_DMABUF_KERNEL
    modules = {
        line.split(" ")[0] for line in (look.machine.text("/proc/modules") or "").split("\n")
    }
    peermem = [each for each in _PEERMEM if each in modules]
    told = f"kernel {kernel or 'unknown'}, {'open' if is_open else 'closed'} driver"
    if has_dmabuf and (peermem or look.facts.stage == "image"):
        return passed(f"DMA-BUF ({told}){', ' + peermem[0] if peermem else ''}")
    if has_dmabuf:
        return warned(
            f"DMA-BUF ({told}); no peermem module is loaded",
            "nothing, where traffic flows; else modprobe efa_nv_peermem",
        )
    if peermem:
        return passed(f"{peermem[0]}, no DMA-BUF ({told})")
    return failed(
        f"neither DMA-BUF ({told}) nor a peermem module",
        "use the open NVIDIA driver on kernel 5.12 or newer, or modprobe efa_nv_peermem",
    )


def gdrcopy(look: Look) -> Finding:
    """Whether gdrcopy's device is there; libfabric copies small messages with it."""
    if "gdrdrv" in look.machine.names("/dev"):
        return passed("/dev/gdrdrv")
    return warned("no /dev/gdrdrv", "modprobe gdrdrv; without it small copies go through CUDA")


def gpus(look: Look) -> Finding:
    """Whether all GPUs of the type answer, without memory faults."""
    ran = look.run((*_QUERY_GPUS, *_CSV))
    rows = parse.nvidia_csv(ran.out, 2)
    row = look.facts.instance
    wanted = row.gpus if row else None
    if not ran.is_good or not rows or (wanted is not None and len(rows) < wanted):
        said = "" if ran.is_good else f": {ran.err.strip() or ran.out.strip()}"
        return failed(
            f"{len(rows)} of {wanted or 'an unknown number of'} GPUs answer{said}",
            f"see `dmesg | grep -i xid`; {_REPLACE}",
        )
    bad = [
        f"GPU {index}: {ecc} uncorrected" for index, ecc in rows if ecc.isdecimal() and int(ecc) > 0
    ]
    remapped = parse.nvidia_csv(look.run((*_QUERY_ROWS, *_CSV)).out, 3, _BUS_ID)
    bad += [
        f"GPU {bus}: row remapping pending {pending}, failed {failure}"
        for bus, pending, failure in remapped
        if not {pending, failure} <= _NONE
    ]
    if bad:
        return failed("; ".join(bad), _REPLACE)
    if wanted is None:
        return warned(
            f"{len(rows)} GPUs; {look.facts.instance_name or 'this machine'} is in no table",
            "use a type of docs/settings.md",
        )
    return passed(f"{len(rows)} GPUs, no uncorrected memory faults")


def nvlink(look: Look) -> Finding:
    """Whether all NVLinks are up and the fabric manager runs, on types that have them."""
    name = look.facts.instance.name if look.facts.instance else look.facts.instance_name
    wanted = _NVLINKS.get(name[:2])
    if wanted is None or (look.facts.instance is not None and look.facts.instance.gpus == 1):
        return passed(f"{name or 'this type'} has no NVLink")
    manager = look.run(("systemctl", "is-active", "nvidia-fabricmanager.service")).out.strip()
    if manager != "active":
        return failed(
            f"nvidia-fabricmanager is {manager or 'unknown'}",
            "systemctl restart nvidia-fabricmanager; its version must be the driver's",
        )
    links = parse.nvlinks(look.run(("nvidia-smi", "nvlink", "--status")).out)
    few = [f"GPU {gpu}: {count}" for gpu, count in sorted(links.items()) if count < wanted]
    if few or not links:
        shown = ", ".join(few) or "nvidia-smi tells of none"
        return failed(f"of {wanted} NVLinks are up: {shown}", _REPLACE)
    return passed(f"{wanted} NVLinks on each of {len(links)} GPUs")
