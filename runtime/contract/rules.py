"""What no single field of a deployment's settings can say, rule by rule.

Rules read the raw table, so that they speak also where other fields are missing or wrong,
and every problem is told at once.
"""

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator

from runtime.contract.instances import INSTANCE_TYPES, InstanceType, servable_types
from runtime.contract.node import P_EXPIRY_GUARD_S, KvTransferSpec
from runtime.contract.profile import PROFILES
from runtime.errors import Problem

Raw = Mapping[str, Any]
Rule = Callable[[Raw], Iterator[Problem]]

ROLES = ("prefill", "decode")
MLA_NAMES = (
    *("deepseek-v", "deepseek-r", "deepseek-coder-v2", "glm-5", "glm-4.7-flash"),
    *("kimi-k", "kimi-vl", "moonlight", "minicpm3"),
)
"""Parts of the names of models whose KV is multi-head latent attention, whoever copied them."""
STATE_SPACE_NAMES = (
    *("mamba", "jamba", "zamba", "bamba", "rwkv", "falcon-h1", "nemotron-h", "qwen3-next"),
    *("granite-4.0-h", "kimi-linear", "minimax-text"),
)
"""Parts of the names of models with state-space or linear-attention layers."""
_MARKET_GROUP_FIX = "remove placement_group: a Capacity Block is placed already"


def _cidr(text: str) -> str:
    network = ipaddress.ip_network(text)
    if not isinstance(network, ipaddress.IPv4Network):
        raise ValueError("must be an IPv4 network such as 10.20.0.0/16")
    return text


