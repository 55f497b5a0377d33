"""A deployed spec -> one that this machine can run. Pure.

Only what SWAPPED names may differ; everything else runs as it was deployed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.contract.node import CpuSpec, NodeSpec
from runtime.errors import StartFailed

SWAPPED: Mapping[str, str] = {
    "serving.model": "seen from each node's own folder: NIXL pairs engines of equal paths alone",
    "serving.dtype": "float32: bfloat16 on a CPU is slow, and its answers wobble",
    "serving.tensor_parallel_size": "one rank on one core",
    "serving.port": "both engines have one address",
    "side_channel_port": "the same",
    "kv.backends": "UCX: there is no EFA for libfabric",
    "kv.block_size_tokens": "CPU attention wants multiples of 32",
    "cpu": "cores and KV memory, which a GPU engine takes from its GPU",
}
"""Field of a NodeSpec -> why it cannot stay."""

ROUTER_SWAPPED: Mapping[str, str] = {
    "--deployment": "EC2 discovery would find the emulated instances, on which nothing runs",
    "--nodes-file": "in its place",
    "--host": "loopback",
    "--port": "a free one",
    "--block-size-tokens": "as the engines",
}
"""Option of `turnback router` -> why it cannot stay."""

BLOCK_SIZE_TOKENS = 32
"""Of both engines and of the router, which counts in their blocks."""


@dataclass(frozen=True)
class Here:
    """What this machine gives one engine.

    Attributes:
        root: folder that stands for `/`, in which the engine is started.
    """

    root: Path
    port: int
    side_channel_port: int
    cpu: CpuSpec
    block_size_tokens: int = BLOCK_SIZE_TOKENS


def local_spec(deployed: NodeSpec, here: Here) -> NodeSpec:
    """The spec of an engine on this machine.

    Args:
        deployed: with the address and the model's folder, which boot fills in.
        here: what this machine gives it.

    Raises:
        StartFailed: more than SWAPPED differs from what was deployed.
    """
    raw = deployed.model_dump()
    raw["serving"] |= {
        "model": deployed.serving.model.relative_to(here.root),
        "dtype": "float32",
        "tensor_parallel_size": 1,
        "port": here.port,
    }
    raw["kv"] |= {"backends": ("UCX",), "block_size_tokens": here.block_size_tokens}
    raw |= {"side_channel_port": here.side_channel_port, "cpu": here.cpu}
    local = NodeSpec.model_validate(raw)
    check_swapped(flat(deployed.model_dump()), flat(local.model_dump()), SWAPPED)
    return local


def local_arguments(deployed: Sequence[str], nodes_file: Path, host: str, port: int) -> list[str]:
    """Arguments of the router on this machine.

    Raises:
        StartFailed: more than ROUTER_SWAPPED differs from what was deployed.
    """
    options = pairs(deployed)
    local = {
        "--nodes-file": str(nodes_file),
        **{name: value for name, value in options.items() if name != "--deployment"},
        "--host": host,
        "--port": str(port),
        "--block-size-tokens": str(BLOCK_SIZE_TOKENS),
    }
    check_swapped(options, local, ROUTER_SWAPPED)
    return [word for pair in local.items() for word in pair]


def pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Option -> value.

    Raises:
        StartFailed: the list is not of options with one value each.
    """
    names, values = arguments[::2], arguments[1::2]
    is_good = len(names) == len(values) and all(name.startswith("--") for name in names)
    if not is_good or len(set(names)) != len(names):
        raise StartFailed(
            "the router's arguments cannot be read",
            got=" ".join(arguments),
            allowed="options with one value each, each once",
            fix="mend stacks/constructs/router_arguments.py",
        )
    return dict(zip(names, values, strict=True))


def check_swapped(
    deployed: Mapping[str, Any], local: Mapping[str, Any], allowed: Mapping[str, str]
) -> None:
    """Refuse a difference that the list does not name.

    Raises:
        StartFailed: with every such field.
    """
    names = sorted({*deployed, *local})
    differs = [name for name in names if deployed.get(name) != local.get(name)]
    wrong = [
        f"{name}: {local.get(name)!r}, deployed {deployed.get(name)!r}"
        for name in differs
        if name not in allowed
    ]
    if wrong:
        raise StartFailed(
            "the rehearsal would run something else than was deployed",
            got="; ".join(wrong),
            allowed=f"differences in {', '.join(allowed)}",
            fix="run the field as it was deployed, or say in swaps.py why it cannot be",
        )


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path -> value; `cpu` stays whole."""
    paths: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, Mapping) and name != "cpu":
            paths |= flat(each, f"{prefix}{name}.")
        else:
            paths[prefix + name] = each
    return paths
