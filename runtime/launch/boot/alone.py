"""One boot of a node at a time: its files and its engine's ports are of one process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from runtime.contract.status import NODE_UNIT
from runtime.errors import BadInput
from runtime.launch.machine import Machine

LOCK = Path("/var/lib/turnback/serve.lock")
"""Held as long as the process lives; the file itself stays, and says nothing."""


@contextlib.contextmanager
def alone(machine: Machine) -> Iterator[None]:
    """Hold the node.

    A lock that cannot be made, as on a full disk, keeps no node from booting.

    Raises:
        BadInput: another process holds it.
    """
    path = machine.at(LOCK)
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(
                "another turnback serve runs on this node",
                got=f"{path} is held",
                allowed="one, as a rule that of the unit",
                fix=f"systemctl stop {NODE_UNIT} first",
            ) from error
        except OSError:
            pass
        yield
