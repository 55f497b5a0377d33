"""Kinds of launch failures out of Auto Scaling's messages."""

import pytest

from runtime.aws.launch_failures import explain_launch

FAILED = "Launching EC2 instance failed."


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (
            "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do "
            "not have sufficient p5en.48xlarge capacity in the Availability Zone you requested "
            f"(us-west-2b). {FAILED}",
            "capacity",
        ),
        (
            "We currently do not have sufficient p5en.48xlarge capacity in the Availability Zone "
            f"you requested (us-west-2b). {FAILED}",
            "capacity",
        ),
        (
            "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more "
            "vCPU capacity than your current vCPU limit of 192 allows for the instance bucket "
            f"that the specified instance type belongs to. {FAILED}",
            "quota",
        ),
        (
            "You have requested more instances (7) than your current instance limit of 6 allows "
            f"for the specified instance type. {FAILED}",
            "quota",
        ),
        (
            "ReservationCapacityExceeded - The requested reservation does not have sufficient "
            f"compatible and available capacity for this request. {FAILED}",
            "reservation_full",
        ),
        (
            "The requested reservation does not have sufficient compatible and available "
            f"capacity for this request. {FAILED}",
            "reservation_full",
        ),
        (
            f"InvalidCapacityReservationState.PendingActivation - told by a test. {FAILED}",
            "reservation_inactive",
        ),
        (f"The capacity reservation cr-1 has expired. {FAILED}", "reservation_inactive"),
        (f"Your Capacity Block is not active yet. {FAILED}", "reservation_inactive"),
        (
            f"InvalidCapacityReservationId.NotFound - The ID 'cr-1' does not exist. {FAILED}",
            "reservation_inactive",
        ),
        (f"The market type (purchasing) option is not valid. {FAILED}", "market_type"),
        (
            "You must use a valid fully-formed launch template. The specified launch template, "
            f"with template ID lt-1, does not exist. {FAILED}",
            "launch_template",
        ),
        (
            "InvalidParameterCombination - The associatePublicIPAddress parameter cannot be "
            f"specified when launching with multiple network interfaces. {FAILED}",
            "launch_template",
        ),
        (
            "Could not launch On-Demand Instances. InvalidAMIID.NotFound - The image id "
            f"'[ami-02c7e84c65fcfecee]' does not exist. {FAILED}",
            "image",
        ),
        (f"AMI ami-1 is pending, and cannot be run. {FAILED}", "image"),
        (
            f"InsufficientFreeAddressesInSubnet - There are not enough free addresses. {FAILED}",
            "addresses",
        ),
        (
            f"UnauthorizedOperation - You are not authorized to perform this operation. {FAILED}",
            "permission",
        ),
        (
            "Instance became unhealthy while waiting for instance to be in InService state. "
            "Termination Reason: Client.InternalError: Client error on launch",
            "permission",
        ),
        (
            "The requested configuration is currently not supported. Please check the "
            f"documentation for supported configurations. {FAILED}",
            "unsupported",
        ),
        (f"Authentication Failure. {FAILED}", "other"),
        ("", "other"),
    ],
)
def test_message_has_its_kind(message: str, word: str) -> None:
    """Each message that users meet leads to one kind, with and without AWS's code."""
    assert explain_launch(message).word == word


def test_only_what_time_may_mend_is_waited_for() -> None:
    """Capacity may come free; a quota, an AMI or a template stays as it is."""
    waits = {"InsufficientInstanceCapacity", "ReservationCapacityExceeded", "a new word"}
    stays = {"VcpuLimitExceeded", "InvalidAMIID.NotFound", "InvalidLaunchTemplateId.NotFound"}
    assert not any(explain_launch(word).lasting for word in waits)
    assert all(explain_launch(word).lasting for word in stays)
