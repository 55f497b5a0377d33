"""What stacks and runtime both name: metrics, parameters and files of a deployment's validation.

A name that stands on both sides of a deploy is made here and nowhere else.
"""

from typing import Any, Literal, NamedTuple

from runtime.contract.names import resource_name

NAMESPACE = "turnback"
"""Of every CloudWatch metric of the kit."""

Unit = Literal["None", "Percent", "Milliseconds", "Count", "Bytes", "Seconds"]


class Metric(NamedTuple):
    """A metric in CloudWatch.

    Attributes:
        name: of the metric.
        unit: CloudWatch's word.
        dimensions: names, in this order; the first is always the deployment.
        meaning: one line, as docs/validate.md tells it.
    """

    name: str
    unit: Unit
    dimensions: tuple[str, ...]
    meaning: str


DEPLOYMENT, ARM, TURN = "Deployment", "Arm", "Turn"
"""Dimensions. `Turn` is `1` or `later`."""
TURNS = ("1", "later")

SPEED_UP = Metric(
    "SpeedUp", "None", (DEPLOYMENT,), "one-way TTFT over bidirectional TTFT, turns 2 and later"
)
SPEED_UP_LOW = Metric("SpeedUpLow", "None", (DEPLOYMENT,), "lower end of its 95 % interval")
SPEED_UP_HIGH = Metric("SpeedUpHigh", "None", (DEPLOYMENT,), "upper end of its 95 % interval")
PULLED_SHARE = Metric(
    "PulledShare",
    "Percent",
    (DEPLOYMENT,),
    "prompt tokens of bidirectional later turns that P pulled from D, of all of them",
)
TTFT_P50 = Metric(
    "TtftP50Ms", "Milliseconds", (DEPLOYMENT, ARM, TURN), "median TTFT of successful turns"
)
TTFT_P90 = Metric(
    "TtftP90Ms", "Milliseconds", (DEPLOYMENT, ARM, TURN), "90th percentile; none below 10 turns"
)
FAILED_TURNS = Metric("FailedTurns", "Count", (DEPLOYMENT,), "turns without a whole answer")
ANSWERS_COMPARED = Metric("AnswersCompared", "Count", (DEPLOYMENT,), "answers of both arms")
ANSWERS_DIFFERENT = Metric(
    "AnswersDifferent", "Count", (DEPLOYMENT,), "answers that differ before a tie"
)
FAILED_TRANSFERS = Metric(
    "FailedTransfers", "Count", (DEPLOYMENT,), "NIXL transfers that failed on any engine"
)
TRANSFERRED_BYTES = Metric("TransferredBytes", "Bytes", (DEPLOYMENT,), "KV moved, by the engines")
VALIDATION_FAILED = Metric(
    "ValidationFailed", "Count", (DEPLOYMENT,), "1 when a validation failed, 0 when it ended well"
)
BAR_MISSED = Metric("BarMissed", "Count", (DEPLOYMENT,), "1 when a result is below a bar, else 0")

VALIDATION_METRICS: tuple[Metric, ...] = (
    *(SPEED_UP, SPEED_UP_LOW, SPEED_UP_HIGH, PULLED_SHARE, TTFT_P50, TTFT_P90),
    *(FAILED_TURNS, ANSWERS_COMPARED, ANSWERS_DIFFERENT, FAILED_TRANSFERS, TRANSFERRED_BYTES),
    *(VALIDATION_FAILED, BAR_MISSED),
)
"""What a validation publishes, once each run."""


STEPS = {
    "StartNodes": "start nodes",
    "WaitForNodes": "wait for nodes",
    "Ready": "wait for engines",
    "Doctor": "doctor on each node",
    "Transport": "transport: does KV move",
    "Exactness": "exactness: do answers stay",
    "Benchmark": "benchmark",
    "ScaleDown": "end the nodes that were started",
    "EndNodes": "end the nodes that were started, after a failure",
}
"""States that a user is told of, in their order, with what they do."""

ERRORS = "turnback."
"""Begins the name of every error that the state machine itself ends with."""
INPUT_ERRORS = ("WrongInput", "NodesMissing", "ModelNotStaged", "AnotherRuns")
START_ERRORS = ("NodesNotThere", "NoRouter", "Ready")
"""After it: asked for wrongly; nodes or engines that did not come up. Any other is a step's."""

GOOD, BELOW_BAR = "good", "below_bar"
"""Verdicts of a run that ended well."""

Mode = Literal["validate", "scale"]
ScaleDown = Literal["always", "on_failure", "never"]
"""When nodes that a run has started are ended."""


def validation_input(
    mode: Mode,
    *,
    scale_up: bool,
    scale_down: ScaleDown,
    min_speedup: float | None,
    slo_ttft_p90_ms: float | None,
) -> dict[str, Any]:
    """What the state machine is started with.

    Args:
        mode: `scale`: nodes are started and checked, and nothing is measured.
        scale_up: whether missing nodes are started.
        scale_down: when they are ended.
        min_speedup, slo_ttft_p90_ms: bars; None, and 0 in the input: none.
    """
    return {
        "mode": mode,
        "scale_up": scale_up,
        "scale_down": scale_down,
        "min_speedup": min_speedup or 0,
        "slo_ttft_p90_ms": slo_ttft_p90_ms or 0,
    }


def state_machine_name(deployment: str) -> str:
    """Step Functions state machine that validates a deployment."""
    return resource_name(deployment, "validate")


def results_bucket_parameter(deployment: str) -> str:
    """SSM parameter that tells the bucket with the run folders."""
    return f"/turnback/{deployment}/results-bucket"


def last_validation_parameter(deployment: str) -> str:
    """SSM parameter with the last result, as JSON."""
    return f"/turnback/{deployment}/last-validation"


RUNS = "runs"
"""Folder of the results bucket that holds the run folders."""


def run_prefix(run_id: str) -> str:
    """Folder of a run in the results bucket."""
    return f"{RUNS}/{run_id}/"


def fingerprint_parameter(deployment: str) -> str:
    """SSM parameter that changes with each deploy that changes anything."""
    return f"/turnback/{deployment}/fingerprint"
