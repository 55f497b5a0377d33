"""The shared suite's checks of the endpoints beside chat, asked of each in turn."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, PIN, RECEIPT, RECORD, Receipt
from runtime.verification.record import Record
from tests.engine.suite_client import (
    TEXT,
    THRESHOLD_TOKENS,
    Client,
    Pair,
    Reply,
    assert_sendable,
    open_session,
    receipt_of,
)

Check = Callable[[Pair], Awaitable[None]]
Event = tuple[str, Reply]
"""Name and data of a server-sent event; chunks of completions have no name."""

ANSWER_TOKENS = 8
AND_THEN = " and then"


@dataclass(frozen=True)
class Endpoint:
    """How one endpoint is asked, and where its answer and its handle lie.

    Attributes:
        name: ends the names of its checks.
        path: where requests go.
        length: field that limits the answer.
        first: a first turn.
        following: (first turn, text of its answer) -> second turn.
        text: text of a whole reply.
        delta: text that an event adds.
        carrier: name of the one event that has the handle.
    """

    name: str
    path: str
    length: str
    first: Reply
    following: Callable[[Reply, str], Reply]
    text: Callable[[Reply], str]
    delta: Callable[[Event], str]
    carrier: str

    async def leg(
        self, client: Client, url: str, turn: Reply, params: Any, **more: Any
    ) -> tuple[Reply, list[Event]]:
        """A whole reply and no events, or no reply and the events of a stream."""
        sent = {name: value for name, value in params.items() if name != RECEIPT}
        body = client.extras() | turn | {self.length: ANSWER_TOKENS, KV_PARAMS: sent} | more
        raw = await client.raw(url, body, self.path)
        return ({}, _events(raw)) if more.get("stream") else (orjson.loads(raw), [])

    async def prefill(self, client: Client, turn: Reply, handle: Any = COLD_PREFILL) -> Reply:
        """A P leg: one token, not streamed."""
        reply, _ = await self.leg(client, client.prefill_url, turn, handle, **{self.length: 1})
        return reply


def handle_in(event: Event) -> Reply | None:
    """The kv_transfer_params of an event: at the top, or in its response."""
    data = event[1]
    found: Reply | None = data.get(KV_PARAMS) or (data.get("response") or {}).get(KV_PARAMS)
    return found


def _events(raw: bytes) -> list[Event]:
    events = []
    for frame in raw.strip().split(b"\n\n"):
        *names, data = frame.split(b"\n")
        name = names[0].removeprefix(b"event: ").decode() if names else ""
        if data != b"data: [DONE]":
            events.append((name, orjson.loads(data.removeprefix(b"data: "))))
    return events


def _turns(text: str, answer: str) -> list[dict[str, str]]:
    contents = (("user", text), ("assistant", answer), ("user", AND_THEN))
    return [{"role": role, "content": content} for role, content in contents]


COMPLETIONS = Endpoint(
    name="completions",
    path="/v1/completions",
    length="max_tokens",
    first={"prompt": TEXT, "ignore_eos": True},
    following=lambda first, answer: first | {"prompt": first["prompt"] + answer + AND_THEN},
    text=lambda reply: str(reply["choices"][0]["text"]),
    delta=lambda event: str(event[1]["choices"][0]["text"]) if event[1]["choices"] else "",
    carrier="",
)
RESPONSES = Endpoint(
    name="responses",
    path="/v1/responses",
    length="max_output_tokens",
    first={"input": TEXT, "instructions": TEXT, "ignore_eos": True, "store": False},
    following=lambda first, answer: first | {"input": _turns(first["input"], answer)},
    text=lambda reply: str(reply["output"][0]["content"][0]["text"]),
    delta=lambda event: str(event[1]["delta"]) if event[0] == "response.output_text.delta" else "",
    carrier="response.completed",
)
MESSAGES = Endpoint(
    name="messages",
    path="/v1/messages",
    length="max_tokens",
    first={"system": TEXT, "messages": [{"role": "user", "content": TEXT}]},
    following=lambda first, answer: first | {"messages": _turns(TEXT, answer)},
    text=lambda reply: str(reply["content"][0]["text"]),
    delta=lambda event: str(event[1]["delta"]["text"]) if event[0] == _TEXT_DELTA else "",
    carrier="message_delta",
)
_TEXT_DELTA = "content_block_delta"


async def check_both_legs(pair: Pair, endpoint: Endpoint) -> None:
    """One token on P gives a P dict, D reads it and gives a handle, and P pulls with that."""
    async with open_session() as session:
        client = Client(pair, session)
        prefilled = await endpoint.prefill(client, endpoint.first)
        p_dict = prefilled[KV_PARAMS]
        assert_sendable(p_dict)
        assert p_dict["do_remote_prefill"] is True
        assert Record.from_dict(p_dict[RECORD]) is not None
        assert receipt_of(prefilled).reason == "none_offered"
        answered, _ = await endpoint.leg(client, pair.decode_url, endpoint.first, p_dict)
        handle, receipt = answered[KV_PARAMS], receipt_of(answered)
        assert_sendable(handle)
        assert handle["do_remote_decode"] is True
        assert (receipt.reason, receipt.verified_tokens) == ("pulled", p_dict["remote_num_tokens"])
        await _assert_pulls(client, endpoint, endpoint.text(answered), handle)


async def check_stream(pair: Pair, endpoint: Endpoint) -> None:
    """One event has the handle, P pulls with it, and the text is the whole reply's."""
    async with open_session() as session:
        other = Client(pair, session)
        p_dict = (await endpoint.prefill(other, endpoint.first))[KV_PARAMS]
        whole, _ = await endpoint.leg(other, pair.decode_url, endpoint.first, p_dict)
        client = Client(pair, session)
        p_dict = (await endpoint.prefill(client, endpoint.first))[KV_PARAMS]
        _, events = await endpoint.leg(client, pair.decode_url, endpoint.first, p_dict, stream=True)
        (found,) = [event for event in events if handle_in(event)]
        assert found[0] == endpoint.carrier
        handle = handle_in(found)
        assert_sendable(handle)
        text = "".join(map(endpoint.delta, events))
        assert text == endpoint.text(whole)
        await _assert_pulls(client, endpoint, text, handle)


