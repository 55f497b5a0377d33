"""The dashboard of a deployment: what a validation measured, and what its machines do now."""

from collections.abc import Sequence

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from runtime.contract import node_metrics as node
from runtime.contract import operations as run
from runtime.contract.bench import ARMS
from runtime.contract.deployment import DeploymentSettings
from runtime.contract.names import resource_name
from stacks.constructs.metrics import Metrics, Statistic

_WIDTH = 8
"""Three in a row of 24."""


class Dashboard(Construct):
    """Three rows: validations, turns, machines; below them the alarms, if there are any.

    Args:
        settings: of the deployment.
        alarms: shown with their states.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: DeploymentSettings,
        alarms: Sequence[cloudwatch.IAlarm] = (),
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        # A validation's numbers come once a run.
        self._runs = Metrics(settings.name, Duration.hours(1))
        self._now = Metrics(settings.name, Duration.minutes(5))
        self.dashboard = cloudwatch.Dashboard(
            *(self, "Dashboard"),
            dashboard_name=resource_name(settings.name, "operations"),
            default_interval=Duration.days(1),
            widgets=[
                self._validations(),
                [*self._turns()],
                [*self._kv()],
                [*self._machines()],
                *([[_states(alarms)]] if alarms else []),
            ],
        )

    def _validations(self) -> list[cloudwatch.IWidget]:
        runs = self._runs
        speed_up = [
            runs.of(each, statistic="Average", label=label)
            for each, label in (
                (run.SPEED_UP, "speed-up"),
                (run.SPEED_UP_LOW, "lower end, 95 %"),
                (run.SPEED_UP_HIGH, "upper end, 95 %"),
                (run.PULLED_SHARE, "pulled share, %"),
            )
        ]
        ttft = [
            runs.of(metric, statistic="Average", label=f"{arm}, turn {turn}, {word}", **where)
            for metric, word in ((run.TTFT_P50, "p50"), (run.TTFT_P90, "p90"))
            for arm in ARMS
            for turn in run.TURNS
            for where in ({run.ARM: arm, run.TURN: turn},)
        ]
        checks = [
            runs.of(each, statistic="Maximum")
            for each in (
                *(run.ANSWERS_DIFFERENT, run.FAILED_TURNS, run.FAILED_TRANSFERS),
                *(run.VALIDATION_FAILED, run.BAR_MISSED),
            )
        ]
        return [
            _points("Validations: speed-up of turns 2 and later", speed_up),
            _points("Validations: TTFT by turn, ms", ttft),
            _points("Validations: what went wrong", checks),
        ]

    def _turns(self) -> list[cloudwatch.IWidget]:
        now = self._now
        ttft = now.math(
            "IF(begun > 0, sum / begun)",
            "mean",
            sum=now.of(node.TTFT_SUM, "router"),
            begun=now.of(node.FIRST_TOKENS, "router"),
        )
        tokens = {
            "offered": now.of(node.OFFERED_TOKENS, "router"),
            "pulled": now.of(node.PULLED_TOKENS, "router"),
            "own": now.of(node.LOCAL_TOKENS, "router"),
        }
        shares = [
            now.math(
                f"IF(offered > 0, 100 * {name} / offered)", f"{label}, %", offered=offered, **one
            )
            for offered in (tokens["offered"],)
            for name, label in (("pulled", "pulled from D"), ("own", "in P's own cache"))
            for one in ({name: tokens[name]},)
        ]
        return [
            _lines(
                "Turns in 5 minutes",
                [now.of(node.TURNS, "router"), now.of(node.TURNS_FAILED, "router")],
            ),
            _lines("Time to first token at the router, ms", [ttft]),
            _lines("Pulled share: of the tokens that handles offered P", shares),
        ]

    def _kv(self) -> list[cloudwatch.IWidget]:
        now = self._now
        return [
            _lines(
                "Handles: expired and refused; canary",
                [
                    now.of(node.EXPIRED, "decode", label="expired on D"),
                    now.of(node.REFUSED_HANDLES, "router", label="refused"),
                    now.of(node.CANARY_DIFFERENCES, "router", label="canary: different"),
                    now.of(node.CANARY_RUNS, "router", label="canary: runs"),
                ],
            ),
            _lines(
                "KV read by vLLM, beside what EFA received, bytes",
                self._of_both(node.READ_BYTES, "vLLM")
                + self._of_both(node.EFA_RX_BYTES, "EFA received")
                + self._of_both(node.EFA_TX_BYTES, "EFA sent"),
            ),
            _lines(
                "Transfers: failed, and ended after their blocks were freed",
                self._of_both(node.FAILED_READS, "failed")
                + self._of_both(node.READS_AFTER_EXPIRY, "late")
                + self._of_both(node.READS, "good"),
            ),
        ]

    def _machines(self) -> list[cloudwatch.IWidget]:
        now, usd = self._now, self._settings.operations.usd_per_node_hour
        nodes = {role: now.in_service(role) for role in ("prefill", "decode")}
        # A point is 5 minutes: a twelfth of an hour.
        idle = now.math(
            f"IF(FILL(turns, 0) < 1, prefill + decode, 0) / 12 * {usd or 1:g}",
            "idle, USD" if usd else "idle, node-hours",
            turns=now.of(node.TURNS, "router"),
            **nodes,
        )
        usage = self._of_both(node.KV_USAGE, "KV cache, %", statistic="Average")
        waiting = self._of_both(node.WAITING, "waiting", statistic="Average")
        return [
            _lines("GPU nodes in service", [*nodes.values()]),
            _lines("Cost of GPU nodes that served nobody, in 5 minutes", [idle]),
            _lines("KV cache in use; requests that wait", usage + waiting),
        ]

    def _of_both(
        self, metric: run.Metric, label: str, statistic: Statistic = "Sum"
    ) -> list[cloudwatch.IMetric]:
        return [
            self._now.of(metric, role, statistic=statistic, label=f"{label}: {role}")
            for role in ("prefill", "decode")
        ]


def _lines(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.IWidget:
    return cloudwatch.GraphWidget(title=title, left=[*metrics], width=_WIDTH)


def _points(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.IWidget:
    """The last value of each, since runs are days apart."""
    return cloudwatch.SingleValueWidget(
        title=title, metrics=[*metrics], width=_WIDTH, height=6, set_period_to_time_range=True
    )


def _states(alarms: Sequence[cloudwatch.IAlarm]) -> cloudwatch.IWidget:
    return cloudwatch.AlarmStatusWidget(title="Alarms", alarms=[*alarms], width=24, height=3)
