"""Instance type -> network interfaces."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.contract.instances import INSTANCE_TYPES, InstanceType
from stacks.constructs.network_interfaces import (
    NetworkInterface,
    build_network_interfaces,
    interface_problems,
)

ROWS = st.sampled_from(sorted(INSTANCE_TYPES.values(), key=lambda row: row.name))


@st.composite
def types_to_come(draw: st.DrawFn) -> InstanceType:
    """Rows that the table may get: any number of cards, card 0 with EFA or without."""
    cards, first = draw(st.integers(1, 64)), draw(st.integers(0, 1))
    efa = draw(st.integers(0 if first == cards else 1, cards - first)) if cards > first else 0
    return InstanceType(
        "new.48xlarge", 192, 8, 1, cards, efa, draw(st.integers(2, 16)), first_efa_card=first
    )


@given(st.one_of(ROWS, types_to_come()))
def test_layout_is_one_that_ec2_launches(row: InstanceType) -> None:
    """Unique places within the type's cards, and as many EFA interfaces as it has."""
    interfaces = build_network_interfaces(row)
    places = [(each.network_card_index, each.device_index) for each in interfaces]
    assert len(set(places)) == len(places)
    kinds = Counter(each.interface_type for each in interfaces)
    assert kinds["efa-only"] == row.efa_interfaces
    assert all(card < row.network_cards for card, _ in places)
    assert all(device < row.interfaces_per_card for _, device in places)
    assert interface_problems(row, interfaces) == []


@given(st.one_of(ROWS, types_to_come()))
def test_only_the_primary_has_an_address(row: InstanceType) -> None:
    """One plain interface, at card 0 and device 0: one IP a node."""
    plain = [each for each in build_network_interfaces(row) if each.interface_type == "interface"]
    assert plain == [NetworkInterface(0, 0, "interface")]


@pytest.mark.parametrize(
    ("name", "total"),
    [
        *(("p5en.48xlarge", 17), ("p5.48xlarge", 33), ("p5e.48xlarge", 33), ("p5.4xlarge", 2)),
        *(("p6-b200.48xlarge", 9), ("p6-b300.48xlarge", 17), ("p4d.24xlarge", 5)),
        *(("p4de.24xlarge", 5), ("g6e.48xlarge", 5), ("g7e.48xlarge", 5), ("trn2.48xlarge", 17)),
    ],
)
def test_totals_are_the_published_ones(name: str, total: int) -> None:
    """EC2's and ParallelCluster's counts of interfaces."""
    assert len(build_network_interfaces(INSTANCE_TYPES[name])) == total


def test_first_card_of_b300_takes_no_efa() -> None:
    """Its card 0 is ENA only; EFA sits on cards 1 to 16, at device 0."""
    _, *efa = build_network_interfaces(INSTANCE_TYPES["p6-b300.48xlarge"])
    assert [(each.network_card_index, each.device_index) for each in efa] == [
        (card, 0) for card in range(1, 17)
    ]


def test_first_card_of_p5en_takes_efa_beside_the_primary() -> None:
    """EFA-only at card 0 device 1, then at device 0 of each other card."""
    _, *efa = build_network_interfaces(INSTANCE_TYPES["p5en.48xlarge"])
    assert [(each.network_card_index, each.device_index) for each in efa] == [
        (0, 1),
        *((card, 0) for card in range(1, 16)),
    ]


P5EN = INSTANCE_TYPES["p5en.48xlarge"]
B300 = INSTANCE_TYPES["p6-b300.48xlarge"]
GOOD = build_network_interfaces(P5EN)


@pytest.mark.parametrize(
    ("row", "interfaces", "said"),
    [
        (P5EN, (*GOOD, GOOD[1]), "share a card"),
        (P5EN, GOOD[1:], "primary"),
        (P5EN, (*GOOD[:-1], replace(GOOD[-1], network_card_index=99)), "card 99"),
        (P5EN, (*GOOD[:-1], replace(GOOD[-1], device_index=9)), "device 9"),
        (P5EN, (*GOOD, NetworkInterface(3, 1, "efa-only")), "17 EFA interfaces"),
        (B300, (GOOD[0], NetworkInterface(0, 1, "efa-only")), "below 1"),
    ],
)
def test_layouts_that_ec2_refuses_are_named(
    row: InstanceType, interfaces: tuple[NetworkInterface, ...], said: str
) -> None:
    """cfn-lint lets these through, and EC2 says so only when the group launches."""
    assert said in " ".join(interface_problems(row, interfaces))
