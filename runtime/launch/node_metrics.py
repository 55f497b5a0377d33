"""What a machine's own process and devices count, as CloudWatch metrics of one minute.

Counters are told as what was added since the reading before, so that sums over machines and
minutes mean something; gauges as they are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from runtime.contract import node_metrics as names
from runtime.contract.operations import Metric
from runtime.contract.status import STATUS_FILE, MachineRole, NodeStatus
from runtime.engine_api import (
    KV_USAGE,
    NIXL_AFTER_EXPIRY,
    NIXL_BYTES,
    NIXL_EXPIRED,
    NIXL_FAILED,
    NIXL_READS,
    REQUESTS_WAITING,
)
from runtime.launch.doctor.traffic import counters
from runtime.launch.machine import Machine
from runtime.launch.node_report import get_text

Values = dict[Metric, float]

REFUSALS = ("no_record", "bad_record", "other_hash", "other_block_size", "spent", "malformed")
"""Reasons of a receipt that no client brings about; edited histories and the like are not here."""
_FIRST_TOKEN_STAGES = ("queue", "take", "prefill", "first_byte")
_TURN_STAGES = "turnback_turn_stage_seconds"


class Source(NamedTuple):
    """Where a metric comes from.

    Attributes:
        metric: in CloudWatch.
        samples: full names on /metrics, summed.
        labels: a sample counts where each of its labels has one of these values.
        scale: CloudWatch's unit in /metrics' unit.
        is_gauge: as it is, not what was added.
    """

    metric: Metric
    samples: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]] = {}
    scale: float = 1.0
    is_gauge: bool = False


def _tokens(metric: Metric, kind: str) -> Source:
    labels = {"role": ("prefill",), "kind": (kind,)}
    return Source(metric, ("turnback_leg_tokens_total",), labels)


ROUTER_SOURCES = (
    Source(names.TURNS, ("turnback_turns_total",)),
    Source(names.TURNS_FAILED, ("turnback_turns_total",), {"outcome": ("failed",)}),
    Source(names.FIRST_TOKENS, (f"{_TURN_STAGES}_count",), {"stage": ("first_byte",)}),
    Source(names.TTFT_SUM, (f"{_TURN_STAGES}_sum",), {"stage": _FIRST_TOKEN_STAGES}, 1000.0),
    _tokens(names.OFFERED_TOKENS, "offered"),
    _tokens(names.PULLED_TOKENS, "pulled"),
    _tokens(names.LOCAL_TOKENS, "local"),
    Source(names.REFUSED_HANDLES, ("turnback_legs_total",), {"reason": REFUSALS}),
    Source(names.CANARY_RUNS, ("turnback_canary_total",)),
    Source(names.CANARY_DIFFERENCES, ("turnback_canary_total",), {"outcome": ("different",)}),
    Source(names.REUSE_ON, ("turnback_reuse_on",), is_gauge=True),
)
ENGINE_SOURCES = (
    Source(names.EXPIRED, (NIXL_EXPIRED,)),
    Source(names.READS, (NIXL_READS,)),
    Source(names.READ_BYTES, (NIXL_BYTES,)),
    Source(names.FAILED_READS, (NIXL_FAILED, "vllm:nixl_num_failed_notifications_total")),
    Source(names.READS_AFTER_EXPIRY, (NIXL_AFTER_EXPIRY,)),
    Source(names.KV_USAGE, (KV_USAGE,), scale=100.0, is_gauge=True),
    Source(names.WAITING, (REQUESTS_WAITING,), is_gauge=True),
)
"""Source: vLLM 0.32 and 0.33, nixl's stats and v1/metrics/loggers.py."""


class Sample(NamedTuple):
    """One line of a Prometheus page."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples_of(page: str) -> list[Sample]:
    """All lines of a page.

    Raises:
        ValueError: it is no Prometheus page.
    """
    return [
        Sample(each.name, each.labels, each.value)
        for family in text_string_to_metric_families(page)
        for each in family.samples
    ]


def _sum(source: Source, samples: list[Sample]) -> float:
    found = (
        each.value
        for each in samples
        if each.name in source.samples
        and all(each.labels.get(key) in allowed for key, allowed in source.labels.items())
    )
    return source.scale * sum(found)


@dataclass(frozen=True)
class Reading:
    """A look at a machine: gauges, and counters since the process or driver began.

    Attributes:
        is_answering: whether its process told its metrics; the counters of one that did not
            are those of devices alone.
    """

    is_answering: bool
    gauges: Values = field(default_factory=dict)
    totals: Values = field(default_factory=dict)


def read(machine: Machine, role: MachineRole, status: Path = STATUS_FILE) -> Reading:
    """Look at a machine.

    Args:
        machine: its files.
        role: of the machine, since one whose process does not run counts too.
        status: where its process wrote its address.
    """
    gauges, totals = Values(), Values()
    if role != "router":
        for metric, at in ((names.EFA_TX_BYTES, 0), (names.EFA_RX_BYTES, 1)):
            totals[metric] = float(sum(both[at] for both in counters(machine).values()))
    samples = _samples(machine, status)
    for source in ROUTER_SOURCES if role == "router" else ENGINE_SOURCES:
        if samples is not None:
            (gauges if source.is_gauge else totals)[source.metric] = _sum(source, samples)
    return Reading(samples is not None, gauges, totals)


def _samples(machine: Machine, status: Path) -> list[Sample] | None:
    """None: no process tells anything."""
    try:
        url = NodeStatus.model_validate_json(machine.text(status) or "").url
        page = get_text(url, "/metrics")
        return None if page is None else samples_of(page)
    except (ValidationError, ValueError):
        return None


class Since:
    """What was added since the last reading that was sent."""

    def __init__(self) -> None:
        self._totals: Values = {}

    def values(self, reading: Reading) -> Values:
        """Of one minute: the first reading of a counter tells nothing, only where it stands."""
        added = dict(self._added(reading.totals))
        return {names.ANSWERING: float(reading.is_answering), **reading.gauges, **added}

    def _added(self, totals: Values) -> Iterator[tuple[Metric, float]]:
        for metric, total in totals.items():
            before = self._totals.get(metric)
            if before is not None:
                # Below what it was: the process or the driver has begun anew.
                yield metric, total - before if total >= before else total

    def sent(self, reading: Reading) -> None:
        """The reading has arrived. One that has not is part of the next one's difference."""
        self._totals |= reading.totals
