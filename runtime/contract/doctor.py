"""What a node's doctor answers: the node writes it, a fleet's doctor reads it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from runtime.contract.node import Frozen

Stage = Literal["image", "boot", "live"]
"""image: at the end of an image's build; boot: before the engine starts; live: it serves."""
Status = Literal["pass", "warn", "fail"]

STATUSES: tuple[Status, ...] = ("pass", "warn", "fail")
"""From best to worst."""
MOST_CHARACTERS = 300
"""Of a text: the answers of all checks fit into the 24,000 that SSM gives back."""


def _shortened(text: object) -> object:
    """One line, cut in its middle: the end of what a program says often has the reason.

    What cannot be printed is a `?`: JSON needs six characters for it, and a terminal obeys it.
    """
    if not isinstance(text, str):
        return text
    line = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    half = MOST_CHARACTERS // 2 - 2
    return line if len(line) <= MOST_CHARACTERS else f"{line[:half]} .. {line[-half:]}"


Line = Annotated[str, BeforeValidator(_shortened)]


class DoctorFinding(Frozen):
    """What one check found."""

    check: str = Field(pattern=r"^[a-z0-9-]+$")
    """Its id."""
    status: Status
    evidence: Line
    """What was seen."""
    fix: Line = ""
    """What to do now; empty of a pass."""
    took_s: float = Field(default=0.0, ge=0)


class TrafficReading(Frozen):
    """How far counters of a node moved."""

    window_s: float | None = Field(default=None, gt=0)
    """Of the engine's counter; None: since engine and driver began."""
    nixl_bytes: int = Field(ge=0)
    """That this node's engine read from others."""
    efa_tx_bytes: int = Field(ge=0)
    """That this node's EFA devices sent."""
    efa_rx_bytes: int = Field(ge=0)
    """That they received."""
    moved_devices: int = Field(ge=0)
    """EFA devices of which one of the two moved."""


class NodeFacts(Frozen):
    """What nodes that exchange KV must have in common; empty: not known."""

    instance_type: Line = ""
    efa_devices: int = Field(default=0, ge=0)
    efa_installer: Line = ""
    libfabric: Line = ""
    rdma_core: Line = ""
    driver: Line = ""
    engine: Line = ""
    nixl: Line = ""
    generation: Line = ""


class DoctorReport(Frozen):
    """A node's answer to `turnback doctor --json`."""

    format: Literal[1] = 1
    """Of this answer."""
    stage: Stage
    role: Line = ""
    """prefill, decode or router; empty: not known."""
    took_s: float = Field(ge=0)
    findings: tuple[DoctorFinding, ...] = Field(min_length=1)
    facts: NodeFacts = NodeFacts()
    traffic: TrafficReading | None = None
    """At stage live, when the counters could be read."""

    @property
    def worst(self) -> Status:
        """The worst status of its findings."""
        return max((each.status for each in self.findings), key=STATUSES.index)
