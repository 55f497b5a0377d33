"""KV bytes by vLLM's count beside bytes by the EFA devices' count, so that TCP is caught.

Which counters belong together: a transfer is an RDMA read. Its reader, which vLLM counts
(`nixl_bytes_transferred`, in bytes, of all ranks), receives; the owner of the blocks, which
vLLM does not count, transmits. So of one node vLLM's bytes go with its EFA's rx_bytes; of a
fleet the sum of vLLM's goes with the sum of tx_bytes as well. The EFA counters are totals
since the driver was loaded, vLLM's since the engine began.

The window: vLLM counts a transfer when it has ended, EFA while it runs. So EFA's window
begins LEAD_S earlier and ends last: it holds every transfer that vLLM's window holds.
"""

import time
from collections.abc import Callable

from runtime.contract.doctor import TrafficReading
from runtime.engine_api import NIXL_BYTES, parse_metrics
from runtime.launch.doctor.check import Facts, File, Finding, Look, Window, failed, passed, warned
from runtime.launch.doctor.efa import COUNTERS
from runtime.launch.machine import Machine
from runtime.launch.node_report import get_text

LEAD_S = 1.0
"""Longer than a transfer takes."""
MOST_AHEAD_S = 120.0
"""Of a window's begin: a deployment's doctor names one 20 s ahead, by its own clock."""
MOST_OVER = 0.25
"""Of vLLM's bytes: headers, transfers under way at the window's ends, NIXL's own messages."""
LEAST_BYTES = 16 * 2**20
"""Below, NIXL's own messages outweigh the KV."""
_OTHERS_SHARE = 0.02
"""Of what this node sends: what its readers' requests add to its rx_bytes, at most."""
_MOVED_SHARE = 0.1
"""Of an even share: a device below it carries messages, not KV."""
_METRICS_S = 3.0
_MiB = 2**20

Counters = dict[str, tuple[int, int]]
"""(tx_bytes, rx_bytes) by EFA device."""


def counters(machine: Machine) -> Counters:
    """Of all EFA devices that tell them."""
    found: Counters = {}
    for name in machine.efa_devices():
        folder = COUNTERS.format(name)
        texts = [machine.text(f"{folder}/{each}") for each in ("tx_bytes", "rx_bytes")]
        if all(text is not None and text.isdecimal() for text in texts):
            found[name] = (int(texts[0] or 0), int(texts[1] or 0))
    return found


