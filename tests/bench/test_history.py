"""The messages of a turn."""

from dataclasses import replace

import pytest

from runtime.bench.history import history
from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation, PlannedTurn

SYSTEM = {"role": "system", "content": "be short"}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, **more: object) -> Message:
    return {"role": "assistant", "content": text, **more}


def conversation(*turns: PlannedTurn) -> Conversation:
    return Conversation(0, False, (SYSTEM,), turns)


ONE, TWO, THREE = (PlannedTurn((user(text),), 4) for text in ("one", "two", "three"))


def test_a_turn_holds_all_before_it_and_its_own() -> None:
    """Opening, then messages and answers in turn, then the new message."""
    talk = conversation(ONE, TWO, THREE)
    assert history(talk, 1, []) == (SYSTEM, user("one"))
    last = (SYSTEM, user("one"), assistant("A"), user("two"), assistant("B"), user("three"))
    assert history(talk, 3, ["A", "B", "not yet said"]) == last


def test_no_opening_is_no_message() -> None:
    """A conversation may begin with its user."""
    assert history(Conversation(0, False, (), (ONE,)), 1, []) == (user("one"),)


def test_said_takes_the_answers_place() -> None:
    """A recorded answer is sent in place of the engine's, from its turn on."""
    talk = conversation(ONE, replace(TWO, said="recorded"), THREE)
    assert history(talk, 2, ["A"])[2] == assistant("recorded")
    assert history(talk, 3, ["A", "B"])[2:5:2] == (assistant("recorded"), assistant("B"))


def test_an_empty_recorded_answer_is_one() -> None:
    """A recorded tool call often has no text."""
    assert history(conversation(ONE, replace(TWO, said="")), 2, ["A"])[2] == assistant("")


def test_tool_calls_stand_in_the_answer_before_their_results() -> None:
    """The assistant's message has the calls, the turn's own messages their results."""
    result = {"role": "tool", "tool_call_id": "1", "content": "found"}
    talk = conversation(ONE, PlannedTurn((result,), 4, tool_calls=(CALL,)), TWO)
    for turn in (2, 3):
        assert history(talk, turn, ["A", "B"])[2:4] == (assistant("A", tool_calls=[CALL]), result)


@pytest.mark.parametrize(("turn", "told"), [(2, "one"), (3, "ONE"), (4, "ONE")])
def test_an_edit_holds_from_its_turn_on(turn: int, told: str) -> None:
    """Turns before it sent the message as it was; answers stay."""
    talk = conversation(ONE, TWO, replace(THREE, edit=(0, (user("ONE"),))), ONE)
    messages = history(talk, turn, ["A", "B", "C"])
    assert messages[1:3] == (user(told), assistant("A"))
    assert len(messages) == 2 * turn


def test_a_later_edit_of_one_message_wins() -> None:
    """Also one that makes it several, or none."""
    edits = [replace(TWO, edit=(0, (user("x"),))), replace(THREE, edit=(0, ()))]
    assert history(conversation(ONE, *edits), 3, ["A", "B"])[1] == assistant("A")
