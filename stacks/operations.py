"""What watches a deployment, and shows after each deploy what it does."""

from datetime import datetime
from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from runtime.contract.deployment import DeploymentSettings
from runtime.contract.model import MANIFEST, model_prefix
from runtime.contract.names import resource_name
from runtime.contract.operations import (
    RUNS,
    fingerprint_parameter,
    last_validation_parameter,
    results_bucket_parameter,
    validation_input,
)
from stacks.constructs.alarms import Alarms
from stacks.constructs.dashboard import Dashboard
from stacks.constructs.reasons import acknowledge
from stacks.constructs.validation import steps
from stacks.constructs.validation.definition import Validation
from stacks.constructs.validation.machine import ValidationMachine
from stacks.fleet import FleetStack
from stacks.network import NetworkStack
from stacks.router import RouterStack

_KEPT_DAYS = 365
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""What the benchmark reads of a model: its sizes, and how to count tokens."""


class OperationsStack(Stack):
    """Results, messages, the validation and what starts it. Deployed last: its own end is the
    event that starts a validation.

    Args:
        settings: of the deployment.
        network: its models.
        fleet: whose nodes are checked.
        router: through which the benchmark goes.
        now: a notice of a Capacity Block's end that lies before it is left out.
        fingerprint: of all that the deployment is made of; a change of it is a deploy.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: DeploymentSettings,
        network: NetworkStack,
        fleet: FleetStack,
        router: RouterStack,
        fingerprint: str,
        now: datetime,
        **rest: Any,
    ) -> None:
        super().__init__(scope, construct_id, **rest)
        self._settings, self._network, self._router = settings, network, router
        self._add_parameters(fingerprint)
        self.results = self._add_results()
        self.topic = self._add_topic()
        self._let_machines_publish(fleet)
        self.validation = self._add_validation()
        self._start_after_deploys()
        self._add_watch(now)
        self._add_outputs()
        for each in (network, fleet, router):
            self.add_stack_dependency(each)

    def _add_parameters(self, fingerprint: str) -> None:
        name = self._settings.name
        ssm.StringParameter(
            *(self, "Fingerprint"),
            parameter_name=fingerprint_parameter(name),
            description=f"Of what {name} was deployed from: a change of it starts a validation",
            string_value=fingerprint,
        )
        ssm.StringParameter(
            *(self, "Last"),
            parameter_name=last_validation_parameter(name),
            description=f"Last result of turnback validate {name}",
            string_value='{"state": "none"}',
        )

    def _add_results(self) -> s3.Bucket:
        """It stays when its stack is deleted: a result cannot be had again."""
        bucket = s3.Bucket(
            *(self, "Results"),
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            server_access_logs_bucket=self._network.logs,
            server_access_logs_prefix="results/",
            lifecycle_rules=[
                s3.LifecycleRule(
                    expiration=Duration.days(_KEPT_DAYS),
                    abort_incomplete_multipart_upload_after=Duration.days(7),
                ),
            ],
            removal_policy=RemovalPolicy.RETAIN,
        )
        ssm.StringParameter(
            *(self, "ResultsName"),
            parameter_name=results_bucket_parameter(self._settings.name),
            description=f"Bucket with the results of {self._settings.name}",
            string_value=bucket.bucket_name,
        )
        return bucket

    def _add_topic(self) -> sns.Topic:
        topic = sns.Topic(
            *(self, "Messages"),
            topic_name=resource_name(self._settings.name, "messages"),
            enforce_ssl=True,
        )
        # The policy that asks for TLS takes the place of the one that lets alarms publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": self.account}},
            )
        )
        return topic

    def _let_machines_publish(self, fleet: FleetStack) -> None:
        """Nodes and routers leave what a command prints; a router leaves its run's report too."""
        outputs = self.results.arn_for_objects(f"{RUNS}/*")
        may_put = iam.PolicyStatement(actions=["s3:PutObject"], resources=[outputs])
        model = self._settings.model.path
        may_read = iam.PolicyStatement(
            actions=["s3:GetObject"],
            resources=self._network.models.file_arns(model, *_MODEL_FILES),
        )
        policy = iam.Policy(
            *(self, "MachinesMayPublish"),
            roles=[*fleet.roles, self._router.role],
            statements=[may_put],
        )
        iam.Policy(*(self, "RoutersMayMeasure"), roles=[self._router.role], statements=[may_read])
        bucket = self.get_logical_id(self.results.node.default_child)  # type: ignore[arg-type]
        found = f"IAM5[Resource::<{bucket}.Arn>/{RUNS}/*]"
        acknowledge(policy, found, "A run's name is not known before it starts.")

    def _add_validation(self) -> ValidationMachine:
        settings = self._settings
        place = steps.Place(
            deployment=settings.name,
            url=self._router.url,
            api_keys_secret=self._router.api_keys_arn,
            profile=settings.profile,
            model=settings.model.path,
            model_bucket=self._network.models.bucket_name,
            results_bucket=self.results.bucket_name,
            tensor_parallel_size=max(
                settings.prefill.tensor_parallel_size, settings.decode.tensor_parallel_size
            ),
            changes=steps.other_than_profile(settings),
        )
        validation = Validation(
            deployment=settings.name,
            counts={"prefill": settings.prefill.count, "decode": settings.decode.count},
            bucket=self.results.bucket_name,
            topic_arn=self.topic.topic_arn,
            model_bucket=self._network.models.bucket_name,
            manifest_key=f"{model_prefix(settings.model.path)}{MANIFEST}",
            ready=steps.ready(),
            doctor=steps.doctor(),
            transport=steps.transport(place),
            exactness=steps.exactness(place),
            benchmark=steps.benchmark(place, settings.validation.bench_timeout_min * 60),
            nodes_timeout_s=settings.validation.nodes_timeout_min * 60,
        )
        (manifest,) = self._network.models.file_arns(settings.model.path, MANIFEST)
        return ValidationMachine(
            *(self, "Validation"),
            validation=validation,
            bucket=self.results,
            topic=self.topic,
            manifest_arn=manifest,
        )

    def _start_after_deploys(self) -> None:
        if self._settings.after_deploy == "nothing":
            return
        bars = self._settings.validation
        is_scale = self._settings.after_deploy == "scale"
        self.validation.starts_after(
            self,
            validation_input(
                self._settings.after_deploy,
                scale_up=True,
                # Nodes that were asked for stay up, but not where they cannot serve.
                scale_down="on_failure" if is_scale else bars.scale_down,
                min_speedup=bars.min_speedup,
                slo_ttft_p90_ms=bars.slo_ttft_p90_ms,
            ),
        )

    def _add_watch(self, now: datetime) -> None:
        """Alarms tell the topic; the dashboard shows them."""
        bars = self._settings.validation
        alarms = Alarms(
            *(self, "Alarms"),
            settings=self._settings,
            topic=self.topic,
            now=now,
            min_speed_up=bars.min_speedup or 1.0,
            slo_ttft_p90_ms=bars.slo_ttft_p90_ms,
        )
        Dashboard(self, "Dashboard", settings=self._settings, alarms=alarms.by_name)

    def _add_outputs(self) -> None:
        CfnOutput(self, "ResultsBucket", value=self.results.bucket_name)
        CfnOutput(self, "MessagesTopic", value=self.topic.topic_arn, description="Subscribe to it")
        CfnOutput(self, "ValidationMachine", value=self.validation.machine.state_machine_arn)