def watch(
    facts: Facts,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> File[TrafficReading]:
    """Read the counters, in a window or since their begin.

    Args:
        facts: of the node; its window says when.
        sleep, now: the real ones, but in tests.
    """
    status, window = facts.status.value, facts.window
    if status is None:
        return File(problem=f"no engine runs: {facts.status.problem}")
    if window is None:
        return _reading(_nixl_bytes(status.url), 0, counters(facts.machine), {}, None)
    ahead_s = 0.0 if window.at_unix_s is None else window.at_unix_s - now()
    if ahead_s > MOST_AHEAD_S:
        told = f"the window begins in {ahead_s:.0f} s, at most {MOST_AHEAD_S:.0f} s are waited for"
        return File(problem=f"{told}: see `clock`")
    late_s = _wait(window, sleep, now)
    if late_s > 0:
        return File(problem=f"asked {late_s:.1f} s after the window's begin")
    before = counters(facts.machine)
    sleep(LEAD_S)
    first = _nixl_bytes(status.url)
    sleep(window.length_s)
    last = _nixl_bytes(status.url)
    return _reading(last, first, counters(facts.machine), before, window.length_s)


def _wait(window: Window, sleep: Callable[[float], None], now: Callable[[], float]) -> float:
    """Until EFA's window begins; returns by how many seconds that is over."""
    if window.at_unix_s is None:
        return 0.0
    left_s = window.at_unix_s - LEAD_S - now()
    if left_s > 0:
        sleep(left_s)
    return max(0.0, -left_s)


def _nixl_bytes(url: str) -> int | None:
    page = get_text(url, "/metrics", _METRICS_S)
    return None if page is None else int(parse_metrics(page, (NIXL_BYTES,))[NIXL_BYTES])


def _reading(
    last: int | None, first: int | None, after: Counters, before: Counters, window_s: float | None
) -> File[TrafficReading]:
    if last is None or first is None:
        return File(problem="the engine does not answer /metrics")
    moved = {
        name: (tx - before.get(name, (0, 0))[0], rx - before.get(name, (0, 0))[1])
        for name, (tx, rx) in after.items()
    }
    if last < first or any(min(both) < 0 for both in moved.values()) or set(before) - set(after):
        return File(problem="counters began anew in the window: engine or driver was restarted")
    total = sum(map(sum, moved.values()))
    least = _MOVED_SHARE * total / len(moved) if moved else 0
    return File(
        TrafficReading(
            window_s=window_s,
            nixl_bytes=last - first,
            efa_tx_bytes=sum(tx for tx, _ in moved.values()),
            efa_rx_bytes=sum(rx for _, rx in moved.values()),
            moved_devices=sum(0 < tx + rx >= least for tx, rx in moved.values()),
        )
    )


def shown(reading: TrafficReading) -> str:
    """The reading in MiB."""
    when = "since their begin" if reading.window_s is None else f"in {reading.window_s:g} s"
    return (
        f"{when}: vLLM read {reading.nixl_bytes / _MiB:.1f} MiB, EFA received "
        f"{reading.efa_rx_bytes / _MiB:.1f} MiB and sent {reading.efa_tx_bytes / _MiB:.1f} MiB"
    )


def traffic(look: Look) -> Finding:
    """Whether EFA received what vLLM read, so that it did not come over TCP."""
    found = look.facts.traffic(look.left_s)
    if found.value is None:
        return failed(found.problem, "see `generation` and `ports`; then ask again")
    return judge(found.value)


def judge(reading: TrafficReading) -> Finding:
    """A node's reading, as pass, warn or fail."""
    told, read, received = shown(reading), reading.nixl_bytes, reading.efa_rx_bytes
    if read == 0 and reading.efa_tx_bytes >= LEAST_BYTES:
        return passed(f"{told}: this node is read from, over EFA")
    if read == 0:
        return warned(
            f"{told}: no traffic, so nothing is proven",
            "send some turns through the router, with --window-s 10 meanwhile",
        )
    if received < read:
        return failed(
            f"{told}: the KV did not come over EFA",
            "see `transport`, `fi-info` and `nixl-backend`; what is left is TCP",
        )
    if reading.window_s is None:
        return passed(f"{told}: at least what vLLM read; --window-s 10 holds it against more")
    others = _OTHERS_SHARE * reading.efa_tx_bytes
    if read >= LEAST_BYTES and received > (1 + MOST_OVER) * read + others:
        return warned(
            f"{told}: {received / read - 1:+.0%}, at most {MOST_OVER:+.0%}",
            "a longer --window-s; see `efa-errors`, and whether other programs use EFA",
        )
    return passed(f"{told}: {received / read - 1:+.1%}")


def rails(look: Look) -> Finding:
    """Whether the KV was spread over all EFA devices of the GPUs that the engine uses."""
    found, spec, row = look.facts.traffic(look.left_s), look.facts.spec.value, look.facts.instance
    if found.value is None:
        return failed(found.problem, "see the finding of `traffic`")
    reading = found.value
    there = len(look.machine.efa_devices())
    total = reading.efa_tx_bytes + reading.efa_rx_bytes
    if total < LEAST_BYTES:
        return passed("too little went over EFA to tell: see `traffic`")
    used = spec.serving.tensor_parallel_size if spec else 0
    wanted = max(1, there * used // row.gpus) if row and used else there
    told = f"{reading.moved_devices} of {there} devices carried KV"
    if reading.moved_devices < wanted:
        return warned(
            f"{told}, {wanted} serve the engine's GPUs",
            "NIXL maps devices to GPUs by hwloc's topology: see `loader` and the engine's log",
        )
    return passed(told)
