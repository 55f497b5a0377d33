"""The node's own private address, where peers reach its engine and its side channel; its id."""

import contextlib
import http.client
import socket

from runtime.errors import StartFailed

METADATA_HOST = "169.254.169.254"
_TIMEOUT_S = 2.0


def private_address(metadata: str = METADATA_HOST, port: int = 80) -> str:
    """IPv4 address of the primary interface.

    The instance's metadata tell it; without them it is the address from which this machine
    would send to others. EFA-only interfaces have none.

    Args:
        metadata: address of the metadata service.
        port: of it.

    Raises:
        StartFailed: neither tells one.
    """
    told = metadata_text("local-ipv4", metadata, port) or _outgoing(metadata)
    if told:
        return told
    raise StartFailed(
        "the node's private address is not known",
        got=f"no local-ipv4 from {metadata}, and no route",
        allowed="instance metadata (IMDSv2), or an interface with an IPv4 address",
        fix="switch the instance's metadata service on, or mend its network",
    )


def instance_id(metadata: str = METADATA_HOST, port: int = 80) -> str:
    """The instance's id, by which it tags itself.

    Raises:
        StartFailed: the metadata service does not tell it.
    """
    told = metadata_text("instance-id", metadata, port)
    if told:
        return told
    raise StartFailed(
        "the instance's id is not known",
        got=f"no instance-id from {metadata}",
        allowed="instance metadata (IMDSv2)",
        fix="switch the instance's metadata service on",
    )


def metadata_text(name: str, metadata: str = METADATA_HOST, port: int = 80) -> str | None:
    """One of the instance's metadata, by a token (IMDSv2); None: it is not told."""
    connection = http.client.HTTPConnection(metadata, port, timeout=_TIMEOUT_S)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        connection.request("PUT", "/latest/api/token", headers=lifetime)
        reply = connection.getresponse()
        token = reply.read().decode("ascii", "replace").strip()
        if reply.status != 200 or not (token.isascii() and token.isprintable()):
            return None
        headers = {"X-aws-ec2-metadata-token": token}
        connection.request("GET", f"/latest/meta-data/{name}", headers=headers)
        reply = connection.getresponse()
        text = reply.read().decode("ascii", "replace").strip()
        return text if reply.status == 200 else None
    return None


def _outgoing(to: str) -> str | None:
    """Nothing is sent: connecting a datagram socket only chooses the interface."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        probe.connect((to, 9))
        return str(probe.getsockname()[0])
    return None
