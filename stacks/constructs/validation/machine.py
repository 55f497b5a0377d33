"""The state machine as a resource: its role, its log, and what starts it after a deploy."""

from typing import Any

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from runtime.contract.names import resource_name
from runtime.contract.operations import (
    NAMESPACE,
    RUNS,
    last_validation_parameter,
    state_machine_name,
)
from stacks.constructs.reasons import acknowledge, arn_in_findings
from stacks.constructs.validation.definition import Validation, definition

_RETRY_EVENTS = 3


class ValidationMachine(Construct):
    """Runs a validation; at most one at a time.

    Args:
        validation: what it is made of.
        bucket: of results.
        topic: of messages.
        manifest_arn: of a staged model's manifest.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        validation: Validation,
        bucket: s3.IBucket,
        topic: sns.ITopic,
        manifest_arn: str,
    ) -> None:
        super().__init__(scope, construct_id)
        self._validation, self._bucket, self._topic = validation, bucket, topic
        self._stack = Stack.of(self)
        name = state_machine_name(validation.deployment)
        self.log = logs.LogGroup(
            *(self, "Log"),
            log_group_name=f"/aws/vendedlogs/states/{name}",
            retention=logs.RetentionDays.THREE_MONTHS,
            removal_policy=RemovalPolicy.DESTROY,
        )
        self.machine = sfn.StateMachine(
            self,
            "Machine",
            state_machine_name=name,
            definition_body=sfn.DefinitionBody.from_string(
                self._stack.to_json_string(definition(validation))
            ),
            role=self._role(name, manifest_arn),
            logs=sfn.LogOptions(
                destination=self.log, level=sfn.LogLevel.ALL, include_execution_data=True
            ),
            tracing_enabled=True,
        )

    def starts_after(self, stack: Stack, given: dict[str, Any]) -> None:
        """Start with this input when a stack's creation or update has ended well."""
        events.Rule(
            *(self, "AfterDeploy"),
            description=f"Validates {self._validation.deployment} after a deploy",
            event_pattern=events.EventPattern(
                source=["aws.cloudformation"],
                detail_type=["CloudFormation Stack Status Change"],
                detail={
                    "stack-id": [stack.stack_id],
                    "status-details": {"status": ["CREATE_COMPLETE", "UPDATE_COMPLETE"]},
                },
            ),
            targets=[
                targets.SfnStateMachine(
                    self.machine,
                    input=events.RuleTargetInput.from_object(given),
                    retry_attempts=_RETRY_EVENTS,
                    max_event_age=Duration.minutes(15),
                )
            ],
        )

    def _role(self, name: str, manifest_arn: str) -> iam.Role:
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("states.amazonaws.com"),
            inline_policies={
                "Validation": iam.PolicyDocument(
                    statements=[
                        *self._nodes(),
                        *self._commands(),
                        *self._results(manifest_arn),
                        iam.PolicyStatement(
                            actions=["states:ListExecutions"],
                            resources=[self._arn("states", f"stateMachine:{name}")],
                        ),
                    ]
                )
            },
        )
        acknowledge(
            role,
            "IAM5[Resource::*]",
            "Listing groups, activities and commands takes no resource, nor does putting metrics "
            "(into the kit's namespace alone), delivering logs and sending traces.",
        )
        self._acknowledge_names(role)
        return role

    def _acknowledge_names(self, role: iam.Role) -> None:
        """Resources whose names nobody knows here."""
        bucket = self._stack.get_logical_id(self._bucket.node.default_child)  # type: ignore[arg-type]
        group = arn_in_findings(self, "autoscaling") + "autoScalingGroup:*:autoScalingGroupName/"
        names = {
            f"<{bucket}.Arn>/{RUNS}/*": "A run's name is not known before it starts.",
            arn_in_findings(self, "ec2")
            + "instance/*": "Their ids come and go; a tag names the deployment.",
            **{
                group + name: "An id that AWS gives stands before the group's name."
                for name in self._groups()
            },
        }
        for found, reason in names.items():
            acknowledge(role, f"IAM5[Resource::{found}]", reason)

    def _groups(self) -> list[str]:
        return [resource_name(self._validation.deployment, role) for role in ("prefill", "decode")]

    def _arn(self, service: str, rest: str, *, account: bool = True) -> str:
        owner = self._stack.account if account else ""
        return f"arn:{self._stack.partition}:{service}:{self._stack.region}:{owner}:{rest}"

    def _nodes(self) -> list[iam.PolicyStatement]:
        group = "autoScalingGroup:*:autoScalingGroupName"
        return [
            iam.PolicyStatement(
                actions=[
                    "autoscaling:DescribeAutoScalingGroups",
                    "autoscaling:DescribeScalingActivities",
                    *("ssm:ListCommands", "ssm:ListCommandInvocations"),
                    "ssm:GetCommandInvocation",
                ],
                resources=["*"],
            ),
            iam.PolicyStatement(
                actions=["autoscaling:SetDesiredCapacity"],
                resources=[self._arn("autoscaling", f"{group}/{each}") for each in self._groups()],
            ),
        ]

    def _commands(self) -> list[iam.PolicyStatement]:
        """On this deployment's machines alone, and with one document."""
        tag = {"ssm:resourceTag/turnback:deployment": self._validation.deployment}
        return [
            iam.PolicyStatement(
                actions=["ssm:SendCommand"],
                resources=[self._arn("ssm", "document/AWS-RunShellScript", account=False)],
            ),
            iam.PolicyStatement(
                actions=["ssm:SendCommand"],
                resources=[self._arn("ec2", "instance/*")],
                conditions={"StringEquals": tag},
            ),
        ]

    def _results(self, manifest_arn: str) -> list[iam.PolicyStatement]:
        parameter = last_validation_parameter(self._validation.deployment).removeprefix("/")
        return [
            iam.PolicyStatement(
                actions=["s3:PutObject"], resources=[self._bucket.arn_for_objects(f"{RUNS}/*")]
            ),
            iam.PolicyStatement(actions=["s3:GetObject"], resources=[manifest_arn]),
            iam.PolicyStatement(
                actions=["ssm:PutParameter"], resources=[self._arn("ssm", f"parameter/{parameter}")]
            ),
            iam.PolicyStatement(actions=["sns:Publish"], resources=[self._topic.topic_arn]),
            iam.PolicyStatement(
                actions=["cloudwatch:PutMetricData"],
                resources=["*"],
                conditions={"StringEquals": {"cloudwatch:namespace": NAMESPACE}},
            ),
        ]
