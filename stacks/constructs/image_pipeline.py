"""EC2 Image Builder: from the steps of ami/ to an AMI and a parameter with its id.

L1 resources, since the L2 is experimental. Components and recipes cannot be changed, only
replaced: their names carry a digest of all that they are made of.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_imagebuilder as imagebuilder
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from ami.documents import Download, Kind, component_document
from ami.versions import Versions
from runtime.contract.names import image_log_group, resource_name
from stacks.constructs.instance_role import SESSION_ACTIONS
from stacks.constructs.launch_template import ROOT_DEVICE
from stacks.constructs.reasons import acknowledge

_VERSION = "1.0.0"
_ROOT_GIB: Mapping[Kind, int] = {"node": 100, "router": 20}
"""Of the AMI; a launch template's root volume may be larger, never smaller."""
_IMAGES_KEPT = 5
_LAUNCHED_WITHIN_DAYS = 60
_TEST_MINUTES = 60
"""The least that Image Builder takes."""


@dataclass(frozen=True)
class Builds:
    """What both kinds of images share.

    Attributes:
        bundle, wheel: in the bootstrap bucket; the files are what they were made from.
        subnet_id, security_group_id: of build instances; None: of the default VPC.
        tags: of build instances.
    """

    bundle: assets.Asset
    bundle_file: Path
    wheel: assets.Asset
    wheel_file: Path
    subnet_id: str | None
    security_group_id: str | None
    tags: Mapping[str, str]


def output_parameter(name: str, kind: Kind) -> str:
    """Parameter that a build writes.

    Source:
        Image Builder's service-linked role may write below /imagebuilder/ alone
        (AWSServiceRoleForImageBuilder, version 27).
    """
    return f"/imagebuilder/turnback/{name}/{kind}/ami-id"


