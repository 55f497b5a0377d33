"""Do both arms give the same answers? Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from runtime.bench.turn import TurnResult

TOLERANCE = 1e-3
"""Logprobs closer than this are one value: float noise of another summation order."""


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
    """Compare the arms on every turn that both finished.

    From the first tie on, the arms continue different texts, so the rest of that
    turn says nothing and is left out.
    """
    good = {(r.arm, r.conversation, r.turn): r for r in results if r.is_successful}
    pairs = [
        (cold, good["bidirectional", conversation, turn])
        for (arm, conversation, turn), cold in sorted(good.items())
        if arm == "one_way" and ("bidirectional", conversation, turn) in good
    ]
    verdicts = [_compare_turn(cold, warm) for cold, warm in pairs]
    return Exactness(
        compared=len(pairs),
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
