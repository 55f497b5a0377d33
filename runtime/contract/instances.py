"""The EC2 instance types this kit knows, in one table.

Source: EC2's DescribeInstanceTypes as moto 5.2.5 ships it, the EC2 guide "EFA for
accelerated instances", and for B300 aws-parallelcluster issue 7143. Prices are not here:
they are asked for (`turnback preflight`).
"""

from dataclasses import dataclass

P5EN_REGIONS = (
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ap-northeast-1", "ap-northeast-2"),
    *("ap-south-1", "ap-southeast-3", "eu-north-1", "eu-south-2", "me-central-1"),
)
"""Regions that offer p5en.48xlarge."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One row.

    Attributes:
        name: EC2's.
        vcpus: as EC2's quotas count them.
        gpus: accelerators.
        gpu_memory_mib: of each; None where EC2 tells no size.
        network_cards: all of them.
        interfaces_per_card: most interfaces of one card.
        efa_interfaces: most EFA interfaces of an instance.
        first_efa_card: lowest card that takes an EFA interface.
        efa_device_index: of EFA interfaces on the cards above 0.
        instance_store: number of local disks, GB of each.
        has_capacity_blocks: whether Capacity Blocks are sold for it.
        regions: that offer it; empty where the table does not know.
        missing: what serving on it would need; empty where this kit serves on it.
    """

    name: str
    vcpus: int
    gpus: int
    gpu_memory_mib: int | None
    network_cards: int
    efa_interfaces: int
    interfaces_per_card: int
    first_efa_card: int = 0
    efa_device_index: int = 0
    instance_store: tuple[int, int] = (8, 3800)
    has_capacity_blocks: bool = True
    regions: tuple[str, ...] = ()
    missing: str = ""


_TRN2_MISSING = (
    "a vLLM for Neuron with this kit's connector, and an image with the Neuron driver; "
    "neither exists here"
)

INSTANCE_TYPES: dict[str, InstanceType] = {
    row.name: row
    for row in (
        InstanceType("p5en.48xlarge", 192, 8, 144_384, 16, 16, 4, regions=P5EN_REGIONS),
        InstanceType("p5.48xlarge", 192, 8, 81_920, 32, 32, 2),
        InstanceType("p5e.48xlarge", 192, 8, 144_384, 32, 32, 2),
        InstanceType("p5.4xlarge", 16, 1, 81_920, 1, 1, 4, instance_store=(1, 3800)),
        InstanceType("p6-b200.48xlarge", 192, 8, 183_359, 8, 8, 4),
        InstanceType("p6-b300.48xlarge", 192, 8, 275_040, 17, 16, 4, first_efa_card=1),
        InstanceType("p4d.24xlarge", 96, 8, 40_960, 4, 4, 15, instance_store=(8, 1000)),
        InstanceType("p4de.24xlarge", 96, 8, 81_920, 4, 4, 15, instance_store=(8, 1000)),
        *(
            InstanceType(
                *(f"g6e.{size}xlarge", vcpus, gpus, 45_776, cards, cards, per_card),
                instance_store=store,
                has_capacity_blocks=False,
            )
            for size, vcpus, gpus, cards, per_card, store in (
                (8, 32, 1, 1, 8, (2, 450)),
                (12, 48, 4, 1, 10, (2, 1900)),
                (24, 96, 4, 2, 10, (2, 1900)),
                (48, 192, 8, 4, 10, (4, 1900)),
            )
        ),
        *(
            InstanceType(
                *(f"g7e.{size}xlarge", vcpus, gpus, 98_304, cards, cards, per_card),
                instance_store=store,
                has_capacity_blocks=False,
            )
            for size, vcpus, gpus, cards, per_card, store in (
                (8, 32, 1, 1, 8, (1, 1900)),
                (12, 48, 2, 1, 10, (1, 3800)),
                (24, 96, 4, 2, 10, (2, 3800)),
                (48, 192, 8, 4, 10, (4, 3800)),
            )
        ),
        InstanceType(
            *("trn2.48xlarge", 192, 16, None, 16, 16, 2),
            instance_store=(4, 1900),
            missing=_TRN2_MISSING,
        ),
    )
}
"""By name."""


def servable_types() -> str:
    """The types this kit serves on, for a message."""
    return ", ".join(name for name, row in INSTANCE_TYPES.items() if not row.missing)
