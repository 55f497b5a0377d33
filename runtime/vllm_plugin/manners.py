"""Lets CPU engines share a machine: threads rest when there is nothing to do.

Without it each engine burns a core while idle, and two engines on two cores starve each
other for longer than a lease. GPU engines are left alone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed.device_communicators import shm_broadcast

_REST_US = 1000
_NAP_S = 100e-6


@contextmanager
def sharing_cores() -> Iterator[None]:
    """The worker half that is made in this block leaves its cores to others when idle."""
    cores = os.sched_getaffinity(0)
    nap_between_steps()
    with resting_progress_thread():
        yield
    # The stock worker moves the model's thread to the last core of its NUMA node
    # (nixl/base_worker.py), so that P and D of one machine share a core.
    os.sched_setaffinity(0, cores)


def nap_between_steps() -> None:
    """Workers of this process sleep a little where they would yield in a loop.

    A worker spins for a second after each step, and an engine that keeps blocks for a
    reader steps a thousand times a second: it would never leave its core to others.
    Source: vLLM 0.32 and 0.33, shm_broadcast.py `SpinCondition.wait`, scheduler.py
    `has_finished_requests`.
    """
    shm_broadcast.sched_yield = lambda: time.sleep(_NAP_S)


@contextmanager
def resting_progress_thread() -> Iterator[None]:
    """Agents made in this block have a progress thread that sleeps until there is work.

    NIXL's Python API has it spin (`pthrDelay = 0` in nixl/_api.py, NIXL 1.5).
    """
    import nixl._api

    bindings = nixl._api.nixlBind
    stock = bindings.nixlAgent

    def resting(name: str, config: Any) -> Any:
        config.pthrDelay = _REST_US
        return stock(name, config)

    bindings.nixlAgent = resting
    try:
        yield
    finally:
        bindings.nixlAgent = stock
