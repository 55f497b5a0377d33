"""`deployment.toml` with overrides -> the settings; for the CDK app and for commands alike."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from runtime.contract.deployment import DeploymentSettings, setting_paths
from runtime.contract.load import load_deployment
from runtime.contract.rules import image_problem
from runtime.errors import BadInput, Problem

PREFIX = "turnback:"
"""Of overrides on a command line: `-c turnback:kv.decoder_kv_blocks_ttl_s=600`."""

FILE_KEY = f"{PREFIX}settings"
"""Names another settings file."""

ONLY_KEY = f"{PREFIX}only"
"""`-c turnback:only=image`: the image stack and no other, for which no image is needed."""


def overrides_in(context: Mapping[str, object]) -> dict[str, object]:
    """Dotted path -> value of a context's overrides; other keys are not looked at."""
    return {
        key.removeprefix(PREFIX): value
        for key, value in context.items()
        if key.startswith(PREFIX) and key not in (FILE_KEY, ONLY_KEY)
    }


def read_settings(
    path: Path, overrides: Mapping[str, object], *, needs_image: bool = False
) -> DeploymentSettings:
    """Read the file, put overrides over it, validate both together.

    Args:
        path: TOML file.
        overrides: dotted path of a setting -> value; text is read as TOML where it is TOML.
        needs_image: whether `image.ami_id` must be there.

    Raises:
        BadSettings: with every problem of file and overrides.
        BadInput: the file cannot be read.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read",
            got=str(error),
            allowed="a TOML file as docs/settings.md describes it",
            fix=f"mend it, or name another: -c {FILE_KEY}=PATH",
        ) from error
    problems = []
    for dotted, value in overrides.items():
        if dotted in setting_paths() or dotted.startswith("tags."):
            _put(raw, dotted.split("."), _scalar(dotted, value))
        else:
            problems.append(_unknown(dotted, value))
    if needs_image:
        problems.extend(image_problem(raw))
    return load_deployment(raw, path.name, problems)


def _put(raw: dict[str, Any], path: list[str], value: object) -> None:
    """Set a value; what stands in the way is of a wrong shape and gives way to the override."""
    *tables, last = path
    if tables[:1] == ["tags"]:
        tables, last = ["tags"], ".".join(path[1:])
    for name in tables:
        if not isinstance(raw.get(name), dict):
            raw[name] = {}
        raw = raw[name]
    raw[last] = value


def _scalar(dotted: str, value: object) -> object:
    """The command line gives text: it is read as in TOML, where the setting is no text."""
    if not isinstance(value, str):
        return value
    try:
        read: object = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
    return value if _takes(dotted, value) and not _takes(dotted, read) else read


def _takes(dotted: str, value: object) -> bool:
    """Whether a setting's type has room for a value."""
    field = setting_paths().get(dotted)
    try:
        TypeAdapter(str if field is None else field.annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _unknown(dotted: str, value: object) -> Problem:
    near = difflib.get_close_matches(dotted, setting_paths(), n=1)
    return Problem(
        dotted,
        repr(value),
        "a setting of docs/settings.md",
        f"did you mean -c {PREFIX}{near[0]}=VALUE?" if near else f"leave out -c {PREFIX}{dotted}",
    )
