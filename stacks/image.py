"""Which machine images a deployment runs, and what builds them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_s3_assets as assets
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from ami.bundle import write_bundle
from ami.documents import KINDS, Kind
from ami.versions import read_versions
from runtime.contract.deployment import ImageSettings
from runtime.errors import BadInput
from stacks.constructs.image_pipeline import Builds, ImagePipeline

_ROUTER_BUILD_INSTANCE_TYPE = "c7i.large"


class ImageStack(Stack):
    """AMI ids, a parameter that tells the nodes', and a pipeline for each kind of image.

    Args:
        name: of the deployment.
        image: AMI ids, and where images are built.
        kit_wheel: by which images are verified.
        tags_of_builds: of build instances, beside the kit's own.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        image: ImageSettings,
        kit_wheel: Path,
        tags_of_builds: Mapping[str, str] = {},
        **rest: Any,
    ) -> None:
        super().__init__(scope, construct_id, **rest)
        self._name, self._image, self._tags = name, image, tags_of_builds
        if image.ami_id:
            self._add_parameter(image.ami_id)
        self._add_pipelines(kit_wheel)

    @property
    def ami_id(self) -> str:
        """AMI of GPU nodes.

        Raises:
            BadInput: no image is named.
        """
        if self._image.ami_id is None:
            raise BadInput(
                f"{self._name} has no image",
                got="no image.ami_id",
                allowed="the id of an image of this kit",
                fix=f"turnback image build {self._name} --wait prints the line for [image]",
            )
        return self._image.ami_id

    @property
    def router_ami_id(self) -> str:
        """AMI of routers: their own, or the GPU nodes'."""
        return self._image.router_ami_id or self.ami_id

    def _add_parameter(self, ami_id: str) -> None:
        ssm.StringParameter(
            self,
            "AmiId",
            parameter_name=f"/turnback/{self._name}/image/ami-id",
            description=f"AMI of the GPU nodes of {self._name}",
            string_value=ami_id,
        )

    def _add_pipelines(self, kit_wheel: Path) -> None:
        versions = read_versions()
        with tempfile.TemporaryDirectory() as folder:
            bundle = write_bundle(Path(folder) / "turnback-image.tar.gz", versions)
            builds = Builds(
                bundle=assets.Asset(self, "Bundle", path=str(bundle)),
                bundle_file=bundle,
                wheel=assets.Asset(self, "Wheel", path=str(kit_wheel)),
                wheel_file=kit_wheel,
                subnet_id=self._image.build_subnet_id,
                security_group_id=self._image.build_security_group_id,
                tags=self._tags,
            )
            for kind in KINDS:
                ImagePipeline(
                    *(self, kind.capitalize()),
                    name=self._name,
                    kind=kind,
                    versions=versions,
                    instance_type=self._instance_type(kind),
                    builds=builds,
                )

    def _instance_type(self, kind: Kind) -> str:
        return self._image.build_instance_type if kind == "node" else _ROUTER_BUILD_INSTANCE_TYPE
