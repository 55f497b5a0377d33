"""Reads a report."""

import json
from pathlib import Path
from typing import Any

from runtime.bench.report import SCHEMA_VERSION
from runtime.errors import BadInput


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
    if version != SCHEMA_VERSION or isinstance(version, bool) or "requests" not in report:
        raise BadInput(
            "the report has another schema version",
            got=f"{path}: schema_version {version!r}",
            allowed=f"schema_version {SCHEMA_VERSION} with `requests`",
            fix="build it anew with `turnback report`",
        )
    return dict(report)
