"""The node's own files, limits, clock, disk and ports."""

import time
from ipaddress import ip_address
from pathlib import Path

from runtime.contract.model import MODELS
from runtime.contract.node import OWN_ADDRESS
from runtime.contract.status import NODE_ENVIRONMENT, NODE_UNIT
from runtime.launch.doctor import parse
from runtime.launch.doctor.check import Finding, Look, failed, passed, warned
from runtime.launch.doctor.processes import engine_process

MOST_OFF_S = 1.0
"""Handles and their ends are compared between nodes; the router leaves them 10 s."""
LEAST_FREE_BYTES = 10 * 2**30
"""Beside the model, for logs and compiled kernels."""
_FEW_STARTS, _RECENT_S = 2, 3600.0
"""A rollout starts an engine again as well; more starts, and lately, are a loop."""
_UNLIMITED = ("infinity", "unlimited")
_BYTES_IN_GIB = 2**30


def image_file(look: Look) -> Finding:
    """Whether the image says of itself what the spec wants."""
    image, spec = look.facts.image, look.facts.spec.value
    if image.value is None:
        return failed(image.problem, "start the node from an image of `turnback image build`")
    if spec is not None and spec.image is not None:
        problem = image.value.mismatch(spec.image)
        if problem:
            return failed(problem, "deploy with the AMI of the `turnback image build` that fits")
    if image.value.kind != "node" and look.facts.stage != "image":
        return failed(f"the image is for {image.value.kind}s", "use the node image")
    told = f"built {image.value.built_at}"
    return passed(f"{told}, vLLM {image.value.engine}" if image.value.engine else told)


def spec(look: Look) -> Finding:
    """Whether the node's parameter can be read, by this kit."""
    found = look.facts.spec
    if found.value is None:
        return failed(
            found.problem,
            f"see {NODE_ENVIRONMENT}, the instance role's ssm:GetParameter and the route to "
            "SSM; a spec of a newer kit: `turnback rollout`",
        )
    return passed(f"{found.value.role}, generation {found.value.generation or 'unnamed'}")


def boot(look: Look) -> Finding:
    """How far boot has come, or why it stopped."""
    report = look.facts.boot.value
    if report is None:
        if look.facts.stage == "boot":
            return passed("the node has not booted yet")
        return warned(look.facts.boot.problem, f"systemctl status {NODE_UNIT}")
    told = f"{report.state} at {report.step}"
    if report.state == "failed":
        got = f", got {report.got}" if report.got else ""
        return failed(f"{told}: {report.what}{got}", report.fix or f"journalctl -u {NODE_UNIT}")
    if report.state == "booting" and look.facts.stage == "live":
        return warned(told, f"wait; journalctl -fu {NODE_UNIT} follows it")
    if report.state == "draining":
        return warned(told, "nothing: the node ends when its requests have")
    told += f"; the engine was started {report.starts} times" if report.starts > 1 else ""
    if report.starts > _FEW_STARTS and time.time() - report.since_unix_s < _RECENT_S:
        return warned(
            f"{told}, at last {(time.time() - report.since_unix_s) / 60:.0f} min ago",
            f"journalctl -u {NODE_UNIT}: why it ended, where that was no rollout",
        )
    return passed(told)


def memlock(look: Look) -> Finding:
    """Whether the engine may lock memory without limit; EFA's queues and buffers are locked.

    Source: 64 KiB gives EFA's error 4112 (awsome-distributed-training issue 647).
    """
    process = engine_process(look.machine) if look.facts.stage == "live" else None
    if process is not None:
        limit = parse.memlock(look.machine.text(f"/proc/{process.pid}/limits") or "")
        whose = "the engine's"
    else:
        ran = look.run(("systemctl", "show", NODE_UNIT, "--property=LimitMEMLOCK"))
        limit = parse.shell_variables(ran.out).get("LimitMEMLOCK", "")
        whose = f"{NODE_UNIT}'s"
    if limit in _UNLIMITED:
        return passed(f"{whose} limit is {limit}")
    return failed(
        f"{whose} limit is {limit or 'unknown'}",
        f"LimitMEMLOCK=infinity in {NODE_UNIT}; in a container --ulimit memlock=-1:-1",
    )


