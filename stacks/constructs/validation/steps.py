"""What runs on machines: the shell commands of a validation. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runtime.contract.deployment import DeploymentSettings
from runtime.contract.instances import INSTANCE_TYPES
from runtime.contract.profile import load_profile
from runtime.contract.status import BOOT_FILE, KIT_COMMAND, KIT_STAMP, NODE_ENVIRONMENT
from stacks.constructs.validation.commands import Step

_READY_S = 3600
_DOCTOR_S, _TRANSPORT_S, _EXACTNESS_S = 120, 900, 120
_MARGIN_S = 60
"""A benchmark ends by itself before its command is cut off, so that it can upload."""
_ON_NODES, _ON_ROUTER = "$.targets.nodes", "$.targets.router"
_WAIT_FOR_KIT = (
    f"for i in $(seq 180); do [ -e {KIT_STAMP} ] && break; sleep 5; done; "
    f"if ! [ -e {KIT_STAMP} ]; then cat {BOOT_FILE} >&2; exit 3; fi; "
)
"""User data installs the kit after SSM takes commands."""
_ENVIRONMENT = f"set -a; . {NODE_ENVIRONMENT}; "


@dataclass(frozen=True, slots=True)
class Place:
    """What the commands on a router are told.

    Attributes:
        deployment: its name.
        url: of the routers' load balancer.
        api_keys_secret: ARN.
        profile: name.
        model: id and revision.
        model_bucket, results_bucket: names.
        tensor_parallel_size: of the role with more ranks.
        changes: PATH=VALUE of each value that the settings have other than the profile.
    """

    deployment: str
    url: str
    api_keys_secret: str
    profile: str
    model: str
    model_bucket: str
    results_bucket: str
    tensor_parallel_size: int
    changes: tuple[str, ...] = ()


_KV = {"bidirectional", "backends", "block_size_tokens"}
"""Of the settings' [kv]. TTL and threshold are not here: a change of them must stay one of SSM
parameters alone."""


def other_than_profile(settings: DeploymentSettings) -> tuple[str, ...]:
    """PATH=VALUE of the profile, where the settings say otherwise; prices too."""
    profile = load_profile(settings.profile)
    own = profile.kv.model_dump(mode="json", include=_KV)
    theirs = settings.kv.model_dump(mode="json", include=_KV)
    values: dict[str, tuple[Any, Any]] = {
        f"kv.{name}": (value, theirs[name]) for name, value in own.items()
    }
    values["serving.prefill_prefix_caching"] = (
        profile.serving.prefill_prefix_caching,
        settings.caches_on_prefill,
    )
    price, gpus = profile.bench.price, INSTANCE_TYPES[settings.prefill.instance_type].gpus
    usd = settings.operations.usd_per_node_hour
    values["bench.price.gpus_per_node"] = (price.gpus_per_node, gpus)
    values["bench.price.usd_per_node_hour"] = (price.usd_per_node_hour, usd)
    return tuple(_changes(values))


def _changes(values: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    for path, (before, now) in values.items():
        if now != before and now is not None:
            text = ",".join(now) if isinstance(now, list) else str(now)
            yield f"{path}={text}"


def ready() -> Step:
    """Until a node's engine answers, or its boot has failed."""
    command = f"{_WAIT_FOR_KIT}{_ENVIRONMENT}exec {KIT_COMMAND} job ready"
    return Step(
        "Ready", f"{command} --timeout-s {_READY_S} --root /", (), _ON_NODES, _READY_S + 960
    )


def doctor() -> Step:
    """Every check of every node."""
    return Step(
        "Doctor",
        f"{_ENVIRONMENT}exec {KIT_COMMAND} doctor --json --stage live --root /",
        (),
        _ON_NODES,
        _DOCTOR_S,
    )


def transport(place: Place) -> Step:
    """A few turns; KV must have moved, whole and without a failure."""
    return _on_router("Transport", "transport", place, _TRANSPORT_S)


def exactness(place: Place) -> Step:
    """The answers of these turns must not depend on the arm."""
    return _on_router("Exactness", "exactness", place, _EXACTNESS_S)


def benchmark(place: Place, timeout_s: int) -> Step:
    """The profile's workload through the load balancer; uploads the run folder."""
    bars = ("$.input.min_speedup", "$.input.slo_ttft_p90_ms")
    options = f" --limit-s {timeout_s - _MARGIN_S} --min-speedup {{}} --slo-ttft-p90-ms {{}}"
    return _on_router("Benchmark", "bench", place, timeout_s, options, bars)


def _on_router(
    name: str,
    word: str,
    place: Place,
    timeout_s: int,
    options: str = "",
    arguments: tuple[str, ...] = (),
) -> Step:
    told = {
        "--deployment": place.deployment,
        "--url": place.url,
        "--api-keys-secret": place.api_keys_secret,
        "--profile": place.profile,
        "--model": place.model,
        "--model-bucket": place.model_bucket,
        "--results-bucket": place.results_bucket,
        "--tensor-parallel-size": str(place.tensor_parallel_size),
    }
    changes = (("--set", each) for each in place.changes)
    given = " ".join(f"{option} {value}" for option, value in (*told.items(), *changes))
    command = f"{_ENVIRONMENT}exec {KIT_COMMAND} job measure {word} --run-id {{}} {given}{options}"
    return Step(name, command, ("$.run_id", *arguments), _ON_ROUTER, timeout_s, is_answer_read=True)
