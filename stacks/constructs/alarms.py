"""Alarms of a deployment: each tells what it means and which page of docs/runbooks/ helps.

What is done where data is missing is said for each: most machines of a fleet are off at
times, and then nothing is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from runtime.contract import node_metrics as node
from runtime.contract import operations as run
from runtime.contract.deployment import CapacityBlock, DeploymentSettings
from runtime.contract.names import resource_name
from stacks.constructs.metrics import Metrics

RUNBOOKS = "docs/runbooks"
BLOCK_NOTICE = timedelta(hours=4)
"""Before a Capacity Block's end: time to buy and deploy the next one."""
BLOCK_PAGE = "capacity-block-end"

_FIVE, _QUARTER, _HOUR = Duration.minutes(5), Duration.minutes(15), Duration.hours(1)
_LEAST_TURNS = 20
"""In a period, below which shares of turns say nothing."""
_LEAST_BYTES = 100_000_000
"""In 5 minutes, below which NIXL's own messages count."""

_Missing = cloudwatch.TreatMissingData
_Is = cloudwatch.ComparisonOperator


@dataclass(frozen=True)
class _Bell:
    """One alarm.

    Attributes:
        id: of the construct.
        page: of docs/runbooks/, and part of the alarm's name.
        meaning: one sentence, what has been seen.
        metric: watched.
        threshold: with `operator`.
        periods: looked at, of which `breaching` must breach; 0: all.
        missing: what a period without data counts as.
    """

    id: str
    page: str
    meaning: str
    metric: cloudwatch.IMetric
    threshold: float
    periods: int = 1
    breaching: int = 0
    operator: cloudwatch.ComparisonOperator = _Is.GREATER_THAN_THRESHOLD
    # No machine, or one that has just started, tells nothing: nothing is wrong then. That
    # machines which run tell nothing is an alarm of its own, nodes-silent.
    missing: cloudwatch.TreatMissingData = _Missing.NOT_BREACHING


