"""Clients of the four APIs: bodies, answers, turns."""

from collections.abc import Callable
from typing import Any

import orjson

from tests.router.fleet import LONG_TEXT, MODEL, Fleet, TurnReply

Item = dict[str, Any]
USER = {"role": "user", "content": LONG_TEXT}


def chat(history: list[Item]) -> Item:
    """A chat completion's body."""
    return {"messages": history, "max_tokens": 4}


def responses(history: list[Item]) -> Item:
    """A response's body."""
    return {"input": history, "max_output_tokens": 4}


def completions(history: list[Item]) -> Item:
    """A completion's body: the conversation is one text."""
    prompt = "".join(item["content"] for item in history)
    return {"prompt": prompt, "max_tokens": 4, "session_id": prompt[:40]}


BODIES: dict[str, Callable[[list[Item]], Item]] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/messages": chat,
}


def events(reply: TurnReply) -> list[Any]:
    """The JSON data of a stream."""
    lines = [line for line in reply.raw.split(b"\n") if line.startswith(b"data: {")]
    return [orjson.loads(line[6:]) for line in lines]


def text_of(path: str, reply: TurnReply, *, stream: bool) -> str:
    """The answer as a client of the API sees it."""
    if not stream:
        body = reply.body
        match path:
            case "/v1/chat/completions":
                return str(body["choices"][0]["message"]["content"])
            case "/v1/completions":
                return str(body["choices"][0]["text"])
            case "/v1/responses":
                return str(body["output"][-1]["content"][0]["text"])
            case _:
                return str(body["content"][0]["text"])
    parts = []
    for event in events(reply):
        match path:
            case "/v1/chat/completions":
                parts += [each["delta"].get("content") or "" for each in event["choices"]]
            case "/v1/completions":
                parts += [each["text"] for each in event["choices"]]
            case "/v1/responses":
                parts += [event["delta"]] if event["type"].endswith("text.delta") else []
            case _:
                is_delta = event["type"] == "content_block_delta"
                parts += [event["delta"]["text"]] if is_delta else []
    return "".join(parts)


async def play(
    fleet: Fleet, path: str, history: list[Item], *, stream: bool, model: str = MODEL
) -> TurnReply:
    """One turn; its answer is added to the history."""
    body = BODIES[path](history) | {"model": model, "temperature": 0, "stream": stream}
    reply = await fleet.post(body, path=path)
    assert reply.status == 200, reply.raw
    history += [{"role": "assistant", "content": text_of(path, reply, stream=stream)}]
    history += [{"role": "user", "content": "and then"}]
    return reply
