"""A raw settings table -> DeploymentSettings, or every problem at once."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from runtime.contract.deployment import DeploymentSettings, setting_paths
from runtime.contract.profile import PROFILES
from runtime.contract.rules import profile_names, rule_problems
from runtime.errors import BadSettings, Problem

_KINDS = {"on_demand", "reservation", "capacity_block", "own", "imported"}


def load_deployment(
    raw: Mapping[str, Any], source: str, also: Sequence[Problem] = ()
) -> DeploymentSettings:
    """Validate a table.

    Args:
        raw: what the file and the command line say.
        source: the file's name, for the message.
        also: problems that were found before, told with the others.

    Raises:
        BadSettings: with each problem of the table.
    """
    merged = _over_the_profile(raw)
    found = {each.field: each for each in (*rule_problems(merged), *also)}
    spec: DeploymentSettings | None = None
    try:
        spec = DeploymentSettings.model_validate(merged)
    except ValidationError as error:
        for entry in error.errors():
            if entry["loc"]:  # the table as a whole: the rules, which are there already
                problem = _problem(entry, source)
                found.setdefault(problem.field, problem)
    if spec is None or found:
        raise BadSettings(source, sorted(found.values(), key=lambda each: each.field))
    return spec


def _over_the_profile(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the profile's KV settings under its own."""
    name, own = raw.get("profile", "qwen3-32b"), raw.get("kv", {})
    if name not in profile_names() or not isinstance(own, Mapping):
        return dict(raw)
    profile = tomllib.loads((PROFILES / f"{name}.toml").read_text("utf-8"))
    return {**raw, "kv": {**profile.get("kv", {}), **own}}


def _problem(entry: ErrorDetails, source: str) -> Problem:
    field = ".".join(str(part) for part in entry["loc"] if part not in _KINDS)
    message = entry["msg"].removeprefix("Value error, ")
    first = message.split(" ", 1)[0]
    if entry["type"] == "value_error" and f"{field}.{first}" in setting_paths():
        field = f"{field}.{first}"  # a rule of a table names its field first
    if entry["type"] == "extra_forbidden":
        return _unknown(field, entry["input"], source)
    if entry["type"] == "missing" and field not in setting_paths():
        return Problem(field, "nothing", message, f"add the table [{field}] to {source}")
    if entry["type"] == "missing":
        fix = f"add it to {source}, or -c turnback:{field}=VALUE"
        return Problem(field, "nothing", message, fix)
    return Problem(
        field, repr(entry["input"]), message, f"correct it in {source} or -c turnback:{field}"
    )


def _unknown(field: str, value: object, source: str) -> Problem:
    table, _, key = field.rpartition(".")
    prefix = f"{table}." if table else ""
    below = [path.removeprefix(prefix) for path in setting_paths() if path.startswith(prefix)]
    known = sorted({path.split(".")[0] for path in below})
    if key in known:
        return Problem(
            field,
            repr(value),
            "keys that this kind has; it is one of another kind",
            f"remove it from {source}, or give another {prefix}kind",
        )
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"remove it from {source}"
    return Problem(
        field,
        repr(value),
        ", ".join(known) or "a key of docs/settings.md",
        hint,
    )
