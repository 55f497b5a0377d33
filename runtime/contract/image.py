"""What a machine image says of itself: its recipe writes it, boot and doctor read it."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from runtime.contract.node import Frozen, ImageSpec

ImageKind = Literal["node", "router"]
"""GPU nodes, or routers on a plain CPU base."""

IMAGE_FILE = Path("/etc/turnback/image.json")

_VERSION = r"^\d+(\.\d+)*([.+-][\w.+-]+)?$"


class ImageFile(Frozen):
    """`/etc/turnback/image.json`."""

    format: Literal[1] = 1
    """Of the agreement between image and kit."""
    kind: ImageKind
    """For which machines."""
    built_at: str = Field(min_length=1)
    """UTC, ISO 8601."""
    python: str = Field(pattern=_VERSION)
    """Of the kit's and the engine's environments."""
    engine: str | None = Field(default=None, pattern=_VERSION)
    """Version of vLLM; None on a router."""
    nixl: str | None = Field(default=None, pattern=_VERSION)
    """Version of NIXL; None on a router."""
    efa_installer: str | None = Field(default=None, pattern=_VERSION)
    """Version of the EFA installer; None on a router."""
    libfabric: str | None = Field(default=None, pattern=_VERSION)
    """Version of libfabric as installed; None on a router."""
    rdma_core: str | None = Field(default=None, pattern=_VERSION)
    """Version of rdma-core as installed; None on a router."""
    driver: str | None = Field(default=None, pattern=_VERSION)
    """Version of the NVIDIA driver as installed; None on a router."""

    def mismatch(self, wanted: ImageSpec) -> str | None:
        """Why a node of this image must not boot from a spec; None when it may."""
        if self.kind != "node":
            return f"the image is for {self.kind}s"
        minor = ".".join((self.engine or "").split(".")[:2])
        if minor != wanted.engine_version:
            return f"the image has vLLM {self.engine}, the spec wants {wanted.engine_version}"
        return None