def huge_pages(look: Look) -> Finding:
    """Whether huge pages are reserved; EFA's pools use them.

    Source: registering more than 95 GB of host memory in 4 KiB pages fails
    (libfabric issue 9739).
    """
    told = parse.meminfo(look.machine.text("/proc/meminfo") or "")
    total, size_kb = told.get("HugePages_Total", 0), told.get("Hugepagesize", 0)
    if total and size_kb:
        return passed(f"{total} pages of {size_kb} kB, {told.get('HugePages_Free', 0)} free")
    return warned(
        "no huge pages are reserved",
        "vm.nr_hugepages in /etc/sysctl.d, as the EFA installer sets it; then reboot",
    )


def clock(look: Look) -> Finding:
    """Whether the clock is kept, and right to a second."""
    if not look.has("chronyc"):
        return _clock_by_systemd(look)
    ran = look.run(("chronyc", "-c", "tracking"))
    told = parse.chrony_tracking(ran.out)
    fix = "systemctl restart chrony; chronyc makestep; Amazon's clock is 169.254.169.123"
    if told is None:
        return failed(f"chronyc does not tell: {ran.err.strip() or ran.out.strip() or '-'}", fix)
    off_s, leap = told
    if leap == "Not synchronised":
        return failed("the clock is not synchronised", fix)
    if off_s > MOST_OFF_S:
        return failed(f"{off_s:.3f} s off, at most {MOST_OFF_S:g} s", fix)
    return passed(f"{off_s * 1000:.3f} ms off")


def _clock_by_systemd(look: Look) -> Finding:
    ran = look.run(("timedatectl", "show", "--property=NTPSynchronized"))
    if parse.shell_variables(ran.out).get("NTPSynchronized") == "yes":
        return passed("kept by systemd-timesyncd, which does not tell how far it is off")
    return failed("no chrony, and systemd does not keep the clock", "install and start chrony")


def disk(look: Look) -> Finding:
    """Whether there is room beside the model, or for it."""
    spec = look.facts.spec.value
    if spec is None:
        return warned("where the model lies is not known", "see the finding of `spec`")
    model = spec.serving.model
    is_there = look.machine.names(model) != []
    folder = next(
        (each for each in (model, *model.parents) if look.machine.at(each).is_dir()),
        Path("/"),
    )
    ran = look.run(("df", "--block-size=1", "--output=avail", look.machine.at(folder)))
    free = next((int(word) for word in ran.out.split() if word.isdecimal()), None)
    if free is None:
        return failed(f"df does not tell: {ran.err.strip() or '-'}", "see `df` on the node")
    told = f"{free / _BYTES_IN_GIB:.0f} GiB free at {folder}, the model is"
    told += " there" if is_there else " not there yet"
    row = look.facts.instance
    largest = 0 if is_there or not row else row.gpus * (row.gpu_memory_mib or 0) * 2**20
    if free < LEAST_FREE_BYTES:
        return failed(told, f"free room, or put {MODELS} on the instance store (its unit's log)")
    if free < largest:
        return warned(told, f"the largest model for {row.name if row else ''} would not fit")
    return passed(told)


def ports(look: Look) -> Finding:
    """Whether the ports are free before the engine starts, and listened at afterwards."""
    spec = look.facts.spec.value
    if spec is None:
        return warned("which ports is not known", "see the finding of `spec`")
    tables = (look.machine.text("/proc/net/tcp"), look.machine.text("/proc/net/tcp6"))
    taken = parse.listeners(*tables)
    wanted = {"serving": spec.serving.port, "side channel": spec.side_channel_port}
    if look.facts.stage == "boot":
        busy = [f"{name} {port}" for name, port in wanted.items() if port in taken]
        if busy:
            return failed(
                f"something listens at {', '.join(busy)}",
                "ss -tlnp names it; where that is the engine, ask for --stage live",
            )
        return passed(", ".join(f"{name} {port} is free" for name, port in wanted.items()))
    silent = [f"{name} {port}" for name, port in wanted.items() if port not in taken]
    if silent:
        return failed(
            f"nothing listens at {', '.join(silent)}", f"see `boot` and journalctl -u {NODE_UNIT}"
        )
    inner = [
        f"{name} {port}"
        for name, port in wanted.items()
        if all(each.is_loopback for each in taken[port])
    ]
    if inner and not _is_loopback(spec.host):
        return failed(
            f"only this node can reach {', '.join(inner)}: it listens at 127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_HOST and --host must be the node's private address",
        )
    return passed(", ".join(f"{name} {port} listens" for name, port in wanted.items()))


def _is_loopback(host: str) -> bool:
    try:
        return host != OWN_ADDRESS and ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
