"""What moto 5.2.5 gets wrong of this kit's templates, put right in the emulator alone.

Templates stay as AWS wants them. Each mend has a test that fails once moto does without it
(tests/local/rehearsal/test_mends.py).
"""

import json
import re
from collections.abc import Callable
from typing import Any

from moto.core.common_models import CloudFormationModel
from moto.ec2.models.flow_logs import FlowLogs
from moto.elbv2.models import FakeLoadBalancer
from moto.secretsmanager.models import secretsmanager_backends
from moto.ssm.models import Parameter

Put = Callable[[Any, str, Any], None]

_RESOLVED = re.compile(r"\{\{resolve:secretsmanager:(arn:[^}]+?):SecretString:::?\}\}")


class Secret(CloudFormationModel):
    """AWS::SecretsManager::Secret, which moto skips: routers read their keys from it."""

    def __init__(self, arn: str) -> None:
        self.physical_resource_id = arn

    @staticmethod
    def cloudformation_name_type() -> str:
        """Property with the resource's name."""
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        """CloudFormation's name of it."""
        return "AWS::SecretsManager::Secret"

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> "Secret":
        """Make the secret; references to other secrets in its text are resolved."""
        properties = cloudformation_json["Properties"]
        backend = secretsmanager_backends[account_id][region_name]
        made = backend._add_secret(
            secret_id=resource_name,
            secret_string=_secret_text(backend, properties),
            description=properties.get("Description"),
            tags=properties.get("Tags"),
        )
        return cls(made[0].arn)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, _cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        """End the secret at once, as CloudFormation does."""
        backend = secretsmanager_backends[account_id][region_name]
        backend.delete_secret(resource_name, None, force_delete_without_recovery=True)


def _secret_text(backend: Any, properties: dict[str, Any]) -> str:
    if "GenerateSecretString" in properties:
        wanted = properties["GenerateSecretString"]
        made = backend.get_random_password(
            password_length=int(wanted.get("PasswordLength", 32)),
            exclude_characters=wanted.get("ExcludeCharacters", ""),
            exclude_numbers=False,
            exclude_punctuation=bool(wanted.get("ExcludePunctuation", False)),
            exclude_uppercase=False,
            exclude_lowercase=False,
            include_space=False,
            require_each_included_type=True,
        )
        return str(json.loads(made)["RandomPassword"])
    return _RESOLVED.sub(
        lambda found: str(backend.get_secret_value(found[1], "", "")["SecretString"]),
        properties["SecretString"],
    )


class PlacementGroup(CloudFormationModel):
    """AWS::EC2::PlacementGroup: a name and nothing behind it, since moto has no such API."""

    def __init__(self, name: str) -> None:
        self.physical_resource_id = name

    @staticmethod
    def cloudformation_name_type() -> str:
        """It takes no name."""
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        """CloudFormation's name of it."""
        return "AWS::EC2::PlacementGroup"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, *_: Any, **__: Any
    ) -> "PlacementGroup":
        """Make the name."""
        return cls(resource_name)

    @classmethod
    def delete_from_cloudformation_json(cls, *_: Any) -> None:
        """Nothing to end."""


def listed_tags(properties: dict[str, Any]) -> dict[str, Any]:
    """A parameter's tags are a map in CloudFormation; moto wants a list."""
    tags = [{"Key": key, "Value": value} for key, value in properties.get("Tags", {}).items()]
    return {**properties, "Tags": tags}


def without_folder(properties: dict[str, Any]) -> dict[str, Any]:
    """A folder may follow a flow log's bucket; moto takes both for the bucket's name."""
    bucket, _, _ = properties["LogDestination"].partition("/")
    return {**properties, "LogDestination": bucket}


def _typed(balancer: FakeLoadBalancer, properties: dict[str, Any]) -> None:
    """moto takes every load balancer of a template for one that speaks HTTP."""
    balancer.type = properties["Type"]


def apply(put: Put = setattr) -> None:
    """Mend moto, in this process.

    Args:
        put: sets an attribute; a test takes it back.
    """
    _mend(put, Parameter, before=listed_tags)
    _mend(put, FlowLogs, before=without_folder)
    _mend(put, FakeLoadBalancer, after=_typed)


def _mend(
    put: Put,
    model: Any,
    before: Callable[[dict[str, Any]], dict[str, Any]] = lambda properties: properties,
    after: Callable[[Any, dict[str, Any]], None] = lambda _made, _properties: None,
) -> None:
    """Put a change before or after a resource's creation."""
    original = model.create_from_cloudformation_json.__func__

    def create(cls: Any, name: str, template: dict[str, Any], *rest: Any, **more: Any) -> Any:
        properties = before(template["Properties"])
        made = original(cls, name, {**template, "Properties": properties}, *rest, **more)
        after(made, properties)
        return made

    put(model, "create_from_cloudformation_json", classmethod(create))
