"""Six follow-up turns, each with the raw handle of the first; most do not wholly fit."""

import uuid
from dataclasses import dataclass

from tests.engine.play import Answer, Asked, Message, PairClient, Params, Prefilled
from tests.fuzz.script import Texts

FOLLOW_UPS = (
    "unedited",
    "edited_start",
    "edited_middle",
    "truncated",
    "regenerated",
    "other_conversation",
)
NOTHING_SHARED = ("edited_start", "other_conversation")


def opening(texts: Texts) -> list[Message]:
    """The first turn: a system message and a question, some 700 tokens."""
    return [
        {"role": "system", "content": texts.text(300)},
        {"role": "user", "content": texts.text(400)},
    ]


def following(kind: str, first: list[Message], answer: str, texts: Texts) -> list[Message]:
    """The second turn's messages.

    Args:
        kind: one of FOLLOW_UPS.
        first: the first turn's messages.
        answer: the first turn's answer.
        texts: for what is new.
    """
    system, user = (dict(message) for message in first)
    new = {"role": "user", "content": texts.text(60)}
    match kind:
        case "unedited":
            pass
        case "edited_start":
            system["content"] = texts.text(3) + system["content"]
        case "edited_middle":
            half = len(user["content"]) // 2
            user["content"] = user["content"][:half] + texts.text(2) + user["content"][half:]
        case "truncated":
            user["content"] = user["content"][: len(user["content"]) * 3 // 4]
            return [system, user]
        case "regenerated":
            return [system, user]
        case "other_conversation":
            system["content"], user["content"] = texts.text(300), texts.text(400)
        case _:
            raise ValueError(kind)
    return [system, user, {"role": "assistant", "content": answer}, new]


@dataclass(frozen=True)
class Played:
    """A follow-up turn with the raw handle, and what it is held against.

    Attributes:
        prefilled: P's leg with the handle.
        warm: its answer.
        cold: the answer of a run that owes nothing to anyone.
        again: the same prompt and salt once more without a handle: a cache that was
            poisoned shows here.
    """

    prefilled: Prefilled
    warm: Answer
    cold: Answer
    again: Answer


async def play(client: PairClient, texts: Texts, kind: str) -> Played:
    """Play one follow-up."""
    first = opening(texts)
    salt = uuid.uuid4().hex
    _, turn_1 = await client.turn(first, salt=salt)
    assert turn_1.handle is not None
    messages = following(kind, first, turn_1.text, texts)
    return await play_next(client, messages, salt, turn_1.handle)


async def play_next(client: PairClient, asked: Asked, salt: str, handle: Params) -> Played:
    """Play a turn with a handle, cold, and once more without it."""
    prefilled, warm = await client.turn(asked, salt=salt, handle=handle)
    cold = await client.cold(asked)
    _, again = await client.turn(asked, salt=salt)
    return Played(prefilled, warm, cold, again)
