"""One node: drained, restarted, waited for, taken back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runtime.aws.rollout import failures
from runtime.aws.rollout.fleet import Fleet, NodeRole, RunningNode, Target
from runtime.aws.rollout.order import Finish, Restart, Targets
from runtime.aws.rollout.report import Pace
from runtime.errors import StartFailed, TurnbackError

_HEARTBEAT_S = 30.0

_ENGINE_STAYS = "stays drained: nothing is sent to it until it is taken back"
_STAYS_OUT: Mapping[NodeRole, str] = {
    "prefill": _ENGINE_STAYS,
    "decode": _ENGINE_STAYS,
    # A balancer keeps the only router that it has.
    "router": "gets no new connections until it is taken back, unless it is the only router",
}


@dataclass(frozen=True, slots=True)
class Mover:
    """Moves single nodes of a fleet."""

    fleet: Fleet
    targets: Targets
    tell: Callable[[str], None]
    pace: Pace

    def target(self, node: RunningNode) -> Target:
        """Where a node shall be."""
        return self.targets[node.role]

    def move(self, step: Restart | Finish) -> None:
        """Bring a node to its target, in place.

        Raises:
            StartFailed: it is not idle, or not ready, in time. Of the first it is taken
                back; of the second it stays drained, so that nothing is sent to it (a router: so
                that nothing is where another one serves).
        """
        node, is_out = step.node, step.node.is_draining
        if isinstance(step, Restart):
            is_out = self.drain(node) or is_out
        try:
            if isinstance(step, Restart):
                self._tell(node, "restarts")
                self.fleet.restart(node)
            self._wait_until_ready(node)
        except BaseException:  # also Ctrl-C: whoever stops it has to know
            if is_out:
                self._tell(node, _STAYS_OUT[node.role])
            raise
        self.fleet.undrain(node)
        self._tell(node, f"serves as generation {self.target(node).generation}")

    def drain(self, node: RunningNode) -> bool:
        """Return when nothing runs on a node and nobody reads from it; else take it back.

        Returns:
            Whether it was drained: a node that does not run holds nothing.

        Raises:
            StartFailed: requests still ran when time was up, or it does not tell what it runs.
        """
        node = self._look(node)
        if not node.generation:
            self._tell(node, "does not run, nothing to drain")
            return False
        try:
            self.fleet.drain(node)
            self._wait_until_idle(node)
        except BaseException:  # also Ctrl-C: a node must not stay out for nothing
            self._take_back(node)
            raise
        return True

    def _look(self, node: RunningNode) -> RunningNode:
        """A node as it is now: the order may have been made an hour ago."""
        found = self._find(node)
        if found is None:
            raise failures.gone(node)
        if found.problem:
            raise failures.does_not_tell(found, found.problem)
        return found

    def _find(self, node: RunningNode) -> RunningNode | None:
        return next((each for each in self.fleet.nodes() if each.name == node.name), None)

    def _take_back(self, node: RunningNode) -> None:
        try:
            self.fleet.undrain(node)
        except TurnbackError as error:
            self._tell(node, f"stays drained, it cannot be taken back: {error.got}")
        else:
            self._tell(node, "taken back as it was")

    def _wait_until_idle(self, node: RunningNode) -> None:
        """Idle since the routers know, and since P's last blocks cannot be read any more."""
        pace = self.pace
        hold_s = float(node.lease_s or 0) if node.role == "prefill" else 0.0
        told_at_s = began_s = pace.clock()
        quiet_since_s = began_s + pace.notice_s
        longest_s = pace.router_s if node.role == "router" else pace.drain_s
        until_s = quiet_since_s + hold_s + longest_s
        self._tell(node, f"drains; {pace.notice_s:.0f} s until every router knows")
        while True:
            running, now_s = self.fleet.running_requests(node), pace.clock()
            if running != 0:  # one that does not answer may well run requests
                quiet_since_s = max(quiet_since_s, now_s)
            elif now_s >= quiet_since_s + hold_s:
                return
            if now_s >= until_s and node.role == "router":
                self._tell(node, f"{_runs(running)}; it lets turns end while it stops")
                return
            if now_s >= until_s:
                raise _still_out(node, running, now_s - began_s)
            if now_s - told_at_s >= _HEARTBEAT_S:
                told_at_s = now_s
                self._tell(node, f"{_runs(running)} after {now_s - began_s:.0f} s")
            pace.sleep(pace.poll_s)

    def _wait_until_ready(self, node: RunningNode) -> None:
        pace, target = self.pace, self.target(node)
        told_at_s = began_s = pace.clock()
        while True:
            found = self._find(node)
            now_s = pace.clock()
            if found is None:
                raise failures.gone(node)
            if found.is_ready and found.generation == target.generation:
                return
            if now_s - began_s >= pace.ready_s:
                waited_s = now_s - began_s
                raise failures.not_ready(found, target, waited_s, self.fleet.trouble(found))
            if now_s - told_at_s >= _HEARTBEAT_S:
                told_at_s = now_s
                self._tell(node, f"not ready after {now_s - began_s:.0f} s")
            pace.sleep(pace.poll_s)

    def _tell(self, node: RunningNode, what: str) -> None:
        self.tell(f"{node.role} {node.name}: {what}")


def _runs(running: int | None) -> str:
    return "it does not answer" if running is None else f"{running} request(s) run"


def _still_out(node: RunningNode, running: int | None, waited_s: float) -> StartFailed:
    if running is None:
        return failures.no_answer(node, waited_s)
    return failures.not_idle(node, running, waited_s)
