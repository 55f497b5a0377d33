"""A deployment's metrics in CloudWatch, for alarms and widgets."""

from typing import Literal

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch

from runtime.contract.names import resource_name
from runtime.contract.node_metrics import ROLE
from runtime.contract.operations import DEPLOYMENT, NAMESPACE, Metric

Statistic = Literal["Sum", "Average", "Minimum", "Maximum"]
GROUP_METRIC = "GroupInServiceInstances"
"""Of AWS/AutoScaling, which node groups are told to publish."""


class Metrics:
    """Metrics of one deployment.

    Args:
        deployment: its name.
        period: of every point; alarms and widgets differ in it.
    """

    def __init__(self, deployment: str, period: Duration) -> None:
        self._deployment, self.period = deployment, period

    def of(
        self,
        metric: Metric,
        role: str = "",
        *,
        statistic: Statistic = "Sum",
        label: str = "",
        **dimensions: str,
    ) -> cloudwatch.Metric:
        """One of the kit's.

        Args:
            metric: of `runtime.contract`.
            role: of the machines, where the metric has that dimension.
            statistic: over machines and the period.
            label: in a widget; empty: its name.
            dimensions: others, such as Arm and Turn.
        """
        given = {DEPLOYMENT: self._deployment, **({ROLE: role} if role else {}), **dimensions}
        if set(given) != set(metric.dimensions):
            raise ValueError(
                f"{metric.name} has dimensions {metric.dimensions}, not {tuple(given)}"
            )
        return cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name=metric.name,
            dimensions_map=given,
            statistic=statistic,
            period=self.period,
            label=label or None,
        )

    def in_service(self, role: str) -> cloudwatch.Metric:
        """Machines of a role that run, by Auto Scaling's count."""
        return cloudwatch.Metric(
            namespace="AWS/AutoScaling",
            metric_name=GROUP_METRIC,
            dimensions_map={"AutoScalingGroupName": resource_name(self._deployment, role)},
            statistic="Maximum",
            period=self.period,
            label=role,
        )

    def math(
        self, expression: str, label: str, **using: cloudwatch.IMetric
    ) -> cloudwatch.MathExpression:
        """What a formula makes of several."""
        return cloudwatch.MathExpression(
            expression=expression, label=label, period=self.period, using_metrics=using
        )