class ImagePipeline(Construct):
    """One kind of image: component, recipe, infrastructure, distribution, pipeline, lifecycle.

    Args:
        name: of the deployment.
        kind: of the image.
        versions: of ami/versions.toml.
        instance_type: of build and test instances.
        builds: what is installed, and where.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        kind: Kind,
        versions: Versions,
        instance_type: str,
        builds: Builds,
    ) -> None:
        super().__init__(scope, construct_id)
        self._deployment, self._kind, self._versions = name, kind, versions
        self._name = resource_name(name, kind)
        self._mark = {"turnback:image": f"{name}-{kind}"}
        recipe = self._add_recipe(builds)
        infrastructure = self._add_infrastructure(instance_type, builds)
        distribution = self._add_distribution()
        self._add_pipeline(recipe, infrastructure, distribution)
        self._add_lifecycle()

    def _add_recipe(self, builds: Builds) -> imagebuilder.CfnImageRecipe:
        base = str(self._versions["base"][f"{self._kind}_parameter"])
        document = self._document(builds, builds.bundle.s3_object_url, builds.wheel.s3_object_url)
        # References have other texts in each app: what is hashed has none.
        fixed = self._document(builds, "bundle", "wheel")
        parts = [base, str(_ROOT_GIB[self._kind]), str(self._versions["image_builder"]), fixed]
        tags = [f"{key}={value}" for key, value in sorted(builds.tags.items())]
        digest = hashlib.sha256("\n".join([*parts, *tags]).encode()).hexdigest()
        named = f"{self._name}-{digest[:12]}"
        component = imagebuilder.CfnComponent(
            *(self, "Component"),
            name=named,
            version=_VERSION,
            platform="Linux",
            description=f"Steps of ami/ for {self._kind}s of {self._deployment}",
            data=document,
        )
        return imagebuilder.CfnImageRecipe(
            *(self, "Recipe"),
            name=named,
            version=_VERSION,
            parent_image=f"ssm:{base}",
            components=[
                *self._managed_components(),
                imagebuilder.CfnImageRecipe.ComponentConfigurationProperty(
                    component_arn=component.attr_arn
                ),
            ],
            block_device_mappings=[self._root_volume()],
        )

    def _document(self, builds: Builds, bundle_uri: str, wheel_uri: str) -> str:
        def download(file: Path, uri: str) -> Download:
            return Download(uri, file.name, hashlib.sha256(file.read_bytes()).hexdigest())

        return component_document(
            self._kind,
            download(builds.bundle_file, bundle_uri),
            download(builds.wheel_file, wheel_uri),
        )

    def _managed_components(
        self,
    ) -> list[imagebuilder.CfnImageRecipe.ComponentConfigurationProperty]:
        pins = self._versions["image_builder"]
        stack = Stack.of(self)
        return [
            imagebuilder.CfnImageRecipe.ComponentConfigurationProperty(
                component_arn=f"arn:{stack.partition}:imagebuilder:{stack.region}:aws:"
                f"component/{name}/{pins['component_version']}"
            )
            for name in pins["components"]
        ]

    def _root_volume(self) -> imagebuilder.CfnImageRecipe.InstanceBlockDeviceMappingProperty:
        return imagebuilder.CfnImageRecipe.InstanceBlockDeviceMappingProperty(
            device_name=ROOT_DEVICE,
            ebs=imagebuilder.CfnImageRecipe.EbsInstanceBlockDeviceSpecificationProperty(
                volume_type="gp3",
                volume_size=_ROOT_GIB[self._kind],
                encrypted=True,
                delete_on_termination=True,
            ),
        )

    def _add_infrastructure(
        self, instance_type: str, builds: Builds
    ) -> imagebuilder.CfnInfrastructureConfiguration:
        profile = iam.CfnInstanceProfile(self, "Profile", roles=[self._role(builds).role_name])
        group = builds.security_group_id
        return imagebuilder.CfnInfrastructureConfiguration(
            *(self, "Infrastructure"),
            name=self._name,
            instance_profile_name=profile.ref,
            instance_types=[instance_type],
            subnet_id=builds.subnet_id,
            security_group_ids=[group] if group else None,
            terminate_instance_on_failure=True,
            instance_metadata_options=(
                imagebuilder.CfnInfrastructureConfiguration.InstanceMetadataOptionsProperty(
                    http_tokens="required", http_put_response_hop_limit=1
                )
            ),
            resource_tags={**builds.tags, **self._mark},
        )

    def _role(self, builds: Builds) -> iam.Role:
        role = iam.Role(
            *(self, "Build"),
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            managed_policies=[
                iam.ManagedPolicy.from_aws_managed_policy_name("EC2InstanceProfileForImageBuilder")
            ],
            inline_policies={
                "Build": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(actions=[*SESSION_ACTIONS], resources=["*"]),
                        iam.PolicyStatement(
                            actions=["s3:GetObject"],
                            resources=[
                                each.bucket.arn_for_objects(each.s3_object_key)
                                for each in (builds.bundle, builds.wheel)
                            ],
                        ),
                    ]
                )
            },
        )
        acknowledge(role, "IAM5[Resource::*]", "The SSM agent's actions take no resource.")
        _acknowledge_policy(
            role,
            "EC2InstanceProfileForImageBuilder",
            "AWS keeps it in step with what Image Builder does on its build instances.",
        )
        return role

    def _add_distribution(self) -> imagebuilder.CfnDistributionConfiguration:
        return imagebuilder.CfnDistributionConfiguration(
            *(self, "Distribution"),
            name=self._name,
            distributions=[
                imagebuilder.CfnDistributionConfiguration.DistributionProperty(
                    region=Stack.of(self).region,
                    ami_distribution_configuration={
                        # The date is of seconds: two builds may share it, but no build's number.
                        "Name": f"{self._name} {{{{ imagebuilder:buildDate }}}} "
                        "{{ imagebuilder:buildVersion }}",
                        "AmiTags": self._mark,
                    },
                    ssm_parameter_configurations=[
                        imagebuilder.CfnDistributionConfiguration.SsmParameterConfigurationProperty(
                            parameter_name=output_parameter(self._deployment, self._kind),
                            data_type="aws:ec2:image",
                        )
                    ],
                )
            ],
        )

    def _add_pipeline(
        self,
        recipe: imagebuilder.CfnImageRecipe,
        infrastructure: imagebuilder.CfnInfrastructureConfiguration,
        distribution: imagebuilder.CfnDistributionConfiguration,
    ) -> None:
        log = logs.LogGroup(
            *(self, "Log"),
            log_group_name=image_log_group(self._name),
            retention=logs.RetentionDays.THREE_MONTHS,
            removal_policy=RemovalPolicy.DESTROY,
        )
        imagebuilder.CfnImagePipeline(
            *(self, "Pipeline"),
            name=self._name,
            description=f"Image of the {self._kind}s of {self._deployment}",
            image_recipe_arn=recipe.attr_arn,
            infrastructure_configuration_arn=infrastructure.attr_arn,
            distribution_configuration_arn=distribution.attr_arn,
            image_tests_configuration=(
                imagebuilder.CfnImagePipeline.ImageTestsConfigurationProperty(
                    image_tests_enabled=True, timeout_minutes=_TEST_MINUTES
                )
            ),
            image_tags=self._mark,
            logging_configuration=(
                imagebuilder.CfnImagePipeline.PipelineLoggingConfigurationProperty(
                    image_log_group_name=log.log_group_name
                )
            ),
        )

    def _add_lifecycle(self) -> None:
        """Old images go, unless an instance was started from them of late."""
        policy = "EC2ImageBuilderLifecycleExecutionPolicy"
        role = iam.Role(
            *(self, "Cleaner"),
            assumed_by=iam.ServicePrincipal("imagebuilder.amazonaws.com"),
            managed_policies=[
                iam.ManagedPolicy.from_aws_managed_policy_name(f"service-role/{policy}")
            ],
        )
        _acknowledge_policy(
            role,
            f"service-role/{policy}",
            "AWS keeps it in step with the lifecycle; it touches Image Builder's images alone.",
        )
        lifecycle = imagebuilder.CfnLifecyclePolicy
        lifecycle(
            *(self, "Lifecycle"),
            name=self._name,
            resource_type="AMI_IMAGE",
            execution_role=role.role_arn,
            policy_details=[
                lifecycle.PolicyDetailProperty(
                    action=lifecycle.ActionProperty(
                        type="DELETE",
                        include_resources=lifecycle.IncludeResourcesProperty(
                            amis=True, snapshots=True
                        ),
                    ),
                    filter=lifecycle.FilterProperty(type="COUNT", value=_IMAGES_KEPT),
                    exclusion_rules=lifecycle.ExclusionRulesProperty(
                        amis=lifecycle.AmiExclusionRulesProperty(
                            last_launched=lifecycle.LastLaunchedProperty(
                                unit="DAYS", value=_LAUNCHED_WITHIN_DAYS
                            )
                        )
                    ),
                )
            ],
            resource_selection=lifecycle.ResourceSelectionProperty(tag_map=self._mark),
        )


def _acknowledge_policy(role: iam.Role, policy: str, reason: str) -> None:
    acknowledge(role, f"IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{policy}]", reason)
