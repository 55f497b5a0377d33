"""The messages of a turn: what the workload says, and what the engine has answered. Pure."""

from collections.abc import Iterator, Sequence

from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation, PlannedTurn


def history(conversation: Conversation, turn: int, answers: Sequence[str]) -> tuple[Message, ...]:
    """The messages of a turn: all before it, and its own.

    Edits of this turn and of those before change earlier turns' messages; answers stay
    where they were, as in a client that edits a message and goes on.

    Args:
        conversation: what the client says.
        turn: 1 for the first.
        answers: of the turns before, at least `turn - 1`.
    """
    turns = conversation.turns[:turn]
    said = [planned.messages for planned in turns]
    for planned in turns:
        if planned.edit is not None:
            at, messages = planned.edit
            said[at] = messages
    return tuple(_messages(conversation, turns, said, answers))


def _messages(
    conversation: Conversation,
    turns: Sequence[PlannedTurn],
    said: Sequence[tuple[Message, ...]],
    answers: Sequence[str],
) -> Iterator[Message]:
    yield from conversation.opening
    yield from said[0]
    for at, planned in enumerate(turns[1:], start=1):
        answer = answers[at - 1] if planned.said is None else planned.said
        calls = {"tool_calls": list(planned.tool_calls)} if planned.tool_calls else {}
        yield {"role": "assistant", "content": answer, **calls}
        yield from said[at]
