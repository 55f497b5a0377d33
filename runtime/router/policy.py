"""Which nodes serve a turn. Pure."""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

_BOUND = 1.25
"""A node that holds more than this share above the mean is overloaded."""

_LEAST_BOUND = 2
"""So many turns at once are never too many: small numbers have no useful mean."""

_SAME_TOKENS = 1024
"""Prefill queues that differ by less are equally long."""


class Loaded(Protocol):
    """What the policy has to know of a node."""

    @property
    def url(self) -> str:
        """Its address."""

    @property
    def running(self) -> int:
        """Turns on it."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that it was sent and has not answered."""

    @property
    def last_used(self) -> int:
        """Higher for a node that was chosen later."""


Node = TypeVar("Node", bound=Loaded)


def prefill_order(nodes: Sequence[Node], last_url: str | None) -> list[Node]:
    """P nodes, the shortest queue first.

    Args:
        nodes: those that can be used.
        last_url: the P of the conversation's last turn; it is preferred where queues are
            alike, since its prefix cache may hold the last prompt.
    """

    def rank(node: Node) -> tuple[int, bool, int]:
        queue = node.outstanding_tokens // _SAME_TOKENS
        return queue, node.url != last_url, node.last_used

    return sorted(nodes, key=rank)


def decode_order(nodes: Sequence[Node], owner_url: str | None, hint: str | None) -> list[Node]:
    """D nodes: the handle's owner or the hinted one while it is not overloaded, then by load.

    Leaving the owner costs nothing but its prefix cache: P pulls from wherever the
    blocks lie. A hint is as good as an owner, less what it does not know.

    Args:
        nodes: those that can be used.
        owner_url: the D that holds the conversation's KV.
        hint: what the client calls related requests by.
    """
    if owner_url is None and hint is not None and nodes:
        owner_url = max(nodes, key=lambda node: _weight(hint, node.url)).url
    bound = load_bound(sum(node.running for node in nodes), len(nodes))

    def rank(node: Node) -> tuple[bool, int, int]:
        is_preferred = node.url == owner_url and node.running < bound
        return not is_preferred, node.running, node.last_used

    return sorted(nodes, key=rank)


def load_bound(running: int, nodes: int) -> int:
    """How many turns one of `nodes` may have when all have `running`, before it is overloaded.

    Source: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016).
    """
    return max(_LEAST_BOUND, math.ceil(_BOUND * (running + 1) / max(1, nodes)))


def _weight(hint: str, url: str) -> bytes:
    """Rendezvous hashing: a node that joins or leaves moves only its own share."""
    return blake2b(f"{hint}\0{url}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
