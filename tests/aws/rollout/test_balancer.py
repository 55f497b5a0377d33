"""Routers in and out of their load balancer, against stubbed replies."""

import pytest

from runtime.aws.rollout.balancer import Balancer
from runtime.errors import StartFailed
from tests.aws.fleet import Clock
from tests.aws.stubs import Answer, answering

ARN = "arn:aws:elasticloadbalancing:us-west-2:111122223333:targetgroup/routers/0f"
ASKED = {"TargetGroupArn": ARN, "Targets": [{"Id": "i-1"}]}


def states(**told: str) -> Answer:
    """DescribeTargetHealth and its answer: i_1="healthy"."""
    found = [
        {"Target": {"Id": name.replace("_", "-")}, "TargetHealth": {"State": state}}
        for name, state in told.items()
    ]
    reply = {"TargetHealthDescriptions": found}
    return Answer("describe_target_health", reply, {"TargetGroupArn": ARN})


def test_router_comes_back_when_it_gets_connections() -> None:
    """The next router may leave only then: else nobody is left."""
    clock = Clock()
    with answering(
        "elbv2",
        states(i_2="healthy"),
        Answer("register_targets", {}, ASKED),
        *(states(i_1=state) for state in ("initial", "unhealthy", "healthy")),
    ) as elbv2:
        Balancer(elbv2, [ARN], clock.sleep, clock).put_in("i-1")
    assert clock.slept == [5.0, 5.0]


def test_router_that_stays_unhealthy_is_told() -> None:
    """After five minutes, with the state."""
    clock = Clock()
    looks = [states(i_1="unhealthy")] * 62
    with answering("elbv2", looks[0], Answer("register_targets", {}, ASKED), *looks[1:]) as elbv2:
        balancer = Balancer(elbv2, [ARN], clock.sleep, clock)
        with pytest.raises(StartFailed, match="i-1 serves, but") as failure:
            balancer.put_in("i-1")
    assert "unhealthy after 300 s" in failure.value.got


@pytest.mark.parametrize(
    ("told", "is_out"),
    [({"i_1": "healthy"}, False), ({"i_1": "draining"}, True), ({"i_2": "healthy"}, True)],
)
def test_router_is_out_when_it_leaves_or_is_not_listed(told: dict[str, str], is_out: bool) -> None:
    """As a rollout that was interrupted leaves it."""
    clock = Clock()
    with answering("elbv2", states(**told)) as elbv2:
        assert Balancer(elbv2, [ARN], clock.sleep, clock).is_out("i-1") is is_out


def test_last_healthy_router_stays_in() -> None:
    """Others that are not healthy stand in for nobody."""
    clock = Clock()
    with answering("elbv2", states(i_1="healthy", i_2="unhealthy")) as elbv2:
        Balancer(elbv2, [ARN], clock.sleep, clock).take_out("i-1")


def test_without_a_load_balancer_nothing_is_asked() -> None:
    """A deployment whose routers stand alone."""
    clock = Clock()
    with answering("elbv2") as elbv2:
        balancer = Balancer(elbv2, [], clock.sleep, clock)
        balancer.take_out("i-1")
        balancer.put_in("i-1")
        assert not balancer.is_out("i-1")
