"""Which machine images a deployment runs."""

from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from runtime.contract.deployment import ImageSettings


class ImageStack(Stack):
    """AMI ids, and a parameter that tells them to people and programs.

    Args:
        name: of the deployment.
        image: AMI ids.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, name: str, image: ImageSettings, **rest: Any
    ) -> None:
        super().__init__(scope, construct_id, **rest)
        self.ami_id = image.ami_id
        self.router_ami_id = image.router_ami_id or image.ami_id
        ssm.StringParameter(
            self,
            "AmiId",
            parameter_name=f"/turnback/{name}/image/ami-id",
            description=f"AMI of the GPU nodes of {name}",
            string_value=self.ami_id,
        )
