"""Where a deployment's nodes take models from."""

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from runtime.contract.model import model_bucket_parameter, model_prefix


class ModelBucket(Construct):
    """A private bucket, and a parameter that tells its name to nodes and people.

    It stays when its stack is deleted: what is in it took hours to upload.

    Args:
        deployment: name of the deployment.
        logs: gets its access logs.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, deployment: str, logs: s3.IBucket
    ) -> None:
        super().__init__(scope, construct_id)
        self.parameter_name = model_bucket_parameter(deployment)
        self._bucket = s3.Bucket(
            *(self, "Bucket"),
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            server_access_logs_bucket=logs,
            server_access_logs_prefix="models/",
            # Parts of an upload that was given up are paid for, and nobody sees them.
            lifecycle_rules=[
                s3.LifecycleRule(abort_incomplete_multipart_upload_after=Duration.days(7))
            ],
            removal_policy=RemovalPolicy.RETAIN,
        )
        ssm.StringParameter(
            self,
            "Name",
            parameter_name=self.parameter_name,
            description=f"Bucket with the models of {deployment}",
            string_value=self._bucket.bucket_name,
        )

    @property
    def bucket_name(self) -> str:
        """Of the bucket."""
        return self._bucket.bucket_name

    def file_arns(self, name: str, *files: str) -> list[str]:
        """ARNs of some of a model's files.

        Args:
            name: id and revision.
            files: below its folder.
        """
        return [self._bucket.arn_for_objects(f"{model_prefix(name)}{each}") for each in files]

    def may_be_read(self, name: str) -> iam.PolicyStatement:
        """Leave for one model's files, and not to list.

        Args:
            name: id and revision.
        """
        return iam.PolicyStatement(
            actions=["s3:GetObject"],
            resources=[self._bucket.arn_for_objects(self._files(name))],
        )

    def finding(self, name: str) -> str:
        """cdk-nag's name of that leave where it is given in another stack."""
        stack = Stack.of(self)
        exported = stack.resolve(stack.export_value(self._bucket.bucket_arn))["Fn::ImportValue"]
        return f"IAM5[Resource::{exported}/{self._files(name)}]"

    @staticmethod
    def _files(name: str) -> str:
        return f"{model_prefix(name)}*"
