"""Findings of cdk-nag that stand, each with its reason."""

from aws_cdk import Acknowledgment, Validations
from constructs import IConstruct


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
