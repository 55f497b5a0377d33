"""Do both arms give the same answers? Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from runtime.bench.stats import more_often_p
from runtime.bench.turn import Arm, TurnResult

TOLERANCE = 1e-3
"""Logprobs closer than this are one value: float noise of another summation order."""

CHANCE = 0.05
"""Below this the arms differ more often than repeats of one arm do."""

Verdict = Literal["equal", "within_noise", "more_than_noise", "not_compared"]

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Difference:
    """The first position of a turn where the arms part, and how.

    Attributes:
        kind: `token`: other ids without a tie; `logprob`: the same id, another
            probability; `length`: one arm's answer, or its logprobs, end here.
    """

    conversation: int
    turn: int
    position: int
    one_way_id: int | None
    bidirectional_id: int | None
    one_way_logprob: float | None
    bidirectional_logprob: float | None
    kind: Literal["token", "logprob", "length"]


@dataclass(frozen=True)
class Exactness:
    """Counts of turns; equal + ties + len(differences) == compared."""

    compared: int
    equal: int
    ties: int
    differences: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        """The counts as plain JSON."""
        return asdict(self) | {"differences": [asdict(one) for one in self.differences]}


def compare(results: Sequence[TurnResult]) -> Exactness:
    """Compare the arms on every turn that both finished, edited ones alike.

    From the first tie on, the arms continue different texts, so the rest of that
    turn says nothing and is left out.
    """
    return _compare(_by_turn(results, "one_way"), _by_turn(results, "bidirectional"))


def compare_again(results: Sequence[TurnResult]) -> Exactness:
    """A/A: the same of one-way turns and their repeats, which shows what noise alone does."""
    return _compare(_by_turn(results, "one_way"), _by_turn(results, "one_way", is_again=True))


def verdict(found: Exactness, again: Exactness, *, is_reproducible: bool) -> Verdict:
    """Whether the arms give the same answers.

    Args:
        found: of the arms.
        again: of repeats of one arm.
        is_reproducible: arithmetic gives the same floats each time (float32, one request
            at a time): then a difference is an error, unless repeats differ too.

    Returns:
        `within_noise`: they differ, but no more often than repeats do (`noise_p` at 5 %).
    """
    if found.compared == 0:
        return "not_compared"
    if not found.differences:
        return "equal"
    p = noise_p(found, again)
    if p is None or (is_reproducible and not again.differences):
        return "more_than_noise"
    return "within_noise" if p >= CHANCE else "more_than_noise"


def noise_p(found: Exactness, again: Exactness) -> float | None:
    """How likely noise alone makes the arms differ so much more often than repeats do.

    Fisher's exact test, one-sided; None without turns in either.
    """
    if not found.compared or not again.compared:
        return None
    return more_often_p(
        (len(found.differences), found.compared), (len(again.differences), again.compared)
    )


def _by_turn(
    results: Sequence[TurnResult], arm: Arm, *, is_again: bool = False
) -> dict[tuple[int, int, int], TurnResult]:
    return {
        (r.conversation, r.turn, r.repeat): r
        for r in results
        if r.is_successful and r.arm == arm and r.is_again == is_again
    }


def _compare(
    cold: Mapping[tuple[int, int, int], TurnResult], warm: Mapping[tuple[int, int, int], TurnResult]
) -> Exactness:
    verdicts = [_compare_turn(cold[key], warm[key]) for key in sorted(cold.keys() & warm.keys())]
    return Exactness(
        compared=len(verdicts),
        equal=verdicts.count("equal"),
        ties=verdicts.count("tie"),
        differences=tuple(v for v in verdicts if isinstance(v, Difference)),
    )


def _compare_turn(cold: TurnResult, warm: TurnResult) -> Difference | Literal["equal", "tie"]:
    for position in range(max(len(cold.token_ids), len(warm.token_ids))):
        kind = _kind(cold, warm, position)
        if kind == "tie":
            return "tie"
        if kind != "equal":
            return Difference(
                conversation=cold.conversation,
                turn=cold.turn,
                position=position,
                one_way_id=_at(cold.token_ids, position),
                bidirectional_id=_at(warm.token_ids, position),
                one_way_logprob=_at(cold.logprobs, position),
                bidirectional_logprob=_at(warm.logprobs, position),
                kind=kind,
            )
    return "equal"


def _kind(
    cold: TurnResult, warm: TurnResult, position: int
) -> Literal["equal", "tie", "token", "logprob", "length"]:
    if any(position >= len(part) for r in (cold, warm) for part in (r.token_ids, r.logprobs)):
        return "length"
    is_close = abs(cold.logprobs[position] - warm.logprobs[position]) <= TOLERANCE
    if cold.token_ids[position] == warm.token_ids[position]:
        return "equal" if is_close else "logprob"
    best = cold.top2[position] if position < len(cold.top2) else ()
    is_tie = len(best) == 2 and abs(best[0] - best[1]) <= TOLERANCE
    return "tie" if is_tie and is_close else "token"


def _at(values: Sequence[_Number], position: int) -> _Number | None:
    return values[position] if position < len(values) else None
