"""What the router counts, as Prometheus metrics: receipts of both legs."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE

from runtime.engine_api import Receipt

_STAGE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

__all__ = ["CONTENT_TYPE", "RouterMetrics"]


class RouterMetrics:
    """The metrics of one router; each has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._legs = Counter(
            "turnback_legs",
            "Legs that an engine finished, by what it did with the handle or P dict",
            ("role", "reason"),
            registry=self._registry,
        )
        self._tokens = Counter(
            "turnback_leg_tokens",
            "Tokens of those legs: offered, verified, local (own prefix cache), pulled",
            ("role", "kind"),
            registry=self._registry,
        )
        self._stages = Histogram(
            "turnback_leg_stage_seconds",
            "Time of those legs inside the engine: queue, pull, compute",
            ("role", "stage"),
            buckets=_STAGE_BUCKETS_S,
            registry=self._registry,
        )

        self._releases = Counter(
            "turnback_releases",
            "Handles that were given back to their decode node unused",
            ("outcome",),
            registry=self._registry,
        )

    def released(self, *, is_done: bool) -> None:
        """Count one release."""
        self._releases.labels("done" if is_done else "failed").inc()

    def observe(self, role: str, receipt: Receipt) -> None:
        """Count one leg.

        Args:
            role: prefill or decode.
            receipt: what its engine said.
        """
        self._legs.labels(role, receipt.reason).inc()
        for kind, tokens in (
            ("offered", receipt.offered_tokens),
            ("verified", receipt.verified_tokens),
            ("local", receipt.local_tokens),
            ("pulled", receipt.pulled_tokens),
        ):
            self._tokens.labels(role, kind).inc(tokens)
        for stage, taken_ms in receipt.stages_ms().items():
            if taken_ms is not None:
                self._stages.labels(role, stage).observe(taken_ms / 1000)

    def page(self) -> bytes:
        """The text that GET /metrics answers."""
        return generate_latest(self._registry)
