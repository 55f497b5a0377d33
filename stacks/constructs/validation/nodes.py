"""Starting a deployment's nodes, and ending those that were started. Pure."""

from typing import Any

from stacks.constructs.validation.states import UNUSED, State, after, call, failing, last, over

POLL_S = 30
_ASIDE = {"role.$": "$$.Map.Item.Value.role", "group.$": "$$.Map.Item.Value.group"}
_KEPT = {**_ASIDE, "wanted.$": "$$.Map.Item.Value.wanted"}
_KNOWN = {**_KEPT, "before.$": "$$.Map.Item.Value.before", "missing.$": "$$.Map.Item.Value.missing"}
IN_SERVICE = "$.AutoScalingGroups[*].Instances[?(@.LifecycleState == 'InService')].InstanceId"


def look_at_groups() -> State:
    """Each group of the plan with its desired capacity, and whether nodes are missing."""
    describe = _describe("$.group") | {
        "ResultSelector": {"capacity.$": "$.AutoScalingGroups[0].DesiredCapacity"},
        "ResultPath": "$.now",
    }
    kept = {"role.$": "$.role", "group.$": "$.group", "wanted.$": "$.wanted"}
    kept |= {"before.$": "$.now.capacity"}

    def told(*, missing: bool) -> State:
        return last({"Type": "Pass", "Parameters": {**kept, "missing": missing}})

    is_less = {"Variable": "$.now.capacity", "NumericLessThanPath": "$.wanted", "Next": "Missing"}
    return over(
        "$.plan",
        _KEPT,
        "Describe",
        {
            "Describe": after(describe, "Compare"),
            "Compare": {"Type": "Choice", "Choices": [is_less], "Default": "Enough"},
            "Missing": told(missing=True),
            "Enough": told(missing=False),
        },
        prefix="Group",
    ) | {"ResultPath": "$.groups"}


def start_nodes() -> State:
    """Set the capacity of each group in which nodes are missing."""
    is_missing = {"Variable": "$.missing", "BooleanEquals": True, "Next": "Start"}
    return over(
        "$.groups",
        _KNOWN,
        "IsMissing",
        {
            "IsMissing": {"Type": "Choice", "Choices": [is_missing], "Default": "Kept"},
            "Start": last(_set("$.wanted")),
            "Kept": last({"Type": "Pass"}),
        },
        prefix="Nodes",
    ) | {"ResultPath": UNUSED}


def end_nodes(prefix: str) -> State:
    """Give each group the capacity it had, where this run has raised it and nobody since.

    Args:
        prefix: of its states; a machine ends nodes in two places.
    """
    describe = _describe("$.group") | {
        "ResultSelector": {"capacity.$": "$.AutoScalingGroups[0].DesiredCapacity"},
        "ResultPath": "$.now",
    }
    was_raised = {
        "And": [
            {"Variable": "$.missing", "BooleanEquals": True},
            {"Variable": "$.now.capacity", "NumericEqualsPath": "$.wanted"},
        ],
        "Next": "Restore",
    }
    return over(
        "$.groups",
        _KNOWN,
        "Describe",
        {
            "Describe": after(describe, "WasRaised"),
            "WasRaised": {"Type": "Choice", "Choices": [was_raised], "Default": "Kept"},
            "Restore": last(_set("$.before")),
            "Kept": last({"Type": "Pass"}),
        },
        prefix=prefix,
    )


def wait_for_nodes(timeout_s: int) -> State:
    """Until each group has its nodes in service; else with what its last activity says."""
    look = _describe("$.group") | {
        "ResultSelector": {"ids.$": IN_SERVICE},
        "ResultPath": "$.up",
    }
    count: State = {
        "Type": "Pass",
        "Parameters": {
            **{f"{name}.$": f"$.{name}" for name in ("role", "group", "wanted", "up")},
            "polls.$": "States.MathAdd($.polls, 1)",
            "found.$": "States.ArrayLength($.up.ids)",
        },
        "Next": "AreThere",
    }
    enough = {"Variable": "$.found", "NumericGreaterThanEqualsPath": "$.wanted", "Next": "Found"}
    late = {"Variable": "$.polls", "NumericGreaterThan": timeout_s // POLL_S, "Next": "Activities"}
    activities = call(
        "autoscaling:describeScalingActivities",
        {"AutoScalingGroupName.$": "$.group", "MaxRecords": 1},
    ) | {
        "ResultSelector": {"newest.$": "States.JsonToString($.Activities)"},
        "ResultPath": "$.told",
    }
    return over(
        "$.groups",
        {**_KEPT, "polls": 0},
        "Look",
        {
            "Look": after(look, "Count"),
            "Count": count,
            "AreThere": {"Type": "Choice", "Choices": [enough, late], "Default": "Pause"},
            "Pause": {"Type": "Wait", "Seconds": POLL_S, "Next": "Look"},
            "Found": last({"Type": "Pass", "OutputPath": "$.up"}),
            "Activities": after(activities, "Late"),
            "Late": failing(
                "NodesNotThere",
                "States.Format('{}: {} of {} nodes in service when time was up; the last activity: "
                "{}', $.group, $.found, $.wanted, $.told.newest)",
            ),
        },
        prefix="Wait",
    ) | {"ResultPath": "$.up"}


def find_router(group: str) -> State:
    """A router in service, and the nodes, as the lists of ids that steps want."""
    state = call("autoscaling:describeAutoScalingGroups", {"AutoScalingGroupNames": [group]})
    return state | {
        "ResultSelector": {"id.$": f"States.ArrayGetItem({IN_SERVICE}, 0)"},
        "ResultPath": "$.router",
    }


def _describe(group: str) -> State:
    return call(
        "autoscaling:describeAutoScalingGroups",
        {"AutoScalingGroupNames.$": f"States.Array({group})"},
    )


def _set(capacity: str) -> State:
    asked: dict[str, Any] = {"AutoScalingGroupName.$": "$.group", "DesiredCapacity.$": capacity}
    return call("autoscaling:setDesiredCapacity", {**asked, "HonorCooldown": False})
