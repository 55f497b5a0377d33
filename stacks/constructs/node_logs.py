"""Where the machines of a role write their logs."""

from aws_cdk import ArnFormat, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from runtime.contract.deployment import LogRetentionDays
from runtime.contract.node_metrics import log_group
from stacks.constructs.reasons import acknowledge, arn_in_findings


class NodeLogs(Construct):
    """A log group with a stream per machine and file.

    It goes with its stack: a name that stays would keep the next deployment of that name from
    being made, and what must outlast a deployment are its results, not its logs.

    Args:
        deployment: its name.
        role: of the machines.
        retention_days: how long lines are kept.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        deployment: str,
        role: str,
        retention_days: LogRetentionDays,
    ) -> None:
        super().__init__(scope, construct_id)
        self._name = log_group(deployment, role)
        logs.CfnLogGroup(
            *(self, "Group"), log_group_name=self._name, retention_in_days=retention_days
        ).apply_removal_policy(RemovalPolicy.DESTROY)

    @property
    def _streams(self) -> str:
        return Stack.of(self).format_arn(
            service="logs",
            resource="log-group",
            resource_name=f"{self._name}:*",
            arn_format=ArnFormat.COLON_RESOURCE_NAME,
        )

    def may_be_written(self) -> iam.PolicyStatement:
        """Leave to write here, not to make groups: those would be kept for ever."""
        return iam.PolicyStatement(
            actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            resources=[self._streams],
        )

    def acknowledge_streams(self, role: iam.Role) -> None:
        """Accept the finding that this leave brings."""
        acknowledge(
            role,
            f"IAM5[Resource::{arn_in_findings(self, 'logs')}log-group:{self._name}:*]",
            "A machine writes to streams of its own, whose names hold its id, which is not known "
            "before it starts; the group is its role's alone.",
        )
