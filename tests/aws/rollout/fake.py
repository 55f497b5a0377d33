"""A fleet in memory, whose time passes in sleeps only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.aws.rollout.fleet import NodeRole, RunningNode, Target
from runtime.aws.rollout.report import Pace, RolloutReport
from runtime.aws.rollout.rollout import roll_out
from runtime.contract.node import Role
from runtime.errors import StartFailed
from tests.aws.fleet import Clock

OLD, NEW = "aaaa", "bbbb"


def node(name: str, ttl_s: int | None = 480, **changes: Any) -> RunningNode:
    """A node of generation OLD; its role stands in its name, as in `decode-1`."""
    role: Any = name.partition("-")[0]
    fields: dict[str, Any] = {"lease_s": None if ttl_s is None else 30, "pairing": "image-1"}
    if role == "router":
        fields["pairing"] = ""
    return RunningNode(name, role, **{"generation": OLD, "ttl_s": ttl_s} | fields | changes)


def targets(ttl_s: int, pairing: str = "image-1", lease_s: int = 30) -> dict[NodeRole, Target]:
    """All roles at generation NEW."""
    engine = Target(NEW, ttl_s, lease_s, pairing)
    return {"prefill": engine, "decode": engine, "router": Target(NEW)}


@dataclass
class FakeFleet:
    """Nodes by name, and everything that was done to them.

    Attributes:
        wanted: targets.
        now: the nodes.
        clock: its time.
        start_s: from a restart to ready.
        busy_until_s: time at which a node's last request ends.
        silent: nodes that do not answer before they are restarted.
        broken: nodes that never become ready again.
        done: `verb name` in order.
        at: called after each of these.
    """

    wanted: Mapping[NodeRole, Target]
    now: dict[str, RunningNode]
    clock: Clock = field(default_factory=Clock)
    start_s: float = 40.0
    busy_until_s: dict[str, float] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    at: dict[str, Callable[[], None]] = field(default_factory=dict)
    ready_at_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, wanted: Mapping[NodeRole, Target], *nodes: RunningNode) -> "FakeFleet":
        """A fleet with these nodes."""
        return cls(wanted, {each.name: each for each in nodes})

    def note(self, verb: str, name: str) -> None:
        """Keep what was done, and play what was asked for at that."""
        self.done.append(f"{verb} {name}")
        self.at.get(f"{verb} {name}", lambda: None)()

    def change(self, name: str, **changes: Any) -> None:
        """Another state of a node."""
        self.now[name] = replace(self.now[name], **changes)

    def targets(self) -> Mapping[NodeRole, Target]:
        return self.wanted

    def nodes(self) -> Sequence[RunningNode]:
        for name, ready_at_s in self.ready_at_s.items():
            if name in self.now and name not in self.broken and self.clock() >= ready_at_s:
                self.change(name, is_ready=True)
        return list(self.now.values())

    def drain(self, node: RunningNode) -> None:
        self.change(node.name, is_draining=True)
        self.note("drain", node.name)

    def undrain(self, node: RunningNode) -> None:
        self.change(node.name, is_draining=False)
        self.note("undrain", node.name)

    def running_requests(self, node: RunningNode) -> int | None:
        if node.name in self.silent:
            return None
        return int(self.clock() < self.busy_until_s.get(node.name, 0.0))

    def restart(self, node: RunningNode) -> None:
        target = self.wanted[node.role]
        self.change(
            node.name,
            generation=target.generation,
            ttl_s=target.ttl_s,
            lease_s=target.lease_s,
            is_ready=False,
        )
        self.ready_at_s[node.name] = self.clock() + self.start_s
        self.note("restart", node.name)

    def trouble(self, node: RunningNode) -> str:
        return f"log of {node.name}"

    def moved(self) -> list[str]:
        """Names of the nodes that were restarted, in order."""
        return [each.split()[1] for each in self.done if each.startswith("restart ")]


@dataclass
class FakeGrowth:
    """Starts nodes in a fake fleet.

    Attributes:
        fleet: where they start.
        wanted: how many there shall be of each role.
        most: bounds.
        missing: roles without capacity.
        asked: how many are asked for now.
    """

    fleet: FakeFleet
    wanted: dict[Role, int]
    most: dict[Role, int]
    missing: set[Role] = field(default_factory=set)
    asked: dict[Role, int] = field(default_factory=dict)
    started: int = 0

    def room(self, role: Role) -> int:
        return self.most[role] - self.wanted[role]

    def grow(self, role: Role) -> int:
        self.asked.setdefault(role, self.wanted[role])
        is_new = self.asked[role] == self.wanted[role]
        self.asked[role] = self.wanted[role] + 1
        if is_new and role not in self.missing:
            self.started += 1
            name, target = f"{role}-new{self.started}", self.fleet.wanted[role]
            self.fleet.now[name] = RunningNode(
                *(name, role, target.generation, target.ttl_s, target.lease_s, target.pairing),
                is_ready=False,
            )
            self.fleet.ready_at_s[name] = self.fleet.clock() + self.fleet.start_s
        self.fleet.note("grow", role)
        return self.asked[role]

    def check(self) -> str:
        if self.missing and self.fleet.clock() > 100:
            raise StartFailed("no capacity", got="none", allowed="some", fix="wait")
        return f"no {', '.join(self.missing)} yet" if self.missing else ""

    def give_up(self, role: Role) -> None:
        if sum(each.role == role for each in self.fleet.now.values()) <= self.wanted[role]:
            self.asked[role] = self.wanted[role]
        self.fleet.note("give_up", role)

    def end(self, node: RunningNode) -> None:
        del self.fleet.now[node.name]
        role: Any = node.role
        self.asked[role] -= 1
        self.fleet.note("end", node.name)


def roll(
    fleet: FakeFleet, growth: FakeGrowth | None = None, **pace: float
) -> tuple[RolloutReport, list[str]]:
    """Roll out; the report and the lines told."""
    lines: list[str] = []
    paced = Pace(sleep=fleet.clock.sleep, clock=fleet.clock, **pace)
    return roll_out(fleet, lines.append, paced, growth), lines
