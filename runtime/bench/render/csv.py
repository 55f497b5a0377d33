"""requests.csv: every request of every pass as a row. Pure."""

import csv
import io
from collections.abc import Mapping
from typing import Any

from runtime.bench.render.data import Json, passes
from runtime.bench.render.palette import STAGES

COLUMNS = (
    *("pass", "prefill_prefix_caching", "is_feature_on"),
    *("conversation", "turn", "arm", "is_again", "is_edited", "point", "repeat", "block"),
    *("outcome", "error", "path", "reason", "ttft_ms", "e2e_ms", "tpot_ms"),
    *("prompt_tokens", "answer_tokens", "pulled_tokens", "local_tokens", "computed_tokens"),
    *("started_s", "ended_s", "think_s"),
    *(f"{stage}_ms" for stage in STAGES),
)
"""In this order; new ones are added at the end. docs/reference.md has what they mean."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How text begins that a spreadsheet would take for a formula."""


def rows(report: Json) -> str:
    """The requests as CSV (RFC 4180), with a head; what is not known is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for one in passes(report):
        about = one["pass"]
        of_pass = {name: about[name] for name in COLUMNS[1:3]} | {"pass": about["name"]}
        for request in one["requests"]:
            stages = {f"{name}_ms": ms for name, ms in (request["stages_ms"] or {}).items()}
            told = {**request, **of_pass, **stages}
            writer.writerow([_cell(told, name) for name in COLUMNS])
    return file.getvalue()


def _cell(told: Mapping[str, Any], name: str) -> Any:
    value = told.get(name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
