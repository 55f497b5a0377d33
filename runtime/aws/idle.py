"""How long a deployment has served nobody, asked of its routers."""

from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from runtime.aws.groups import groups_of
from runtime.aws.machines import Machine, machines_of
from runtime.aws.reports import PERMISSIONS, reports_of
from runtime.aws.run_command import RunCommand
from runtime.errors import BadInput


def idle_s(
    deployment: str, ec2: Any, autoscaling: Any, commands: RunCommand, now: datetime
) -> float:
    """Seconds since the last turn on any router ended, or since the youngest engine started.

    A router counts from its own start where it has served no turn since; nodes that have
    just been started are not idle, however long nobody was there to serve. Nodes that start, and
    those that a group was asked for and has not, count as started just now.

    Args:
        deployment: value of the tag `turnback:deployment`.
        ec2, autoscaling: boto3's clients.
        commands: on its machines.
        now: with a time zone.

    Raises:
        BadInput: a router does not tell, there is none, or AWS refuses.
    """
    try:
        # The groups first: an instance that starts in between is seen as pending.
        groups = groups_of(autoscaling, deployment)
        machines = machines_of(ec2, deployment, ("pending", "running"))
        routers = [each.name for each in machines if each.role == "router" and not each.is_pending]
        if not routers:
            raise _unknown(deployment, "no running router")
        reports, problems = reports_of(commands, routers, f"turnback scale {deployment}")
    except (BotoCoreError, ClientError) as error:
        raise _unknown(deployment, str(error)) from error
    told = {name: report.idle_s for name, report in reports.items()}
    silent = [name for name, idle in told.items() if idle is None]
    if silent:
        reasons = (f"{name}: {problems.get(name, 'it does not answer')}" for name in silent)
        raise _unknown(deployment, "; ".join(reasons))
    ages = [_age_s(each, now) for each in machines if each.role != "router"]
    ages += [0.0 for group in groups if group.desired > group.in_service]
    return min([*(idle for idle in told.values() if idle is not None), *ages])


def _age_s(machine: Machine, now: datetime) -> float:
    return 0.0 if machine.is_pending else (now - machine.launched_at).total_seconds()


def _unknown(deployment: str, got: str) -> BadInput:
    return BadInput(
        f"nobody can tell how long {deployment} has been idle; nothing was ended",
        got=got,
        allowed=f"an answer of every router by SSM Run Command ({PERMISSIONS})",
        fix="mend the router, or scale down without --when-idle",
    )
