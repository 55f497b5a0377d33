"""What must hold of an emulated deployment before it is believed. Pure.

The emulator says CREATE_COMPLETE also of what it leaves out.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runtime.errors import StartFailed

SKIPPED = frozenset(
    {
        "AWS::CDK::Metadata",
        "AWS::CloudWatch::Alarm",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::ImageBuilder::Component",
        "AWS::ImageBuilder::DistributionConfiguration",
        "AWS::ImageBuilder::ImagePipeline",
        "AWS::ImageBuilder::ImageRecipe",
        "AWS::ImageBuilder::InfrastructureConfiguration",
        "AWS::ImageBuilder::LifecyclePolicy",
        "AWS::S3::BucketPolicy",
        "AWS::SNS::TopicPolicy",
    }
)
"""Resource types of the templates that moto does not make."""

_NOTHING = re.compile(r"\bNone\b|\bnull\b|\bundefined\b")


def check_skipped(types: Mapping[str, str], made: Mapping[str, str]) -> None:
    """Every resource is there but those of the known types, of which none is.

    Args:
        types: logical id -> type, of all templates.
        made: logical id -> type, of all resources that the account shows.

    Raises:
        StartFailed: the emulator makes less, or more, than was known.
    """
    absent = {logical: kind for logical, kind in types.items() if logical not in made}
    lost = sorted(f"{logical} ({kind})" for logical, kind in absent.items() if kind not in SKIPPED)
    if lost:
        raise StartFailed(
            "resources of the templates are not in the emulated account",
            got=", ".join(lost),
            allowed=f"only these types left out: {', '.join(sorted(SKIPPED))}",
            fix="read the emulator's log; a type it does not know goes into checks.SKIPPED "
            "and docs/limits.md, once nothing refers to it",
        )
    known = sorted(SKIPPED - {*absent.values()})
    if known:
        raise StartFailed(
            "the emulator leaves out less than was known",
            got=f"made, or not in the templates: {', '.join(known)}",
            allowed="the types of checks.SKIPPED, all of them",
            fix="take them out of checks.SKIPPED and docs/limits.md",
        )


def empty_values(value: Any, path: str) -> Iterator[str]:
    """Paths of values that a reference to nothing has left."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from empty_values(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from empty_values(each, f"{path}[{index}]")
    elif value is None or (isinstance(value, str) and (not value or _NOTHING.search(value))):
        yield f"{path} = {value!r}"


def check_no_empty_values(values: Mapping[str, Any]) -> None:
    """No value of the account came from a reference to nothing.

    Args:
        values: name of a thing -> its content.

    Raises:
        StartFailed: with every such value.
    """
    found = [each for name, content in values.items() for each in empty_values(content, name)]
    if found:
        raise StartFailed(
            "values of the deployment refer to nothing",
            got="; ".join(found),
            allowed="a value in each place",
            fix="refer to a name that the kit chooses, not to an attribute of what is not made",
        )


def unlike(wanted: Any, found: Any, path: str) -> Iterator[str]:
    """Paths at which what was deployed is not what its template says.

    Args:
        wanted: of the template; intrinsic functions stand for any value but an empty one.
            Fn::Base64 is decoded, and of a text that is joined in it each literal compared.
        found: of the account.
        path: of both.
    """
    if isinstance(wanted, Mapping) and "Fn::Base64" in wanted:
        yield from _unlike_text(wanted["Fn::Base64"], _decoded(found), path)
    elif _is_reference(wanted):
        yield from empty_values(found, path)
    elif isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in sorted({*wanted, *found}):
            yield from unlike(wanted.get(key), found.get(key), f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from unlike(one, other, f"{path}[{index}]")
    elif wanted != found:
        yield path


def _decoded(found: Any) -> str:
    """Text behind base64; empty where there is none."""
    try:
        return base64.b64decode(found, validate=True).decode("utf-8")
    except (binascii.Error, TypeError, UnicodeDecodeError):
        return ""


def _unlike_text(wanted: Any, found: str, path: str) -> Iterator[str]:
    """What stands in the place of each reference is a value; a script may say `/dev/null`."""
    glue, parts = wanted.get("Fn::Join", (None, ())) if _is_reference(wanted) else ("", [wanted])
    if glue is None:
        if not found:
            yield path
        return
    words = (re.escape(part) if isinstance(part, str) else "(.*)" for part in parts)
    match = re.fullmatch(re.escape(glue).join(words), found)
    if match is None:
        yield path
    else:
        yield from empty_values(match.groups(), path)


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and any(
        key == "Ref" or key.startswith("Fn::") for key in value
    )


def check_launch_template(name: str, wanted: Any, found: Any) -> None:
    """An account's launch template is what its stack's template says.

    Raises:
        StartFailed: with each place where it is not.
    """
    if parts := [*unlike(wanted, found, "LaunchTemplateData")]:
        raise StartFailed(
            f"launch template {name} is not what its stack's template says",
            got=f"unlike: {', '.join(parts)}",
            allowed="the template's values, and something for each reference",
            fix="look at both; where the emulator loses a value, say so in docs/limits.md",
        )


def changed_resources(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Logical id -> type of the resources that two templates have differently."""
    keys = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return {key: (after.get(key) or before[key])["Type"] for key in sorted(keys)}
