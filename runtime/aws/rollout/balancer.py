"""Routers in and out of their load balancer, by deregistering them."""

from collections.abc import Callable, Sequence
from typing import Any

from runtime.errors import StartFailed

_HEALTHY_S = 300.0
_POLL_S = 5.0


class Balancer:
    """The target groups that routers stand in.

    A router that is the only one stays in: without it clients would be refused for the
    whole drain, and not for the seconds of its restart.

    Args:
        elbv2: boto3's client.
        target_groups: ARNs.
        sleep, clock: the real ones, but in tests.
    """

    def __init__(
        self,
        elbv2: Any,
        target_groups: Sequence[str],
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._elbv2, self._arns = elbv2, target_groups
        self._sleep, self._clock = sleep, clock

    def _states(self, arn: str) -> dict[str, str]:
        """Instance id -> AWS's word, of the targets there are."""
        reply = self._elbv2.describe_target_health(TargetGroupArn=arn)
        return {
            each["Target"]["Id"]: each["TargetHealth"]["State"]
            for each in reply["TargetHealthDescriptions"]
        }

    def is_out(self, instance: str) -> bool:
        """Whether a router gets no new connections from one of its target groups."""
        states = [self._states(arn).get(instance, "draining") for arn in self._arns]
        return any(state == "draining" for state in states)

    def take_out(self, instance: str) -> None:
        """No new connections to a router that others can stand in for."""
        for arn in self._arns:
            others = self._states(arn)
            others.pop(instance, None)
            if "healthy" in others.values():
                targets = [{"Id": instance}]
                self._elbv2.deregister_targets(TargetGroupArn=arn, Targets=targets)

    def put_in(self, instance: str) -> None:
        """Register a router, and wait until it gets connections again.

        Raises:
            StartFailed: the load balancer does not find it healthy in time.
        """
        until_s = self._clock() + _HEALTHY_S
        for arn in self._arns:
            if self._states(arn).get(instance) not in ("healthy", "initial"):
                self._elbv2.register_targets(TargetGroupArn=arn, Targets=[{"Id": instance}])
            while (state := self._states(arn).get(instance, "missing")) != "healthy":
                if self._clock() >= until_s:
                    raise _not_healthy(instance, state)
                self._sleep(_POLL_S)


def _not_healthy(instance: str, state: str) -> StartFailed:
    return StartFailed(
        f"router {instance} serves, but its load balancer does not send it anything",
        got=f"target state {state} after {_HEALTHY_S:.0f} s",
        allowed="healthy",
        fix="see the target group's health check and the security groups; run it again",
    )
