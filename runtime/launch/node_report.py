"""Prints what runs on this machine, as one line of JSON.

SSM runs it on nodes and routers (`turnback rollout`, `turnback scale down --when-idle`), so
that nobody needs a way to their ports.
"""

import http.client
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from runtime.contract.explain import explain
from runtime.contract.status import (
    NODE_UNIT,
    ROUTER_UNIT,
    STATUS_FILE,
    NodeReport,
    NodeStatus,
)
from runtime.engine_api import REQUESTS_RUNNING, REQUESTS_WAITING, samples
from runtime.errors import StartFailed, TurnbackError

_TIMEOUT_S = 5.0
_IDLE = "turnback_idle_seconds"
_RUNNING = {
    "prefill": (REQUESTS_RUNNING, REQUESTS_WAITING),
    "decode": (REQUESTS_RUNNING, REQUESTS_WAITING),
    "router": ("turnback_turns_running", "turnback_turns_waiting"),
}
_HEALTH = {"prefill": "/health", "decode": "/health", "router": "/health/live"}


def _unit_is_active() -> bool:
    """Whether systemd runs an engine or a router here."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return False
    argv = [systemctl, "is-active", "--quiet", NODE_UNIT, ROUTER_UNIT]
    return subprocess.run(argv, check=False, timeout=_TIMEOUT_S).returncode == 0


def node_report(
    path: Path = STATUS_FILE, is_active: Callable[[], bool] = _unit_is_active
) -> NodeReport:
    """What runs here.

    Args:
        path: of the status.
        is_active: whether a process runs, whatever the status says.

    Raises:
        BadInput: the status cannot be read.
        StartFailed: a process that runs does not tell what it does.
    """
    try:
        status = NodeStatus.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        if is_active():
            # Told as "nothing runs", it would be restarted under its requests.
            raise _nameless(path) from None
        return NodeReport()
    except ValidationError as error:
        raise explain(error, str(path)) from error
    told = {
        "generation": status.generation,
        "ttl_s": status.decoder_kv_blocks_ttl_s,
        "lease_s": status.kv_lease_duration_s,
    }
    if get_text(status.url, _HEALTH[status.role]) is None:
        return NodeReport.model_validate(told)
    page = get_text(status.url, "/metrics") or ""
    running = [_sum(page, name) for name in _RUNNING[status.role]]
    idle_s = _sum(page, _IDLE)
    if None in running or (status.role == "router" and idle_s is None):
        raise _silent(status)
    return NodeReport.model_validate(
        told
        | {
            "is_ready": True,
            "running_requests": int(sum(each or 0 for each in running)),
            "idle_s": idle_s,
        }
    )


def get_text(url: str, path: str, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Text of a 200; None: none came. No proxy is asked: it is this machine."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        text = reply.read().decode("utf-8", "replace")
        return text if reply.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _sum(page: str, name: str) -> float | None:
    """Sum of a metric over its labels; None: it is not there."""
    values = [value for each, value in samples(page) if each == name]
    return sum(values) if values else None


def _nameless(path: Path) -> StartFailed:
    return StartFailed(
        "a process runs, and nothing tells what it was started with",
        got=f"no {path}",
        allowed=f"{NODE_UNIT} or {ROUTER_UNIT} with RuntimeDirectory=turnback and the file in it",
        fix="use an image of this kit; a unit that has just started writes it in a moment",
    )


def _silent(status: NodeStatus) -> StartFailed:
    return StartFailed(
        f"the {status.role} process does not tell what it does",
        got=f"no {' or '.join(_RUNNING[status.role])} from {status.url}/metrics",
        allowed="an engine or a router of this kit's versions",
        fix="see its log",
    )


def main() -> int:
    """Print the report; an error goes to stderr with its exit code."""
    try:
        sys.stdout.write(node_report().model_dump_json() + "\n")
    except TurnbackError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
