"""Turns that no engine could take are left out; warm-ups have texts of their own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.bench.workloads.fit import TEMPLATE_TOKENS, TOOLS_TOKENS, fitting, warmup_of


def words(text: str) -> int:
    return len(text.split())


def says(role: str, text: Any) -> dict[str, Any]:
    return {"role": role, "content": text}


def talk(sizes: list[int], answer_tokens: int = 10, **more: Any) -> Conversation:
    turns = tuple(
        PlannedTurn((says("user", " word" * size),), answer_tokens, think_s=9.0) for size in sizes
    )
    return Conversation(3, is_warmup=False, opening=(), turns=turns, **more)


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6), most=st.integers(20, 400))
def test_turns_end_where_they_no_longer_fit(sizes: list[int], most: int) -> None:
    """History, message and answer of every kept turn are within the limit; no fitting one goes."""
    made = fitting(talk(sizes), most, words)
    kept = len(made.turns) if made else 0
    totals = [
        sum(sizes[: at + 1]) + 10 * (at + 1) + 2 * TEMPLATE_TOKENS * (at + 1)
        for at in range(len(sizes))
    ]
    assert kept == sum(total <= most for total in totals)
    assert made is None or made.turns == talk(sizes).turns[:kept]


def test_a_short_conversation_is_not_tokenized() -> None:
    """Bytes are at least as many as tokens: most files need no count."""

    def never(_: str) -> int:
        raise AssertionError

    assert fitting(talk([5, 5]), 4000, never) == talk([5, 5])


def test_opening_tools_calls_and_recorded_answers_count() -> None:
    """All that stands in the prompt is counted."""
    plain = talk([10, 10])
    least = next(most for most in range(999) if fitting(plain, most, words) == plain)
    opened = Conversation(
        0,
        is_warmup=False,
        opening=(says("system", [{"type": "text", "text": "a b c"}]),),
        turns=(
            plain.turns[0],
            PlannedTurn(plain.turns[1].messages, 10, tool_calls=({"a": 1},), said=" w" * 15),
        ),
        tools=({"name": "t"},),
    )
    # 5 words more than the answer had, two words of JSON for calls and for tools.
    more = least + 3 + TEMPLATE_TOKENS + TOOLS_TOKENS + 5 + 2 + 2
    assert fitting(opened, more, words) == opened
    short = fitting(opened, more - 1, words)
    assert short is not None
    assert len(short.turns) == 1


@pytest.mark.parametrize("text", ["one two three", "one", "", "字字字", " w w w"])
def test_warmups_share_no_text(text: str) -> None:
    """Every text begins otherwise, also where words cannot be turned round."""
    turns = (
        PlannedTurn((says("user", text),), 4, think_s=5.0),
        PlannedTurn(
            (says("tool", [{"type": "text", "text": text}]),), 4, 5.0, ({"id": "x"},), text
        ),
        PlannedTurn((says("user", text),), 4),
    )
    shape = Conversation(7, False, (says("system", text),), turns, ({"name": "t"},), point=2000)
    warm = warmup_of([shape], 2)
    assert [(each.index, each.is_warmup, each.point) for each in warm] == [
        (0, True, 0),
        (1, True, 0),
    ]
    for each in warm:
        assert len(each.turns) == 2
        assert [turn.think_s for turn in each.turns] == [0.0, 0.0]
        assert [turn.tool_calls for turn in each.turns] == [turn.tool_calls for turn in turns[:2]]
        contents = [each.opening[0]["content"], each.turns[1].said]
        contents += [turn.messages[0]["content"] for turn in each.turns]
        for content in contents:
            assert content.startswith(f"Warm-up {each.index}:")
            assert len(content.split()) == 2 + len(text.split())


def test_warmups_have_the_shapes_of_conversations_with_returns() -> None:
    """A conversation of one turn warms no return; there may be more warm-ups than shapes."""
    single, double = talk([5]), talk([6, 7])
    sizes = [
        [len(turn.messages[0]["content"].split()) for turn in each.turns]
        for each in warmup_of([single, double], 2)
    ]
    assert sizes == [[8, 9], [8, 9]]
    assert len(warmup_of([single], 1)[0].turns) == 1
    assert warmup_of([double], 0) == []