def _http(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address such as http://proxy.example:3128")
    if parts.username or parts.password:
        raise ValueError("must hold no credentials: user data can be read by many")
    if not text.isprintable() or any(mark in text for mark in " \"'$`\\"):
        raise ValueError("must hold no blanks, quotes, dollar signs or backslashes")
    return text


CidrText = Annotated[str, AfterValidator(_cidr)]
HttpUrl = Annotated[str, AfterValidator(_http)]


def region_of(availability_zone: str) -> str:
    """Region of a zone such as us-west-2b."""
    return availability_zone.rstrip("abcdefghijklmnopqrstuvwxyz")


def rule_problems(raw: Raw) -> list[Problem]:
    """Every rule that the settings break; fields of wrong shape are passed over."""
    return [problem for rule in RULES for problem in rule(raw)]


def _table(raw: Raw, name: str) -> Raw:
    found = raw.get(name)
    return cast(Raw, found) if isinstance(found, Mapping) else {}


def _instance(raw: Raw, role: str) -> tuple[str, InstanceType | None]:
    name = str(_table(raw, role).get("instance_type", "p5en.48xlarge"))
    return name, INSTANCE_TYPES.get(name)


def _tensor_parallel(raw: Raw, role: str) -> int:
    size = _table(raw, role).get("tensor_parallel_size", 8)
    return size if isinstance(size, int) and not isinstance(size, bool) else 0


def _region_is_the_zones(raw: Raw) -> Iterator[Problem]:
    region, zone = raw.get("region"), raw.get("availability_zone")
    if region is not None and isinstance(zone, str) and region_of(zone) != region:
        yield Problem(
            "region",
            repr(region),
            f"{region_of(zone)!r}, the region of availability_zone {zone!r}",
            "remove region, or give a zone of it",
        )


def _types_can_serve(raw: Raw) -> Iterator[Problem]:
    zone = raw.get("availability_zone")
    region = region_of(zone) if isinstance(zone, str) else ""
    for role in ROLES:
        name, row = _instance(raw, role)
        field = f"{role}.instance_type"
        if row is None:
            yield Problem(field, repr(name), servable_types(), "give one of these")
        elif row.missing:
            yield Problem(
                field,
                repr(name),
                servable_types(),
                f"give one of these; serving on {name} needs {row.missing}",
            )
        elif region and row.regions and region not in row.regions:
            yield Problem(
                field,
                f"{name!r} in {region}",
                f"a region that has it: {', '.join(row.regions)}",
                "give availability_zone in one of these regions, or another instance_type",
            )


def _gpus_are_there(raw: Raw) -> Iterator[Problem]:
    for role in ROLES:
        name, row = _instance(raw, role)
        size = _tensor_parallel(raw, role)
        if row is not None and size > row.gpus:
            allowed = [str(each) for each in (1, 2, 4, 8) if each <= row.gpus]
            yield Problem(
                f"{role}.tensor_parallel_size",
                f"{size} on {name} with {row.gpus} GPU(s)",
                " or ".join(allowed),
                "lower it, or give an instance_type with more GPUs",
            )


def _sizes_divide(raw: Raw) -> Iterator[Problem]:
    sizes = [_tensor_parallel(raw, role) for role in ROLES]
    if min(sizes) > 0 and max(sizes) % min(sizes):
        yield Problem(
            "decode.tensor_parallel_size",
            f"{sizes[1]} beside prefill.tensor_parallel_size {sizes[0]}",
            "sizes of which one divides the other: 1, 2, 4, 8",
            "give both roles one of these",
        )


def _blocks_are_sold(raw: Raw) -> Iterator[Problem]:
    for role in ROLES:
        name, row = _instance(raw, role)
        plan = _table(_table(raw, role), "capacity")
        if plan.get("kind") != "capacity_block":
            continue
        if "placement_group" in plan:
            yield Problem(
                f"{role}.capacity.placement_group",
                repr(plan["placement_group"]),
                "no placement group with kind = 'capacity_block'",
                _MARKET_GROUP_FIX,
            )
        if row is not None and not row.has_capacity_blocks:
            yield Problem(
                f"{role}.capacity.kind",
                f"'capacity_block' for {name}",
                "'on_demand' or 'reservation': no Capacity Blocks are sold for this type",
                "give another kind, or another instance_type",
            )


def _ttl_leaves_time(raw: Raw) -> Iterator[Problem]:
    kv = _table(raw, "kv")
    default = KvTransferSpec.model_fields
    values = [
        kv.get(name, default[name].default)
        for name in ("decoder_kv_blocks_ttl_s", "handle_deadline_margin_s")
    ]
    if not all(isinstance(value, int) for value in values):
        return
    ttl, margin = values
    if ttl < margin + P_EXPIRY_GUARD_S:
        yield Problem(
            "kv.decoder_kv_blocks_ttl_s",
            f"{ttl} s",
            f"at least {margin + P_EXPIRY_GUARD_S} s: handle_deadline_margin_s {margin} s and "
            f"{P_EXPIRY_GUARD_S} s in which a prefill node declines",
            "raise it (480 is the default), or lower handle_deadline_margin_s",
        )


def _validation_has_a_return(raw: Raw) -> Iterator[Problem]:
    is_asked = raw.get("after_deploy", "validate") == "validate"
    if is_asked and _table(raw, "kv").get("bidirectional") is False:
        yield Problem(
            "after_deploy",
            "'validate' with kv.bidirectional = false",
            "'scale' or 'nothing': a fleet that returns no KV has no speed-up to validate",
            "set after_deploy, and measure with turnback bench --feature-off (docs/benchmark.md)",
        )


def _kind_is_proven(raw: Raw) -> Iterator[Problem]:
    model = _table(raw, "model")
    name = str(model.get("id", ""))
    is_named = any(part in name.lower() for part in MLA_NAMES)
    # A distilled model has the attention of the one that was taught.
    is_mla = model.get("attention") == "mla" or (is_named and "distill" not in name.lower())
    if is_mla and model.get("accept_unproven") is not True:
        yield Problem(
            "model.accept_unproven",
            f"{model.get('accept_unproven', False)!r} for {name}, whose KV is MLA",
            "true, or a model with standard attention: returned MLA KV was not shown to be exact",
            "set model.accept_unproven = true to serve it all the same",
        )


def _kind_can_be_returned(raw: Raw) -> Iterator[Problem]:
    model = _table(raw, "model")
    name = str(model.get("id", ""))
    is_named = any(part in name.lower() for part in STATE_SPACE_NAMES)
    if is_named and model.get("accept_unproven") is not True:
        yield Problem(
            "model.id",
            repr(name),
            "a model of attention layers alone: engines refuse to start with others",
            "give another model; or, if its name misleads, set model.accept_unproven = true",
        )


def _profile_is_there(raw: Raw) -> Iterator[Problem]:
    names = profile_names()
    name = raw.get("profile", "qwen3-32b")
    if name not in names:
        yield Problem("profile", repr(name), ", ".join(names), "give one of these")


def _clients_are_named(raw: Raw) -> Iterator[Problem]:
    network = _table(raw, "network")
    cidrs = network.get("client_cidrs", ())
    for cidr in cidrs if isinstance(cidrs, list | tuple) else ():
        if str(cidr).endswith("/0"):
            yield Problem(
                "network.client_cidrs",
                repr(cidr),
                "networks that you know; the router's address is internal",
                "give your VPCs' and offices' networks",
            )
    if network.get("kind") == "own":
        prefix = str(network.get("cidr", "10.20.0.0/16")).rpartition("/")[2]
        if prefix.isdigit() and not 16 <= int(prefix) <= 24:
            yield Problem(
                "network.cidr", repr(network["cidr"]), "a /16 to a /24", "give one of that size"
            )


def _plain_http_is_wanted(raw: Raw) -> Iterator[Problem]:
    router = _table(raw, "router")
    if not router.get("certificate_arn") and router.get("allow_plain_http") is not True:
        yield Problem(
            "router.certificate_arn",
            "none",
            "an ACM certificate's ARN, or router.allow_plain_http = true",
            "request a certificate in ACM and give its ARN; for a first try allow plain HTTP",
        )


def _tags_are_free(raw: Raw) -> Iterator[Problem]:
    for key in _table(raw, "tags"):
        if key.lower().startswith(("aws:", "turnback:")) or not 1 <= len(key) <= 128:
            yield Problem(
                f"tags.{key}",
                repr(key),
                "keys of 1 to 128 characters that do not begin with aws: or turnback:",
                "give another key",
            )


def _builds_are_placed(raw: Raw) -> Iterator[Problem]:
    image = _table(raw, "image")
    for given, missing in (("subnet", "security_group"), ("security_group", "subnet")):
        if image.get(f"build_{given}_id") and not image.get(f"build_{missing}_id"):
            yield Problem(
                f"image.build_{missing}_id",
                "nothing",
                f"an id, since image.build_{given}_id is given; or neither of both",
                f"give it, or remove image.build_{given}_id to build in the default VPC",
            )


def image_problem(raw: Raw) -> Iterator[Problem]:
    """A fleet needs an image; the stack that builds images does not."""
    if not _table(raw, "image").get("ami_id"):
        name = raw.get("name", "NAME")
        yield Problem(
            "image.ami_id",
            "nothing",
            "the id of an image of this kit; only the image stack goes without one",
            f"cdk deploy -c turnback:only=image, then turnback image build {name} --wait: it "
            "prints the line for [image] (docs/image.md); or -c turnback:image.ami_id=VALUE",
        )


def profile_names() -> list[str]:
    """Names of the committed profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


RULES: tuple[Rule, ...] = (
    _region_is_the_zones,
    _types_can_serve,
    _gpus_are_there,
    _sizes_divide,
    _blocks_are_sold,
    _ttl_leaves_time,
    _validation_has_a_return,
    _kind_is_proven,
    _kind_can_be_returned,
    _profile_is_there,
    _clients_are_named,
    _plain_http_is_wanted,
    _tags_are_free,
    _builds_are_placed,
)
