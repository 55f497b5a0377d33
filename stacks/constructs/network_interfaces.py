"""Instance type -> its network interfaces. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runtime.contract.instances import InstanceType


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """One interface of a launch template.

    Attributes:
        network_card_index: card it sits on.
        device_index: its place on that card.
        interface_type: `interface` is a plain ENA one with an address; `efa-only` has none.
    """

    network_card_index: int
    device_index: int
    interface_type: Literal["interface", "efa-only"]


def build_network_interfaces(instance: InstanceType) -> tuple[NetworkInterface, ...]:
    """One address for the node, and EFA on every card that can.

    Source:
        EC2 guide, EFA for accelerated instances: the primary interface is ENA at card 0,
        device 0 (an EFA-only one cannot be primary); card 0's EFA follows at device 1.
    """
    primary = NetworkInterface(0, 0, "interface")
    cards = range(instance.first_efa_card, instance.first_efa_card + instance.efa_interfaces)
    return (
        primary,
        *(
            NetworkInterface(card, 1 if card == 0 else instance.efa_device_index, "efa-only")
            for card in cards
        ),
    )


def interface_problems(instance: InstanceType, interfaces: Sequence[NetworkInterface]) -> list[str]:
    """What EC2 would refuse at launch, and neither CloudFormation nor cfn-lint notices."""
    places = [(each.network_card_index, each.device_index) for each in interfaces]
    problems = []
    if len(set(places)) != len(places):
        problems.append("two interfaces share a card and a device index")
    if (0, 0, "interface") not in [
        (each.network_card_index, each.device_index, each.interface_type) for each in interfaces
    ]:
        problems.append("the primary interface must be a plain one at card 0, device 0")
    for card, device in places:
        if card >= instance.network_cards:
            problems.append(f"card {card}: {instance.name} has {instance.network_cards}")
        if device >= instance.interfaces_per_card:
            problems.append(f"device {device}: at most {instance.interfaces_per_card} on a card")
    efa = [each for each in interfaces if each.interface_type == "efa-only"]
    if len(efa) > instance.efa_interfaces:
        problems.append(f"{len(efa)} EFA interfaces: at most {instance.efa_interfaces}")
    if any(each.network_card_index < instance.first_efa_card for each in efa):
        problems.append(f"EFA on a card below {instance.first_efa_card}, which takes none")
    return problems
