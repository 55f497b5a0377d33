"""Lines of a deployment's machines, out of CloudWatch Logs."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runtime.aws.patience import ask
from runtime.contract.node_metrics import log_group
from runtime.contract.status import MachineRole
from runtime.errors import BadInput

PERMISSIONS = "logs:FilterLogEvents"
MOST_LINES = 10_000
"""Of one look; what is longer is asked for in parts."""
_POLL_S = 2.0
_LATE_MS = 60_000
"""The agent sends lines some seconds late, each machine by its own."""
_MISSING = "ResourceNotFoundException"


class Line(NamedTuple):
    """One line of a machine.

    Attributes:
        unix_ms: when the agent read it.
        role: of the machine.
        node: its instance id.
        source: `journal` or `engine`.
        text: without a line break at its end.
    """

    unix_ms: int
    role: str
    node: str
    source: str
    text: str


@dataclass(frozen=True)
class Wanted:
    """Which lines.

    Attributes:
        deployment: its name.
        roles: whose machines.
        since_unix_ms: none before.
        node: instance id; empty: all machines.
        texts: each must stand in the line, as it is.
        most: lines of one look.
    """

    deployment: str
    roles: Sequence[MachineRole]
    since_unix_ms: int
    node: str = ""
    texts: Sequence[str] = ()
    most: int = MOST_LINES

    def question(self, role: str) -> dict[str, Any]:
        """What FilterLogEvents is asked for one role.

        Source:
            CloudWatch Logs, filter pattern syntax: terms in quotes match as they are, and
            all of them must.
        """
        asked: dict[str, Any] = {
            "logGroupName": log_group(self.deployment, role),
            "startTime": self.since_unix_ms,
        }
        if self.node:
            asked["logStreamNamePrefix"] = f"{self.node}/"
        if self.texts:
            quoted = (each.replace("\\", "\\\\").replace('"', '\\"') for each in self.texts)
            asked["filterPattern"] = " ".join(f'"{each}"' for each in quoted)
        return asked


class Logs:
    """Asks for a deployment's lines.

    Args:
        logs: boto3's client.
        sleep: the real one, but in tests.
    """

    def __init__(self, logs: Any, sleep: Callable[[float], None] = time.sleep) -> None:
        self._logs, self._sleep = logs, sleep

    def look(self, wanted: Wanted) -> list[Line]:
        """All lines, by time; at most `wanted.most`, the first of them.

        Raises:
            BadInput: no role has a log group, or AWS refuses.
        """
        return [line for _, line in self._numbered(wanted)]

    def follow(self, wanted: Wanted) -> Iterator[Line]:
        """Lines as they come, without an end.

        Machines send with delays of their own: each look begins a minute before the last line
        that was seen, so that a line which is late by less is not lost.

        Raises:
            BadInput: as for `look`.
        """
        seen: dict[str, int] = {}
        since = wanted.since_unix_ms
        while True:
            asked = Wanted(
                *(wanted.deployment, wanted.roles, since, wanted.node, wanted.texts, wanted.most)
            )
            fresh = self._numbered(asked, seen)
            for key, line in fresh:
                seen[key] = line.unix_ms
                yield line
            since = max(since, max(seen.values(), default=0) - _LATE_MS)
            seen = {key: at for key, at in seen.items() if at >= since}
            if len(fresh) < wanted.most:
                self._sleep(_POLL_S)

    def _numbered(
        self, wanted: Wanted, seen: Collection[str] = frozenset()
    ) -> list[tuple[str, Line]]:
        """With AWS's ids, by time, but for those that were seen."""
        found: list[tuple[str, Line]] = []
        missing: list[str] = []
        for role in wanted.roles:
            try:
                found += self._of_role(wanted, role, seen)
            except BadInput as error:
                if _MISSING not in error.got:
                    raise
                missing.append(role)
        if len(missing) == len(wanted.roles):
            raise _no_group(wanted)
        return sorted(found, key=lambda each: each[1].unix_ms)[: wanted.most]

    def _of_role(self, wanted: Wanted, role: str, seen: Collection[str]) -> list[tuple[str, Line]]:
        found: list[tuple[str, Line]] = []
        question = wanted.question(role)
        while len(found) < wanted.most:
            page = ask(
                f"the logs of {wanted.deployment}'s {role} machines cannot be read",
                PERMISSIONS,
                lambda: self._logs.filter_log_events(**question),  # noqa: B023 - called at once
                self._sleep,
            )
            found += [
                (each["eventId"], _line(role, each))
                for each in page["events"]
                if each["eventId"] not in seen
            ]
            if "nextToken" not in page:
                break
            question |= {"nextToken": page["nextToken"]}
        return found


def _line(role: str, event: Mapping[str, Any]) -> Line:
    node, _, source = event["logStreamName"].partition("/")
    return Line(int(event["timestamp"]), role, node, source, event["message"].rstrip("\r\n"))


def _no_group(wanted: Wanted) -> BadInput:
    groups = ", ".join(log_group(wanted.deployment, role) for role in wanted.roles)
    return BadInput(
        f"there are no logs of a deployment {wanted.deployment}",
        got=f"no log group {groups}",
        allowed="a deployment whose fleet and router stacks are there, in this region",
        fix="give its name as in deployment.toml, or another --region",
    )
