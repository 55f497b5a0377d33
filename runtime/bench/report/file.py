"""The report's file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.bench.write import write_whole
from runtime.errors import BadInput

SCHEMA_VERSION = 1
"""Keys are added under one version; one that is lost or changes its meaning makes the next."""


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """Write the report so that a reader sees the old file or the new one, never half."""
    write_whole(path, json.dumps(report, indent=2, allow_nan=False) + "\n")


def read_report(path: Path) -> dict[str, Any]:
    """Read a report back.

    Raises:
        BadInput: it cannot be read, is no report, or has another schema version.
    """
    try:
        report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            "the report cannot be read",
            got=f"{path}: {error}",
            allowed="a report.json that the benchmark has written",
            fix="give the path of a report.json",
        ) from None
    version = report.get("schema_version") if isinstance(report, dict) else None
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise BadInput(
            "the report has another schema version",
            got=f"{path}: schema_version {version!r}",
            allowed=f"schema_version {SCHEMA_VERSION}",
            fix="build it anew from its passes with `turnback report`, "
            "or use the kit that has written it",
        )
    if missing := _KEYS - report.keys():
        raise BadInput(
            "the report lacks keys",
            got=f"{path}: no {', '.join(sorted(missing))}",
            allowed="every key of docs/reference.md",
            fix="build it anew from its passes with `turnback report`",
        )
    return dict(report)


_KEYS = {
    *("complete", "stopped_by", "created_utc", "environment", "workload"),
    *("arms", "speedup", "exactness", "engine"),
    *("pass", "points", "stability", "timeline", "requests", "attribution", "savings"),
    *("published", "problems", "other_passes"),
}
