"""`versions.toml`, checked, and as variables of the steps."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSIONS = Path(__file__).parent / "versions.toml"
_DIGEST = re.compile(r"[0-9a-f]{64}|")
_PLAIN = re.compile(r"[\w.+:/-]*")

Versions = Mapping[str, Mapping[str, Any]]


def read_versions(path: Path = VERSIONS) -> Versions:
    """Table -> key -> value.

    Raises:
        ValueError: a table does not say where its versions were found, or a digest is none.
    """
    versions: dict[str, dict[str, Any]] = tomllib.loads(path.read_text("utf-8"))
    for name, table in versions.items():
        if not table.get("source", "").strip():
            raise ValueError(f"[{name}] of {path.name} has no source: say where it was found")
    digest = versions["efa"]["sha256"]
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"efa.sha256 of {path.name} is no SHA-256 in hex, and not empty: {digest}")
    return versions


def step_variables(versions: Versions) -> str:
    """What steps source: `EFA_INSTALLER='1.50.0'` and so on; lists and sources left out.

    Raises:
        ValueError: a value would have to be quoted.
    """
    lines = []
    for name, table in sorted(versions.items()):
        for key, value in sorted(table.items()):
            if key == "source" or not isinstance(value, str):
                continue
            if not _PLAIN.fullmatch(value):
                raise ValueError(f"{name}.{key} must be a plain word, not {value!r}")
            lines.append(f"{name}_{key}".upper() + f"='{value}'\n")
    return "".join(lines)
