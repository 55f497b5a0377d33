"""Equal, tie or difference: each compared turn is exactly one of them."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.exactness import Difference, Exactness, compare, compare_again, noise_p, verdict
from runtime.bench.turn import TurnResult

Make = Callable[..., TurnResult]
TIED, CLEAR = (-0.5, -0.5009), (-0.5, -0.502)


def both(make: Make, cold: Mapping[str, object], warm: Mapping[str, object]) -> list[TurnResult]:
    return [make(arm="one_way", **cold), make(arm="bidirectional", **warm)]


def test_same_answers_are_equal(make_turn: Make) -> None:
    """Equal ids with logprobs within 1e-3 are equal."""
    found = compare(both(make_turn, {}, {"logprobs": (-0.5009, -0.4991)}))
    assert (found.compared, found.equal, found.ties, found.differences) == (1, 1, 0, ())


def test_another_id_at_a_tie_ends_the_comparison(make_turn: Make) -> None:
    """Where the cold top two are within 1e-3, either may win and the rest is not compared."""
    cold = {"token_ids": (5, 6), "top2": (TIED, CLEAR)}
    found = compare(both(make_turn, cold, {"token_ids": (4, 9), "logprobs": (-0.5009, -7.0)}))
    assert (found.compared, found.equal, found.ties, found.differences) == (1, 0, 1, ())


def test_another_id_without_a_tie_is_a_difference(make_turn: Make) -> None:
    """The first differing position is told with both ids and logprobs."""
    cold = {"conversation": 3, "turn": 2, "top2": (TIED, CLEAR)}
    warm = {"conversation": 3, "turn": 2, "token_ids": (5, 9), "logprobs": (-0.5, -0.502)}
    found = compare(both(make_turn, cold, warm))
    assert found.to_dict() == {
        "compared": 1,
        "equal": 0,
        "ties": 0,
        "differences": [
            {
                "conversation": 3,
                "turn": 2,
                "position": 1,
                "one_way_id": 6,
                "bidirectional_id": 9,
                "one_way_logprob": -0.5,
                "bidirectional_logprob": -0.502,
                "kind": "token",
            }
        ],
    }


def test_the_warm_arm_cannot_call_a_tie(make_turn: Make) -> None:
    """Only the cold arm's top two make a tie: wrong KV could make any two close."""
    warm = {"token_ids": (4, 6), "top2": (TIED, CLEAR)}
    assert compare(both(make_turn, {"top2": (CLEAR, CLEAR)}, warm)).ties == 0


@pytest.mark.parametrize("logprob", [-0.502, -0.498, float("nan")])
def test_a_logprob_gap_is_a_difference(make_turn: Make, logprob: float) -> None:
    """The same ids with another probability come from another computation."""
    found = compare(both(make_turn, {}, {"logprobs": (-0.5, logprob)}))
    assert [(d.position, d.kind) for d in found.differences] == [(1, "logprob")]


def test_a_gap_before_a_tie_is_a_difference(make_turn: Make) -> None:
    """A tie excuses what follows it, not what came before."""
    cold = {"top2": (CLEAR, TIED)}
    found = compare(both(make_turn, cold, {"token_ids": (5, 9), "logprobs": (-0.6, -0.5)}))
    assert [(d.position, d.kind) for d in found.differences] == [(0, "logprob")]


def test_a_gap_at_a_tie_is_a_difference(make_turn: Make) -> None:
    """Two tied tokens have nearly one probability; another one is no tie."""
    cold = {"top2": (TIED, TIED)}
    found = compare(both(make_turn, cold, {"token_ids": (4, 6), "logprobs": (-0.9, -0.5)}))
    assert [(d.position, d.kind) for d in found.differences] == [(0, "token")]


@pytest.mark.parametrize(
    "warm", [{"token_ids": (5,)}, {"logprobs": (-0.5,)}, {"token_ids": (5, 6, 7)}]
)
def test_another_length_is_a_difference(make_turn: Make, warm: dict[str, object]) -> None:
    """Ids or logprobs that one arm lacks cannot be called equal."""
    found = compare(both(make_turn, {}, warm))
    assert [d.kind for d in found.differences] == ["length"]


