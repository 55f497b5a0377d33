"""Edits change an earlier message in a share of turns, the same for the same seed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.bench.workloads.edits import changed, with_edits


def conversation(index: int, turns: int, *, is_warmup: bool = False) -> Conversation:
    planned = tuple(
        PlannedTurn(({"role": "user", "content": f" c{index} t{at} a b c d"},), answer_tokens=4)
        for at in range(turns)
    )
    return Conversation(index, is_warmup, (), planned)


WORKLOAD = [
    conversation(0, 2, is_warmup=True),
    conversation(0, 5),
    conversation(1, 5),
    conversation(2, 1),
]


@given(share=st.floats(0, 1), seed=st.integers(0, 500))
def test_a_share_of_later_turns_is_edited(share: float, seed: int) -> None:
    """Only turns from the second on, of measured conversations; nothing else changes."""
    edited = with_edits(WORKLOAD, share, seed)
    plain = [turn.edit for each in edited for turn in each.turns]
    assert len([edit for edit in plain if edit]) == max(round(share * 8), 1 if share else 0)
    assert edited[0] == WORKLOAD[0]
    assert edited[3] == WORKLOAD[3]
    for before, after in zip(WORKLOAD, edited, strict=True):
        assert after.turns[0].edit is None
        assert [turn.messages for turn in after.turns] == [turn.messages for turn in before.turns]


@given(seed=st.integers(0, 500))
def test_every_edit_differs_from_what_stood_there(seed: int) -> None:
    """An edit refers to an earlier turn, and changes its messages as they were by then."""
    for each in with_edits(WORKLOAD, 1.0, seed):
        standing = [turn.messages for turn in each.turns]
        for at, turn in enumerate(each.turns):
            if turn.edit is None:
                continue
            earlier, messages = turn.edit
            assert earlier < at
            assert messages != standing[earlier]
            assert [m["role"] for m in messages] == [m["role"] for m in standing[earlier]]
            standing[earlier] = messages


def test_both_arms_get_the_same() -> None:
    """The seed decides, and another one edits other turns."""
    assert with_edits(WORKLOAD, 0.5, 3) == with_edits(WORKLOAD, 0.5, 3)
    assert any(with_edits(WORKLOAD, 0.5, 3) != with_edits(WORKLOAD, 0.5, at) for at in range(9))


def test_no_share_changes_nothing() -> None:
    """Without edits the workload is as it was."""
    assert with_edits(WORKLOAD, 0.0, 1) == WORKLOAD


@pytest.mark.parametrize(
    ("content", "after"),
    [
        (" a b c d", " a b d c"),
        (" a a a a", " a a a a again"),
        ("one", "one again"),
        ("", " again"),
        ([{"type": "text", "text": "a b c d"}], [{"type": "text", "text": "a b d c"}]),
        ([], " again"),
    ],
)
def test_the_beginning_is_kept(content: Any, after: Any) -> None:
    """The words' second half is turned round, so that KV of the first can be used."""
    first = {"role": "tool", "tool_call_id": "x", "content": "first"}
    last = {"role": "tool", "tool_call_id": "y", "content": content}
    assert changed((first, last)) == (first, {**last, "content": after})
