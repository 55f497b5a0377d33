"""The clients' keys, in the form that `turnback router --api-keys-secret` reads."""

import json

from aws_cdk import SecretValue
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from stacks.constructs.reasons import acknowledge

KEY_CHARACTERS = 48
_NO_ROTATION = (
    "Clients hold these keys: a rotation that nobody tells them of locks them out. "
    "Routers take over a changed secret within seconds."
)


class ApiKeysSecret(Construct):
    """A first administrator's key, made by Secrets Manager; further keys are put in by hand.

    Two secrets, since a generated one holds a single generated value, and the routers'
    form is a list.
    """

    def __init__(self, scope: Construct, construct_id: str, *, deployment: str) -> None:
        super().__init__(scope, construct_id)
        first = secretsmanager.Secret(
            self,
            "FirstKey",
            description=f"First administrator's key of {deployment}",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                exclude_punctuation=True, password_length=KEY_CHARACTERS
            ),
        )
        entry = {"key": first.secret_value.unsafe_unwrap(), "tenant": "admin", "admin": True}
        keys = secretsmanager.Secret(
            self,
            "Keys",
            description=f"Keys of the clients of {deployment}",
            secret_string_value=SecretValue.unsafe_plain_text(json.dumps({"keys": [entry]})),
        )
        for secret in (first, keys):
            acknowledge(secret, "SMG4", _NO_ROTATION)
        self.arn = keys.secret_arn
