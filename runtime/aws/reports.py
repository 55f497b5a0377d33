"""What machines say of the process they run, asked by SSM."""

from collections.abc import Sequence

from pydantic import ValidationError

from runtime.aws.run_command import Outcome, RunCommand
from runtime.contract.status import KIT_PYTHON, NodeReport

REPORT_COMMAND = f"{KIT_PYTHON} -I -m runtime.launch.node_report"
_REPORT_S = 30

PERMISSIONS = (
    "ssm:SendCommand, ssm:GetCommandInvocation, ssm:DescribeInstanceInformation, "
    "ec2:DescribeInstances"
)


def reports_of(
    commands: RunCommand, names: Sequence[str], comment: str
) -> tuple[dict[str, NodeReport], dict[str, str]]:
    """Ask all at once.

    Args:
        commands: on these machines.
        names: instance ids.
        comment: what AWS shows beside the command.

    Returns:
        A report of each, an empty one of those that do not tell; and why they do not.

    Raises:
        BotoCoreError, ClientError: AWS refuses, or does not answer.
    """
    online = commands.online(names)
    problems = {name: "its SSM agent is offline" for name in names if name not in online}
    reports = dict.fromkeys(names, NodeReport())
    asked = [name for name in names if name in online]
    outcomes = commands.run(asked, REPORT_COMMAND, timeout_s=_REPORT_S, comment=comment)
    for name, outcome in outcomes.items():
        try:
            reports[name] = _report(outcome)
        except ValueError as error:
            problems[name] = str(error)
    return reports, problems


def _report(outcome: Outcome) -> NodeReport:
    """Out of what the command printed; ValueError with what is wrong with it."""
    if not outcome.is_done:
        raise ValueError(outcome.problem)
    try:
        return NodeReport.model_validate_json(outcome.output)
    except ValidationError as error:
        raise ValueError(f"an answer of another form: {outcome.output[:200]!r}") from error
