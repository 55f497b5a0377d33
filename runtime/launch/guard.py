"""Parent of one engine: when it ends, or its own parent does, nothing of the engine is left.

vLLM forks an engine core and workers that outlive a killed API server. This small process
stands between the supervisor and the engine: it adopts every orphaned descendant
(subreaper) and kills them all before it exits. Standard library only, run as a script:

    python guard.py PARENT_PID GRACE_S PROGRAM [ARGUMENT ...]

Exit code: the engine's own, or 128 plus the number of the signal that ended it.
Source: prctl(2), PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _children(pid: int) -> list[int]:
    """Direct children of a process; empty when it has just gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _kill_descendants() -> None:
    """SIGKILL until no child is left: killing one may hand its children to this process."""
    while children := _children(os.getpid()):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(_POLL_S)


def _die_with_this_process() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def guard(parent_pid: int, grace_s: float, argv: list[str]) -> int:
    """Run a program to its end and clean up behind it.

    Args:
        parent_pid: the supervisor; when it is gone the program is ended.
        grace_s: seconds between SIGTERM and SIGKILL.
        argv: the program and its arguments.
    """
    asked_to_stop: list[float] = []

    def on_signal(_signum: int, _frame: object) -> None:
        asked_to_stop.append(time.monotonic())

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, on_signal)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent_pid:
        return 128 + signal.SIGTERM  # the supervisor ended before the line above took hold
    program = subprocess.Popen(argv, preexec_fn=_die_with_this_process, stdin=subprocess.DEVNULL)
    told = False
    while program.poll() is None:
        if asked_to_stop and not told:
            program.terminate()
            told = True
        if asked_to_stop and time.monotonic() - asked_to_stop[0] > grace_s:
            program.kill()
        time.sleep(_POLL_S)
    _kill_descendants()
    code = program.returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
