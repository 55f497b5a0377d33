"""The IAM role of an instance."""

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from runtime.contract.operations import NAMESPACE
from stacks.constructs.node_logs import NodeLogs
from stacks.constructs.reasons import acknowledge

SESSION_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)
"""What the SSM agent needs for sessions and commands. AmazonSSMManagedInstanceCore gives
that and every parameter of the account besides."""

METRICS_NAMESPACE = NAMESPACE
"""Of the kit's metrics and of the CloudWatch agent's, as ami/files/cloudwatch-*.json say it."""


class InstanceRole(Construct):
    """May be managed by SSM, read its own parameters, and what it is given besides.

    Args:
        parameter_names: the only parameters it may read.
        logs: where it may write.
        statements: further rights.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        parameter_names: Sequence[str],
        logs: NodeLogs,
        statements: Sequence[iam.PolicyStatement],
    ) -> None:
        super().__init__(scope, construct_id)
        parameters = [
            Stack.of(self).format_arn(
                service="ssm", resource="parameter", resource_name=each.removeprefix("/")
            )
            for each in parameter_names
        ]
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            inline_policies={
                "Instance": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(actions=[*SESSION_ACTIONS], resources=["*"]),
                        iam.PolicyStatement(actions=["ssm:GetParameter"], resources=parameters),
                        _may_put_metrics(),
                        logs.may_be_written(),
                        *statements,
                    ]
                )
            },
        )
        acknowledge(
            self.role,
            "IAM5[Resource::*]",
            "The SSM agent's and the CloudWatch agent's actions, and ec2:DescribeInstances of "
            "the router, take no resource.",
        )
        logs.acknowledge_streams(self.role)


def _may_put_metrics() -> iam.PolicyStatement:
    return iam.PolicyStatement(
        actions=["cloudwatch:PutMetricData"],
        resources=["*"],
        conditions={"StringEquals": {"cloudwatch:namespace": METRICS_NAMESPACE}},
    )
