"""Findings of cdk-nag that stand, each with its reason."""

from aws_cdk import Acknowledgment, Stack, Token, Validations
from constructs import IConstruct


def arn_in_findings(scope: IConstruct, service: str) -> str:
    """How cdk-nag writes the beginning of an ARN, also in a stack whose region is not known.

    Args:
        scope: in the stack.
        service: of the ARN.
    """
    stack = Stack.of(scope)
    known = {"Partition": stack.partition, "Region": stack.region}
    partition, region = (
        f"<AWS::{word}>" if Token.is_unresolved(value) else value for word, value in known.items()
    )
    return f"arn:{partition}:{service}:{region}:<AWS::AccountId>:"


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Accept a finding on a construct; the report keeps it, with the reason.

    Args:
        construct: where it was found.
        rule: of the AwsSolutions pack, such as `S1`.
        reason: why it stands.
    """
    Validations.of(construct).acknowledge(
        Acknowledgment(id=f"AwsSolutions::AwsSolutions-{rule}", reason=reason)
    )
