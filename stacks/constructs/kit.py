"""The kit's wheel as a hashed asset, and what tells an instance of it."""

import hashlib
from pathlib import Path

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from runtime.contract.deployment import DeploymentSettings
from stacks.constructs.user_data import render_user_data


def wheel_sha256(wheel: Path) -> str:
    """Digest that a node checks."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


class Kit(Construct):
    """The wheel in the bootstrap bucket; the image holds third-party packages only."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        wheel: Path,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, construct_id)
        self._wheel, self._settings = wheel, settings
        self._asset = assets.Asset(self, "Wheel", path=str(wheel))

    def may_be_read(self) -> iam.PolicyStatement:
        """Leave for this object alone, not for the bucket."""
        bucket = self._asset.bucket
        return iam.PolicyStatement(
            actions=["s3:GetObject"],
            resources=[bucket.arn_for_objects(self._asset.s3_object_key)],
        )

    def user_data(self, role: str, parameter: str, store_secret: str = "") -> str:
        """Script of an instance of a role.

        Args:
            role: prefill, decode or router.
            parameter: SSM parameter with the role's spec or arguments.
            store_secret: ARN of the secret with the store's address; empty: no store.
        """
        settings = self._settings
        return render_user_data(
            {
                "TURNBACK_DEPLOYMENT": settings.name,
                "TURNBACK_INDEX_URL": settings.downloads.index_url or "",
                "TURNBACK_PARAMETER": parameter,
                "TURNBACK_PROXY_URL": settings.downloads.proxy_url or "",
                "TURNBACK_REGION": settings.aws_region,
                "TURNBACK_ROLE": role,
                "TURNBACK_STORE_SECRET": store_secret,
                "TURNBACK_WHEEL_NAME": self._wheel.name,
                "TURNBACK_WHEEL_SHA256": wheel_sha256(self._wheel),
                "TURNBACK_WHEEL_URI": self._asset.s3_object_url,
            }
        )
