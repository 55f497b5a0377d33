"""Child processes of the benchmark: started on one core, watched through /proc, ended by pid."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import orjson

from benchmarks.router.replies import MODEL

HOST = "127.0.0.1"
API_KEY = "a key of the benchmark"
_END_S = 15.0
_READY_S = 60.0
_ASK_S = 5.0
_POLL_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _CUTIME, _CSTIME = range(11, 15)  # fields after the command's name


class NotReady(RuntimeError):
    """A child ended or did not answer in time."""


@cache
def cores() -> tuple[int, int]:
    """The router's core and the core of all else; the same one where there is no other.

    They are those of the first call: later on this process itself keeps to one.
    """
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


@contextmanager
def started(
    argv: Sequence[str],
    *,
    core: int,
    log: Path,
    env: Mapping[str, str] | None = None,
    is_read: bool = False,
) -> Iterator["subprocess.Popen[str]"]:
    """A child on one core.

    Args:
        argv: command.
        core: the only one it may use; set before it starts, so that it counts one core.
        log: file for what it writes.
        env: its environment; None is this process's.
        is_read: its stdout is a pipe.
    """
    mine = os.sched_getaffinity(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        os.sched_setaffinity(0, {core})
        try:
            child = subprocess.Popen(
                argv,
                stdout=subprocess.PIPE if is_read else errors,
                stderr=errors,
                text=True,
                env=env,
            )
        finally:
            os.sched_setaffinity(0, mine)
        try:
            yield child
        finally:
            end(child)


def end(child: "subprocess.Popen[str]") -> None:
    """End a child: SIGTERM, and SIGKILL when that does not do it."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(_END_S)
    if child.stdout is not None:
        child.stdout.close()


def end_on_sigterm() -> None:
    """Leave through the context managers when this process is told to end."""

    def leave(signum: int, _frame: Any) -> NoReturn:
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, leave)


def get_json(port: int, path: str) -> Any:
    """GET a JSON page."""
    link = http.client.HTTPConnection(HOST, port, timeout=_ASK_S)
    try:
        link.request("GET", path)
        return orjson.loads(link.getresponse().read())
    finally:
        link.close()


def wait_until_serving(child: "subprocess.Popen[str]", port: int, name: str) -> None:
    """Poll with real requests until one is answered.

    Raises:
        NotReady: the child ended, or the time is over.
    """
    asked = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "ready?"}]}
    deadline_s = time.perf_counter() + _READY_S
    while time.perf_counter() < deadline_s:
        if child.poll() is not None:
            raise NotReady(f"{name} ended with {child.returncode}; see its log")
        link = http.client.HTTPConnection(HOST, port, timeout=_ASK_S)
        try:
            link.request(
                *("POST", "/v1/chat/completions", orjson.dumps(asked)),
                headers={"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"},
            )
            if link.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            link.close()
        time.sleep(_POLL_S)
    raise NotReady(f"{name} did not answer within {_READY_S:g} s; see its log")


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found, todo = [], [pid]
    while todo:
        at = todo.pop()
        found.append(at)
        for children in Path(f"/proc/{at}/task").glob("*/children"):
            try:
                todo += map(int, children.read_text().split())
            except OSError:
                continue  # the thread has just ended
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process, its threads and its children."""
    ticks = 0
    for at in tree(pid):
        try:
            fields = Path(f"/proc/{at}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended, and its parent has its time
        ticks += sum(int(fields[name]) for name in (_UTIME, _STIME, _CUTIME, _CSTIME))
    return ticks / _TICKS_PER_S


def busy_s(core: int) -> float:
    """CPU seconds that a core has spent on anything since the machine started."""
    with Path("/proc/stat").open() as lines:
        for line in lines:
            name, *ticks = line.split()
            if name == f"cpu{core}":
                user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, ticks)
                return (user + nice + system + irq + softirq) / _TICKS_PER_S
    raise NotReady(f"/proc/stat has no core {core}")


def rss_mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    kib = 0
    for at in tree(pid):
        try:
            status = Path(f"/proc/{at}/status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                kib += int(line.split()[1])
    return kib / 1024
