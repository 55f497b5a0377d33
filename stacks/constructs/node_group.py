"""Equal instances in an Auto Scaling group."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from aws_cdk import CfnAutoScalingScheduledAction as IgnoreSizes
from aws_cdk import CfnUpdatePolicy, Tags
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from runtime.contract.deployment import CapacityBlock, CapacityPlan
from stacks.constructs.metrics import GROUP_METRIC
from stacks.constructs.reasons import acknowledge


class NodeGroup(Construct):
    """Instances of one launch template.

    There is no desired count: CloudFormation would wait for the instances, and roll the
    stack back where capacity is short. `turnback scale` sets it.

    Args:
        name: of the group; changing it replaces the group.
        template: of the instances.
        subnet_ids: where they start.
        least: instances the group starts by itself; 0 for paid-by-the-minute GPUs.
        most: instances.
        tags: of the instances; kept apart from the template's, so that a changed tag makes
            no new version.
        group_tags: of the group alone.
        target_group_arns: load balancer targets they join.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        template: ec2.CfnLaunchTemplate,
        subnet_ids: Sequence[str],
        least: int,
        most: int,
        tags: Mapping[str, str],
        group_tags: Mapping[str, str] = {},
        target_group_arns: Sequence[str] = (),
    ) -> None:
        super().__init__(scope, construct_id)
        self.group = autoscaling.CfnAutoScalingGroup(
            self,
            "Group",
            auto_scaling_group_name=name,
            min_size=str(least),
            max_size=str(most),
            vpc_zone_identifier=[*subnet_ids],
            launch_template=autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
                launch_template_id=template.ref, version=template.attr_latest_version_number
            ),
            target_group_arns=[*target_group_arns] or None,
            health_check_type="EC2",
            health_check_grace_period=300,
            # Free; alarms tell idle nodes by it.
            metrics_collection=[
                autoscaling.CfnAutoScalingGroup.MetricsCollectionProperty(
                    granularity="1Minute", metrics=[GROUP_METRIC]
                )
            ],
        )
        # A scheduled action or `turnback scale` may have changed the sizes since.
        self.group.cfn_options.update_policy = CfnUpdatePolicy(
            auto_scaling_scheduled_action=IgnoreSizes(ignore_unmodified_group_size_properties=True)
        )
        for key, value in sorted(tags.items()):
            Tags.of(self.group).add(key, value)
        for key, value in sorted(group_tags.items()):
            Tags.of(self.group).add(key, value, apply_to_launched_instances=False)
        acknowledge(
            self.group,
            "AS3",
            "`turnback scale` follows the group's activities; a topic that nobody reads, with a "
            "key of its own so that the group may publish, would only cost.",
        )

    def end_before(self, capacity: CapacityPlan, now: datetime) -> None:
        """Scale to 0 before a Capacity Block ends; a moment that is past is left out."""
        if not isinstance(capacity, CapacityBlock) or capacity.scales_in_at <= now:
            return
        autoscaling.CfnScheduledAction(
            self,
            "BlockEnd",
            auto_scaling_group_name=self.group.ref,
            desired_capacity=0,
            start_time=capacity.scales_in_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
