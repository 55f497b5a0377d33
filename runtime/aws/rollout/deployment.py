"""A rollout of a deployment on AWS."""

from collections.abc import Callable

from runtime.aws.clients import RolloutClients
from runtime.aws.rollout.aws_fleet import AwsFleet
from runtime.aws.rollout.aws_growth import AwsGrowth
from runtime.aws.rollout.report import Pace, RolloutReport
from runtime.aws.rollout.rollout import roll_out
from runtime.aws.run_command import RunCommand


def roll_out_deployment(
    deployment: str, clients: RolloutClients, tell: Callable[[str], None], pace: Pace
) -> RolloutReport:
    """Bring a deployment's running nodes to what is deployed; see `roll_out`.

    Raises:
        TurnbackError: before any node was touched.
    """
    commands = RunCommand(clients.ssm, pace.sleep, pace.clock)
    fleet = AwsFleet(deployment, clients, commands)
    return roll_out(fleet, tell, pace, AwsGrowth(deployment, clients, tell, pace.sleep))