class Alarms(Construct):
    """All alarms of a deployment.

    Args:
        settings: of the deployment.
        topic: told when an alarm starts and when it ends; it tells the settings' address.
        now: a notice of a Capacity Block's end that lies before it is left out.
        min_speed_up: a validation's speed-up below it is an alarm.
        slo_ttft_p90_ms: a validation's TTFT above it is one; None: no bar was set.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: DeploymentSettings,
        topic: sns.ITopic,
        now: datetime,
        min_speed_up: float = 1.0,
        slo_ttft_p90_ms: float | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self._quick = Metrics(settings.name, _FIVE)
        self._slow = Metrics(settings.name, _QUARTER)
        self._runs = Metrics(settings.name, _HOUR)
        bells = [
            *self._of_validations(min_speed_up, slo_ttft_p90_ms),
            *self._of_turns(),
            *self._of_handles(),
            *self._of_transfers(),
            *self._of_exactness(),
            *self._of_machines(),
        ]
        for bell in bells:
            self._add(bell, topic)
        # By their names: emulated accounts make no alarms whose attributes could be had.
        self.by_name: Sequence[cloudwatch.IAlarm] = [
            cloudwatch.Alarm.from_alarm_name(
                self, f"{bell.id}ByName", resource_name(settings.name, bell.page)
            )
            for bell in bells
        ]
        self._add_block_notice(topic, now)
        if settings.operations.alarm_email is not None:
            topic.add_subscription(subscriptions.EmailSubscription(settings.operations.alarm_email))

    def _add(self, bell: _Bell, topic: sns.ITopic) -> None:
        alarm = cloudwatch.Alarm(
            *(self, bell.id),
            alarm_name=resource_name(self._settings.name, bell.page),
            alarm_description=f"{bell.meaning} See {RUNBOOKS}/{bell.page}.md",
            metric=bell.metric,
            threshold=bell.threshold,
            comparison_operator=bell.operator,
            evaluation_periods=bell.periods,
            datapoints_to_alarm=bell.breaching or bell.periods,
            treat_missing_data=bell.missing,
        )
        alarm.add_alarm_action(actions.SnsAction(topic))
        alarm.add_ok_action(actions.SnsAction(topic))

    def _of_validations(self, min_speed_up: float, slo_ttft_p90_ms: float | None) -> list[_Bell]:
        # A validation runs after a deploy, not each hour: until the next its verdict stands.
        bells = [
            _Bell(
                "SpeedUp",
                "speed-up-low",
                f"The last validation's speed-up of turns 2 and later was below {min_speed_up:g}.",
                self._runs.of(run.SPEED_UP, statistic="Minimum"),
                min_speed_up,
                operator=_Is.LESS_THAN_THRESHOLD,
                missing=_Missing.IGNORE,
            )
        ]
        if slo_ttft_p90_ms is not None:
            ttft = self._runs.of(
                run.TTFT_P90, statistic="Maximum", Arm="bidirectional", Turn="later"
            )
            bells.append(
                _Bell(
                    "Ttft",
                    "ttft-high",
                    "The last validation's 90th percentile of TTFT, turns 2 and later, was above "
                    f"{slo_ttft_p90_ms:g} ms.",
                    ttft,
                    slo_ttft_p90_ms,
                    missing=_Missing.IGNORE,
                )
            )
        return bells

    def _of_turns(self) -> list[_Bell]:
        quick, slow = self._quick, self._slow
        return [
            _Bell(
                "TurnsFailed",
                "turns-failed",
                "More than 5 % of turns have failed for 15 minutes.",
                quick.math(
                    f"IF(turns >= {_LEAST_TURNS}, 100 * failed / turns, 0)",
                    "failed turns, %",
                    turns=quick.of(node.TURNS, "router"),
                    failed=quick.of(node.TURNS_FAILED, "router"),
                ),
                5,
                periods=3,
            ),
            _Bell(
                "PulledShare",
                "pulled-share-low",
                "For an hour P has got less than half of what handles offered, by pulling or from "
                "its own cache.",
                slow.math(
                    "IF(offered > 0, 100 * (pulled + local) / offered, 100)",
                    "offered tokens that P did not compute, %",
                    offered=slow.of(node.OFFERED_TOKENS, "router"),
                    pulled=slow.of(node.PULLED_TOKENS, "router"),
                    local=slow.of(node.LOCAL_TOKENS, "router"),
                ),
                50,
                periods=4,
                operator=_Is.LESS_THAN_THRESHOLD,
            ),
        ]

    def _of_handles(self) -> list[_Bell]:
        quick, slow = self._quick, self._slow
        return [
            _Bell(
                "Expired",
                "handles-expired",
                "For an hour more than 80 % of turns have left blocks on D that nobody came back "
                "for within the TTL.",
                slow.math(
                    f"IF(turns >= {_LEAST_TURNS}, 100 * expired / turns, 0)",
                    "handles that expired, % of turns",
                    turns=slow.of(node.TURNS, "router"),
                    expired=slow.of(node.EXPIRED, "decode"),
                ),
                80,
                periods=4,
            ),
            _Bell(
                "Refused",
                "handles-refused",
                "Engines refuse handles or P dicts for reasons that no client brings about.",
                quick.of(node.REFUSED_HANDLES, "router"),
                0,
                periods=3,
                breaching=2,
            ),
        ]

    def _both(self, metric: run.Metric) -> dict[str, cloudwatch.IMetric]:
        # In a metric's own name, since several stand in one formula.
        word = metric.name[0].lower() + metric.name[1:]
        roles = {"P": "prefill", "D": "decode"}
        return {word + mark: self._quick.of(metric, role) for mark, role in roles.items()}

    def _of_transfers(self) -> list[_Bell]:
        quick = self._quick
        failed, late = node.FAILED_READS, node.READS_AFTER_EXPIRY
        bells = [
            _Bell(
                "TransfersFailed",
                "transfers-failed",
                "NIXL reads or notifications failed.",
                quick.math(_total("nixlFailed"), "failed", **self._both(failed)),
                0,
            ),
            _Bell(
                "ReadsAfterExpiry",
                "reads-after-expiry",
                "A read ended after the blocks it read had been freed.",
                quick.math(_total("nixlReadsAfterExpiry"), "late reads", **self._both(late)),
                0,
            ),
        ]
        if not self._settings.transport.allow_tcp:
            read, received = _total("nixlReadBytes"), _total("efaRxBytes")
            bells.append(
                _Bell(
                    "EfaFlat",
                    "efa-flat",
                    "vLLM reads KV, and EFA devices have received less than half of it: it comes "
                    "over TCP.",
                    quick.math(
                        f"IF({read} > {_LEAST_BYTES} AND {received} < 0.5 * ({read}), 1, 0)",
                        "1: KV that did not come over EFA",
                        **self._both(node.READ_BYTES),
                        **self._both(node.EFA_RX_BYTES),
                    ),
                    0,
                    periods=3,
                    breaching=2,
                )
            )
        return bells

    def _of_exactness(self) -> list[_Bell]:
        return [
            _Bell(
                "Canary",
                "canary-different",
                "A turn that was run again without handed-back KV had another answer, and not by "
                "a tie.",
                self._slow.of(node.CANARY_DIFFERENCES, "router"),
                0,
            ),
            _Bell(
                "ReuseOff",
                "reuse-off",
                "Reuse of KV has been off for 15 minutes: every turn is computed anew.",
                self._quick.of(node.REUSE_ON, "router", statistic="Minimum"),
                1,
                periods=3,
                operator=_Is.LESS_THAN_THRESHOLD,
            ),
        ]

    def _of_machines(self) -> list[_Bell]:
        quick = self._quick
        nodes = {role: quick.in_service(role) for role in ("prefill", "decode")}
        periods = self._settings.operations.idle_alarm_minutes // 5
        minutes = _FIVE.to_minutes()
        return [
            _Bell(
                "FleetIdle",
                "fleet-idle",
                f"GPU nodes have run for {periods * 5} minutes and served no turn; each costs by "
                "the second.",
                quick.math(
                    # A router that is silent serves nobody either.
                    "IF(FILL(turns, 0) < 1, prefill + decode, 0)",
                    "GPU nodes that serve nobody",
                    turns=quick.of(node.TURNS, "router"),
                    **nodes,
                ),
                0,
                periods=periods,
            ),
            _Bell(
                "NodesSilent",
                "nodes-silent",
                "For an hour GPU nodes have run whose engine does not answer, or whose metrics do "
                "not come: other alarms are blind for them.",
                quick.math(
                    f"prefill + decode - {_total('answering')} / {minutes}",
                    "GPU nodes without an answer",
                    **self._both(node.ANSWERING),
                    **nodes,
                ),
                0.5,
                # A node that starts loads its model first.
                periods=12,
            ),
        ]

    def _add_block_notice(self, topic: sns.ITopic, now: datetime) -> None:
        """Tell of a Capacity Block's end while the next can still be bought.

        By the clock, not by a metric: it must come also where no machine tells anything.
        """
        ends = {
            plan.ends_at
            for plan in (self._settings.prefill.capacity, self._settings.decode.capacity)
            if isinstance(plan, CapacityBlock)
        }
        ahead = [end for end in sorted(ends) if end - BLOCK_NOTICE > now]
        if not ahead:
            return
        role = iam.Role(
            *(self, "BlockRole"), assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com")
        )
        topic.grant_publish(role)
        for number, end in enumerate(ahead):
            scheduler.CfnSchedule(
                *(self, "BlockEnd" if number == 0 else "OtherBlockEnd"),
                name=resource_name(self._settings.name, f"{BLOCK_PAGE}-{number}"),
                description=f"A Capacity Block ends. See {RUNBOOKS}/{BLOCK_PAGE}.md",
                schedule_expression=f"at({end - BLOCK_NOTICE:%Y-%m-%dT%H:%M:%S})",
                schedule_expression_timezone="UTC",
                flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
                target=scheduler.CfnSchedule.TargetProperty(
                    arn=topic.topic_arn,
                    role_arn=role.role_arn,
                    input=_block_message(self._settings.name, end),
                ),
            )


def _total(word: str) -> str:
    """Formula: a metric of both roles, of which one may run without the other.

    Where the newest points are late a 0 stands for them: that delays an alarm, but where a
    lack of answers is the alarm itself, which therefore takes many periods.
    """
    return f"(FILL({word}P, 0) + FILL({word}D, 0))"


def _block_message(deployment: str, end: datetime) -> str:
    return (
        f"Deployment {deployment}: a Capacity Block ends at {end:%Y-%m-%d %H:%M} UTC. Its nodes "
        "take nothing new from 75 minutes before, and are ended from 60 minutes before. "
        f"See {RUNBOOKS}/{BLOCK_PAGE}.md"
    )
