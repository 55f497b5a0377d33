"""Sends a machine's metrics to CloudWatch."""

from collections.abc import Mapping
from typing import Any

from runtime.contract.operations import NAMESPACE, Metric


def put_metrics(cloudwatch: Any, values: Mapping[Metric, float], where: Mapping[str, str]) -> None:
    """Send the values of one minute.

    Args:
        cloudwatch: boto3's client.
        values: at most 1000, which one call takes.
        where: value of every dimension of these metrics.

    Raises:
        BotoCoreError, ClientError: AWS does not take them.
    """
    cloudwatch.put_metric_data(
        Namespace=NAMESPACE,
        MetricData=[
            {
                "MetricName": metric.name,
                "Unit": metric.unit,
                "Value": value,
                "Dimensions": [{"Name": name, "Value": where[name]} for name in metric.dimensions],
            }
            for metric, value in values.items()
        ],
    )
