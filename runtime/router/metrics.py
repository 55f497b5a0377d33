"""What the router counts, as Prometheus metrics."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.registry import Collector

from runtime.engine_api import Receipt

_STAGE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

__all__ = ["CONTENT_TYPE", "RouterMetrics", "Sample"]

Sample = tuple[str, str, dict[str, str], float]
"""Name, help, labels and value of a gauge that is read when the page is made."""


class _Gauges(Collector):
    """Gauges whose values stand elsewhere."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Read them all."""
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, labels, value in self._read():
            family = families.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels)))
            family.add_metric(list(labels.values()), value)
        return families.values()


class _StageTimes(Collector):
    """A histogram by stage. prometheus_client's own takes a lock and walks its buckets each
    time, five times a turn; this one belongs to one event loop.

    Args:
        name: of the histogram.
        text: its help.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._counts: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}

    def observe(self, stage: str, seconds: float) -> None:
        """Count one."""
        counts = self._counts.get(stage)
        if counts is None:
            counts = self._counts[stage] = [0] * (len(_STAGE_BUCKETS_S) + 1)
            self._sums_s[stage] = 0.0
        counts[bisect_left(_STAGE_BUCKETS_S, seconds)] += 1
        self._sums_s[stage] += seconds

    def collect(self) -> Iterable[Metric]:
        """Buckets hold all that is not longer, as Prometheus wants them."""
        family = HistogramMetricFamily(self._name, self._text, labels=["stage"])
        bounds = [*map(str, _STAGE_BUCKETS_S), "+Inf"]
        for stage, counts in self._counts.items():
            up_to = list(zip(bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric([stage], up_to, self._sums_s[stage])
        return [family]


class RouterMetrics:
    """The metrics of one router; each has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._turns = self._counter(
            "turns", "Turns by API, path and outcome", "api", "path", "outcome"
        )
        self._legs = self._counter(
            "legs",
            "Legs that an engine finished, by what it did with the handle or P dict",
            *("role", "reason"),
        )
        self._tokens = self._counter(
            "leg_tokens",
            "Tokens of those legs: offered, verified, local (own prefix cache), pulled",
            *("role", "kind"),
        )
        self._failures = self._counter(
            "leg_failures", "Legs that a node failed, by what was seen", "role", "kind"
        )
        self._releases = self._counter(
            "releases", "Handles and P dicts that were given back unused", "outcome"
        )
        self._takes = self._counter("takes", "Handles looked for, by what was found", "outcome")
        self._refusals = self._counter(
            "refusals", "Requests the router refused, by status", "status"
        )
        self._canaries = self._counter(
            "canary", "Warm turns that were run again cold, by what came out", "outcome"
        )
        self._leg_stages = self._histogram(
            "leg_stage",
            "Time of those legs inside the engine: queue, pull, compute",
            "role",
            "stage",
        )
        self._stages = _StageTimes(
            "turnback_turn_stage_seconds",
            "Time of turns in the router: queue, take, prefill, first_byte, whole",
        )
        self._registry.register(self._stages)
        self.reuse_on = Gauge(
            "turnback_reuse_on", "1 while handles are taken and made", registry=self._registry
        )
        self.reuse_on.set(1)
        # The label lookup is the dearest part of counting.
        self._labelled = cache(lambda metric, *labels: metric.labels(*labels))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"turnback_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"turnback_{name}_seconds",
            text,
            labels,
            buckets=_STAGE_BUCKETS_S,
            registry=self._registry,
        )

    def read_on_request(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Add gauges whose values are read when the page is made."""
        self._registry.register(_Gauges(read))

    def turn(self, api: str, path: str, outcome: str) -> None:
        """Count a turn that has ended: done, failed or left (the client did)."""
        self._labelled(self._turns, api, path, outcome).inc()

    def stage(self, name: str, seconds: float) -> None:
        """Note how long a stage of a turn took."""
        self._stages.observe(name, seconds)

    def took(self, outcome: str) -> None:
        """Count a look for a handle: exact, edited, none, owner_gone, store_down."""
        self._labelled(self._takes, outcome).inc()

    def leg_failed(self, role: str, kind: str) -> None:
        """Count a leg that its node failed: refused, broken, status, reply."""
        self._labelled(self._failures, role, kind).inc()

    def refused(self, status: int) -> None:
        """Count a request that the router itself answered with an error."""
        self._labelled(self._refusals, str(status)).inc()

    def canary(self, outcome: str) -> None:
        """Count a canary: equal, different, noise, failed."""
        self._labelled(self._canaries, outcome).inc()

    def released(self, *, is_done: bool) -> None:
        """Count one release."""
        self._labelled(self._releases, "done" if is_done else "failed").inc()

    def observe(self, role: str, receipt: Receipt) -> None:
        """Count one leg.

        Args:
            role: prefill or decode.
            receipt: what its engine said.
        """
        self._labelled(self._legs, role, receipt.reason).inc()
        for kind, tokens in (
            ("offered", receipt.offered_tokens),
            ("verified", receipt.verified_tokens),
            ("local", receipt.local_tokens),
            ("pulled", receipt.pulled_tokens),
        ):
            self._labelled(self._tokens, role, kind).inc(tokens)
        for stage, taken_ms in receipt.stages_ms().items():
            if taken_ms is not None:
                self._labelled(self._leg_stages, role, stage).observe(taken_ms / 1000)

    def page(self) -> bytes:
        """The text that GET /metrics answers."""
        return generate_latest(self._registry)