def test_unsuccessful_turns_are_not_compared(make_turn: Make) -> None:
    """A turn that one arm did not finish is in no count."""
    pair = both(make_turn, {}, {"outcome": "incomplete"})
    assert compare([*pair, make_turn(turn=2)]).compared == 0


@given(data=st.data())
def test_every_compared_turn_is_counted_once(make_turn: Make, data: st.DataObject) -> None:
    """equal + ties + differences == compared, whatever came back."""
    ids = st.tuples(st.integers(0, 2), st.integers(0, 2))
    logprobs = st.tuples(st.sampled_from([-0.5, -0.5005, -2.0]), st.just(-0.5))
    tops = st.tuples(st.sampled_from([TIED, CLEAR]), st.sampled_from([TIED, CLEAR]))
    turns = [
        make_turn(
            arm=arm,
            conversation=conversation,
            outcome=data.draw(st.sampled_from(["successful", "successful", "errored"])),
            token_ids=data.draw(ids),
            logprobs=data.draw(logprobs),
            top2=data.draw(tops),
        )
        for conversation in range(4)
        for arm in ("one_way", "bidirectional")
    ]
    found = compare(turns)
    assert found.equal + found.ties + len(found.differences) == found.compared


def counts(compared: int, different: int) -> Exactness:
    """So many turns, of which so many differ."""
    told = Difference(0, 1, 0, 5, 6, -0.5, -0.5, "token")
    return Exactness(compared, compared - different, 0, (told,) * different)


@pytest.mark.parametrize(
    ("arms", "again", "is_reproducible", "want"),
    [
        ((0, 0), (5, 0), False, "not_compared"),
        ((40, 0), (0, 0), False, "equal"),
        ((40, 0), (5, 5), False, "equal"),
        ((40, 1), (5, 0), True, "more_than_noise"),
        ((40, 1), (5, 0), False, "within_noise"),
        ((40, 30), (5, 0), False, "more_than_noise"),
        ((40, 1), (0, 0), False, "more_than_noise"),
        ((40, 8), (40, 7), True, "within_noise"),
        ((40, 16), (40, 7), True, "more_than_noise"),
    ],
)
def test_the_arms_may_differ_no_more_often_than_repeats_do(
    arms: tuple[int, int], again: tuple[int, int], is_reproducible: bool, want: str
) -> None:
    """Where arithmetic repeats itself one difference is too many; else noise is allowed for."""
    assert verdict(counts(*arms), counts(*again), is_reproducible=is_reproducible) == want


def test_noise_needs_turns_on_both_sides() -> None:
    """Without repeats nobody knows what noise does."""
    assert noise_p(counts(4, 1), counts(0, 0)) is None
    assert noise_p(counts(0, 0), counts(4, 1)) is None
    assert noise_p(counts(4, 1), counts(4, 1)) == pytest.approx(1 - 15 / 70)


def test_repeats_are_compared_with_the_turn_they_repeat(make_turn: Make) -> None:
    """A/A: the same conversation, turn and repeat of the workload; arms leave them out."""
    turns = [
        make_turn(),
        make_turn(is_again=True, token_ids=(5, 9)),
        make_turn(repeat=1),
        make_turn(repeat=1, is_again=True),
        make_turn(turn=2, is_again=True),
        make_turn(arm="bidirectional"),
    ]
    again = compare_again(turns)
    assert (again.compared, again.equal, len(again.differences)) == (2, 1, 1)
    assert (compare(turns).compared, compare(turns).equal) == (1, 1)


def test_edited_turns_are_compared_alike(make_turn: Make) -> None:
    """A wrong answer after an edit is a difference as any other."""
    pair = both(make_turn, {"is_edited": True}, {"is_edited": True, "token_ids": (5, 9)})
    assert len(compare(pair).differences) == 1


def test_turns_whose_client_left_are_outside(make_turn: Make) -> None:
    """They ended where the client did, not where the engines differ."""
    pair = both(make_turn, {}, {"outcome": "aborted", "token_ids": (5,)})
    assert compare(pair).compared == 0
