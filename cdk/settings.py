"""`deployment.toml` and the command line's context -> the contract's settings, nothing else."""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.contract.deployment import DeploymentSettings, setting_paths
from runtime.contract.load import load_deployment
from runtime.errors import BadInput, Problem

PREFIX = "turnback:"
"""Of context keys that override a setting: `-c turnback:kv.decoder_kv_blocks_ttl_s=600`."""

FILE_KEY = "turnback:settings"
"""Context key that names another settings file."""


def settings_file(context: Mapping[str, object], root: Path) -> Path:
    """The settings file: `deployment.toml` of the repository, or what the context names."""
    return root / str(context.get(FILE_KEY, "deployment.toml"))


def read_settings(path: Path, context: Mapping[str, object]) -> DeploymentSettings:
    """Read the file, put overrides over it, validate both together.

    Args:
        path: TOML file.
        context: the app's context; keys without the prefix are not looked at.

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
    for key, value in context.items():
        if not key.startswith(PREFIX) or key == FILE_KEY:
            continue
        dotted = key.removeprefix(PREFIX)
        if _is_setting(dotted):
            _put(raw, dotted.split("."), _scalar(value))
        else:
            problems.append(_unknown(dotted, value))
    return load_deployment(raw, path.name, problems)


def _is_setting(dotted: str) -> bool:
    return dotted in setting_paths() or dotted.startswith("tags.")


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


def _scalar(value: object) -> object:
    """The command line gives text: numbers, booleans, dates and lists are read as in TOML."""
    if not isinstance(value, str):
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def _unknown(dotted: str, value: object) -> Problem:
    near = difflib.get_close_matches(dotted, setting_paths(), n=1)
    return Problem(
        dotted,
        repr(value),
        "a setting of docs/settings.md",
        f"did you mean -c {PREFIX}{near[0]}=VALUE?" if near else f"leave out -c {PREFIX}{dotted}",
    )
