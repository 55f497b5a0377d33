"""First and second turns of a test's own, and what must hold after them."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.engine.cases import Played, following, opening, play_next
from tests.engine.play import KV_USAGE, Answer, Message, PairClient, Params, difference
from tests.fuzz.script import Texts

_SETTLE_S = 10.0


async def first_turn(client: PairClient, texts: Texts) -> tuple[list[Message], str, Answer]:
    """A first turn; (its messages, its salt, its answer with a handle)."""
    messages, salt = opening(texts), uuid.uuid4().hex
    _, answer = await client.turn(messages, salt=salt)
    assert answer.handle is not None
    return messages, salt, answer


async def second_turn(
    client: PairClient, texts: Texts, change: Callable[[Params], Params] = lambda handle: handle
) -> Played:
    """An unedited second turn whose handle a test has changed."""
    first, salt, answer = await first_turn(client, texts)
    messages = following("unedited", first, answer.text, texts)
    assert answer.handle is not None
    return await play_next(client, messages, salt, change(dict(answer.handle)))


def assert_exact(played: Played) -> None:
    """Neither the turn nor the same prompt asked again differs from the cold run."""
    assert difference(played.warm, played.cold) is None
    assert difference(played.again, played.cold) is None


async def assert_gives_up(client: PairClient, url: str, before: float) -> None:
    """An engine holds no more blocks than before."""
    await settles(lambda: client.metric(url, KV_USAGE), before)


async def settles(read: Callable[[], Any], wanted: object) -> None:
    """Poll a value until it is what is wanted."""
    end = time.monotonic() + _SETTLE_S
    while (value := await read()) != wanted:
        assert time.monotonic() < end, f"{value} did not become {wanted}"
        await asyncio.sleep(0.05)


async def is_above(client: PairClient, free: float) -> bool:
    return await client.metric(client.decode_url, KV_USAGE) > free
