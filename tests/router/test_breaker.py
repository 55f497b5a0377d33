"""When a node is left alone, and when it is tried again."""

import pytest

from runtime.router.breaker import Breaker


def opened(at_s: float = 0.0) -> Breaker:
    """A breaker that two failures have opened for ten seconds."""
    breaker = Breaker(failures_to_open=2, open_s=10.0)
    breaker.failed(at_s)
    breaker.failed(at_s)
    return breaker


def test_few_failures_leave_it_closed() -> None:
    """One failure less than the limit stops nothing."""
    breaker = Breaker(failures_to_open=2)
    breaker.failed(0.0)
    assert breaker.allows(0.0)
    assert not breaker.is_open


def test_failures_in_a_row_open_it() -> None:
    """At the limit nothing more is sent, until the time is over."""
    breaker = opened(at_s=5.0)
    assert breaker.is_open
    assert [breaker.allows(now_s) for now_s in (5.0, 14.9, 15.0)] == [False, False, True]


def test_success_between_failures_starts_the_count_anew() -> None:
    """Only failures in a row count."""
    breaker = Breaker(failures_to_open=2)
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    assert breaker.allows(0.0)


def test_only_one_request_tries_an_open_node() -> None:
    """While the trial is under way no other request is sent."""
    breaker = opened()
    assert breaker.allows(10.0)
    breaker.sent(10.0)
    assert not breaker.allows(10.0)


def test_trial_that_works_closes_it() -> None:
    """The node is back for everybody."""
    breaker = opened()
    breaker.sent(10.0)
    breaker.succeeded()
    breaker.sent(10.0)
    assert breaker.allows(10.0)
    assert not breaker.is_open


def test_trial_that_fails_waits_again() -> None:
    """A single further failure is enough, and the whole time starts anew."""
    breaker = opened()
    breaker.sent(10.0)
    breaker.failed(12.0)
    assert [breaker.allows(now_s) for now_s in (12.0, 21.9, 22.0)] == [False, False, True]


def test_trial_without_an_outcome_does_not_block_for_ever() -> None:
    """A trial whose client left tells nothing: the next period has its own."""
    breaker = opened()
    breaker.sent(10.0)
    assert [breaker.allows(now_s) for now_s in (19.9, 20.0)] == [False, True]


@pytest.mark.parametrize("now_s", [0.0, 100.0])
def test_closed_breaker_lets_any_number_through(now_s: float) -> None:
    """Sending through a closed breaker is no trial."""
    breaker = Breaker()
    breaker.sent(now_s)
    assert breaker.allows(now_s)
