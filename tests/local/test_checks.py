"""What is checked before anything starts."""

from pathlib import Path

from runtime.local.checks import free_ports


def test_free_ports_are_none_of_outgoing_connections() -> None:
    """A connection that any process opens cannot take a port that was chosen for a server."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        ports = free_ports(8)
        assert len(set(ports)) == 8
        assert all(1024 <= port < low for port in ports)
