"""The published figures that a report is held against, and the set-up they were measured on."""

import tomllib
from pathlib import Path

from pydantic import Field

from runtime.contract.node import Frozen

PUBLISHED = Path(__file__).parent / "published.toml"


class PublishedRow(Frozen):
    """One point of a sweep, times to first token; None: it was not published."""

    own_prefix_tokens: int = Field(ge=1)
    off_ms: float | None = Field(default=None, gt=0)
    """The feature off on both servers."""
    on_ms: float | None = Field(default=None, gt=0)
    off_prefill_ms: float | None = Field(default=None, gt=0)
    """The part of P."""
    on_prefill_ms: float | None = Field(default=None, gt=0)

    @property
    def ratio(self) -> float | None:
        """Off over on; None unless both were published."""
        return None if self.off_ms is None or self.on_ms is None else self.off_ms / self.on_ms


class Published(Frozen):
    """What was published of one profile's runs."""

    profile: str
    source: str
    ratio: str
    """As it was told."""
    pull_ms: tuple[float, float]
    """Shortest and longest pull told."""
    rows: tuple[PublishedRow, ...] = Field(min_length=1)
    """The ends of the sweep."""
    setup: dict[str, str]
    """Facts of the set-up by name, for a list of what differs."""


def load_published(profile: str) -> Published | None:
    """The published figures of a profile; None where there are none."""
    raw = tomllib.loads(PUBLISHED.read_text("utf-8"))
    if profile == "setup" or profile not in raw:
        return None
    return Published.model_validate({"profile": profile, "setup": raw["setup"], **raw[profile]})
