"""Metric math of alarms, worked out for one period: the few words that this kit uses.

Source: CloudWatch's metric math syntax: IF, FILL, AND, arithmetic; what a missing point goes
into is missing, unless FILL stands around it.
"""

import re
from collections.abc import Mapping
from typing import Any

Points = Mapping[tuple[str, str], float]
"""(metric, role or group) -> value; what is not there has no point."""

_COMPARE = {
    "GreaterThanThreshold": lambda value, bound: value > bound,
    "LessThanThreshold": lambda value, bound: value < bound,
}


def _point(metric: Mapping[str, Any], points: Points) -> float | None:
    where = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
    of = where.get("Role") or where.get("AutoScalingGroupName") or where.get("Turn") or ""
    return points.get((metric["MetricName"], of))


def value_of(alarm: Mapping[str, Any], points: Points) -> float | None:
    """What the alarm watches; None: it is missing."""
    if "Metrics" not in alarm:
        return _point(alarm, points)
    values: dict[str, float | None] = {}
    formula = ""
    for query in alarm["Metrics"]:
        if "MetricStat" in query:
            values[query["Id"]] = _point(query["MetricStat"]["Metric"], points)
        else:
            formula = query["Expression"]
    formula = re.sub(r"FILL\((\w+), (\d+)\)", r"fill('\1', \2)", formula).replace(" AND ", " and ")
    names = {
        "IF": lambda condition, yes, no: yes if condition else no,
        "fill": lambda name, other: other if values[name] is None else values[name],
    }
    try:
        return float(eval(formula, {"__builtins__": {}}, {**names, **values}))  # noqa: S307 - ours
    except TypeError:
        return None
    except ZeroDivisionError:
        return None


def is_breaching(alarm: Mapping[str, Any], points: Points) -> bool | None:
    """Whether a period with these points counts towards the alarm; None: the state stays."""
    value = value_of(alarm, points)
    if value is None:
        return {"notBreaching": False, "ignore": None}[alarm["TreatMissingData"]]
    return bool(_COMPARE[alarm["ComparisonOperator"]](value, alarm["Threshold"]))
