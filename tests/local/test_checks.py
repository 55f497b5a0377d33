"""What is checked before anything starts."""

from pathlib import Path

import pytest

from runtime.errors import BadInput
from runtime.local.checks import check_port_free, free_ports


def test_free_ports_are_none_of_outgoing_connections() -> None:
    """A connection that any process opens cannot take a port that was chosen for a server."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        ports = free_ports(8)
        assert len(set(ports)) == 8
        assert all(1024 <= port < low for port in ports)


@pytest.mark.parametrize("host", ["nonsense.invalid", "192.0.2.1"])
def test_address_that_is_not_ours_is_told_apart_from_a_port_in_use(host: str) -> None:
    """The message names the host, and not the port."""
    with pytest.raises(BadInput, match="nothing can listen"):
        check_port_free(host, free_ports(1)[0])


def test_ipv6_addresses_can_be_listened_on() -> None:
    """The probe uses the address's own family."""
    check_port_free("::1", free_ports(1)[0])
