"""Why Auto Scaling could not start an instance, out of what its activities say."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A kind of failure.

    Attributes:
        word: its name, for programs.
        what: one sentence.
        allowed: what would have worked.
        fix: what to do.
        lasting: whether waiting cannot mend it.
    """

    word: str
    what: str
    allowed: str
    fix: str
    lasting: bool


_RULES: tuple[tuple[str, LaunchFailure], ...] = (
    (
        r"ReservationCapacityExceeded|reservation does not have sufficient",
        LaunchFailure(
            "reservation_full",
            "the capacity reservation has no free instance that fits",
            "a reservation of the same type, zone and platform with enough free instances; one "
            "that has just ended frees its place after minutes",
            "look at it with turnback preflight; end what else uses it, or enlarge it",
            lasting=False,
        ),
    ),
    (
        r"InvalidCapacityReservationState|InvalidCapacityReservationId"
        r"|capacity[ -](reservation|block)[^.]*\b(not active|not yet|inactive|expired|ended"
        r"|cancell?ed|scheduled|pending|does not exist|not found)",
        LaunchFailure(
            "reservation_inactive",
            "the capacity reservation or Capacity Block is not active",
            "a reservation in state active, before its end",
            "see its state and window with turnback preflight; scale up when it is active, or "
            "put another one into the settings",
            lasting=True,
        ),
    ),
    (
        r"market type \(purchasing\) option is not valid",
        LaunchFailure(
            "market_type",
            "the launch template's market type is not the reservation's",
            "market type capacity-block for a Capacity Block, none for other reservations",
            "set the capacity kind to what the reservation is, and deploy again",
            lasting=True,
        ),
    ),
    (
        r"VcpuLimitExceeded|InstanceLimitExceeded|more vCPU capacity than"
        r"|current (vCPU|instance) limit|reached your quota",
        LaunchFailure(
            "quota",
            "the account's vCPU quota does not allow more instances of this family",
            "a quota of at least the vCPUs that run and those that are wanted",
            "turnback preflight names the quota and the request for more",
            lasting=True,
        ),
    ),
    (
        r"InsufficientInstanceCapacity|InsufficientHostCapacity|InsufficientCapacity"
        r"|UnfulfillableCapacity|do not have sufficient|no [\w ]*capacity available",
        LaunchFailure(
            "capacity",
            "AWS has no free capacity of this type in the zone",
            "capacity at that time; a Capacity Block that has not begun reads the same",
            "wait: Auto Scaling goes on trying; or take another zone, a reservation or a "
            "Capacity Block",
            lasting=False,
        ),
    ),
    (
        r"InvalidAMIID|\b(AMI|image id)\b[^.]*\b(does not exist|pending|not available"
        r"|unavailable|disabled|invalid|deregistered)"
        r"|architecture [^.]*does not match",
        LaunchFailure(
            "image",
            "the AMI cannot be started",
            "an available x86_64 AMI of this region that the account may use",
            "set another AMI id, and deploy again",
            lasting=True,
        ),
    ),
    (
        r"InvalidLaunchTemplate|launch template|InvalidParameterCombination"
        r"|InvalidParameterValue|InvalidBlockDeviceMapping|AttachmentLimitExceeded"
        r"|EFA interfaces are not supported",
        LaunchFailure(
            "launch_template",
            "the launch template is missing, or EC2 refuses it",
            "the template as the Fleet stack writes it",
            "deploy the Fleet stack again; a template that was changed by hand is put right by it",
            lasting=True,
        ),
    ),
    (
        r"InsufficientFreeAddressesInSubnet|not enough free addresses",
        LaunchFailure(
            "addresses",
            "the subnet has no free address",
            "one free address per node",
            "free addresses, or give a larger subnet",
            lasting=True,
        ),
    ),
    (
        r"UnauthorizedOperation|not authorized to perform|InvalidKMSKey|Client\.InternalError",
        LaunchFailure(
            "permission",
            "Auto Scaling may not start the instance",
            "a service-linked role that may use the template's image, key and profile",
            "grant what the message names, as a rule the KMS key of the AMI's disks",
            lasting=True,
        ),
    ),
    (
        r"Unsupported\b|not supported in your requested|configuration is currently not supported",
        LaunchFailure(
            "unsupported",
            "the type cannot be started here as it is configured",
            "a zone that offers the type",
            "see where it is offered with turnback preflight",
            lasting=True,
        ),
    ),
)
"""First match counts.

Source: the EC2 API's error codes; the wordings of older Auto Scaling activities, which carry no
code; "EFA interfaces" and "market type" as users report them.
"""

_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), failure) for pattern, failure in _RULES)

_OTHER = LaunchFailure(
    "other",
    "an instance could not be started",
    "a launch that EC2 accepts",
    "read AWS's message",
    lasting=False,
)


def explain_launch(message: str) -> LaunchFailure:
    """The kind of failure that an activity's status message tells."""
    return next((kind for pattern, kind in _PATTERNS if pattern.search(message)), _OTHER)