async def check_pin_false(pair: Pair, endpoint: Endpoint) -> None:
    """A D leg that asks not to pin returns a receipt and no handle, streamed or not."""
    async with open_session() as session:
        client = Client(pair, session)
        for is_streamed in (False, True):
            p_dict = (await endpoint.prefill(client, endpoint.first))[KV_PARAMS] | {PIN: False}
            reply, events = await endpoint.leg(
                client, pair.decode_url, endpoint.first, p_dict, stream=is_streamed
            )
            (params,) = filter(None, map(handle_in, [("", reply), *events]))
            assert set(params) == {RECEIPT}


async def _assert_pulls(client: Client, endpoint: Endpoint, answer: str, handle: Any) -> None:
    """P reads most of what D holds for the turn after this answer."""
    turn = endpoint.following(endpoint.first, answer)
    receipt = Receipt.from_dict((await endpoint.prefill(client, turn, handle))[KV_PARAMS][RECEIPT])
    assert receipt is not None
    assert receipt.reason == "pulled"
    assert receipt.offered_tokens == handle["remote_num_tokens"]
    # An answer may be tokenised in another way when it comes back as text.
    assert receipt.verified_tokens >= receipt.offered_tokens - ANSWER_TOKENS - THRESHOLD_TOKENS
    assert receipt.pulled_tokens >= THRESHOLD_TOKENS


def _of(check: Callable[[Pair, Endpoint], Awaitable[None]], endpoint: Endpoint) -> Check:
    async def run(pair: Pair) -> None:
        await check(pair, endpoint)

    run.__name__ = f"{check.__name__}_of_{endpoint.name}"
    return run


ENDPOINT_CHECKS: tuple[Check, ...] = tuple(
    _of(check, endpoint)
    for endpoint in (COMPLETIONS, RESPONSES, MESSAGES)
    for check in (check_both_legs, check_stream, check_pin_false)
)
