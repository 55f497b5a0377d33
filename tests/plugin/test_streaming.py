"""The handle reaches streaming clients of vLLM 0.32, and those of messages on 0.33."""

import asyncio
import importlib.util
import json
import multiprocessing
import sys
from collections.abc import AsyncGenerator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("orjson") is None:
    # vLLM 0.33 reads request bodies with it; the environment of 0.32 has none.
    sys.modules["orjson"] = ModuleType("orjson")

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

from runtime.engine_api import KV_PARAMS
from runtime.vllm_plugin.streaming import register, splice, with_handle, with_handle_at_end

HANDLE = {"do_remote_decode": True, "remote_block_ids": [[1, 2]], "note": 'a "quoted" word'}


class Server:
    """Has a stream generator of the same shape as vLLM's."""

    def __init__(self) -> None:
        self.closed = False

    async def stream(
        self, request: Any, result_generator: Any, request_id: str, num_prompts: int = 1
    ) -> AsyncGenerator[str]:
        try:
            async for output in result_generator:
                reason = f'"{output.reason}"' if output.reason else "null"
                text = json.dumps(output.text)
                yield (
                    f'data: {{"id":"{request_id}","choices":[{{"delta":{{"content":{text}}},'
                    f'"finish_reason":{reason}}}]}}\n\n'
                )
            yield "data: [DONE]\n\n"
        finally:
            self.closed = True


async def results(*outputs: Any) -> AsyncGenerator[Any]:
    for output in outputs:
        yield output


def output(text: str, reason: str | None = None, handle: dict[str, Any] | None = None) -> Any:
    return SimpleNamespace(text=text, reason=reason, kv_transfer_params=handle)


def collect(server: Server, outputs: list[Any], **call: Any) -> list[str]:
    async def run() -> list[str]:
        stream = with_handle(Server.stream)(
            server,
            call.pop("request", SimpleNamespace(n=1)),
            result_generator=results(*outputs),
            request_id="r",
            **call,
        )
        return [event async for event in stream]

    return asyncio.run(run())


def test_finishing_event_carries_the_handle() -> None:
    """Only the event with a finish reason gets the handle, and stays valid JSON."""
    tricky = 'says "finish_reason":"stop" in its text'
    events = collect(Server(), [output(tricky), output("end", "stop", HANDLE)])
    bodies = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert "kv_transfer_params" not in bodies[0]
    assert bodies[0]["choices"][0]["delta"]["content"] == tricky
    assert bodies[1]["kv_transfer_params"] == HANDLE
    assert events[-1] == "data: [DONE]\n\n"


def test_stream_without_a_handle_passes_unchanged() -> None:
    """A stop string gives no handle; the stream is then what vLLM made."""
    events = collect(Server(), [output("a"), output("b", "stop")])
    assert not any("kv_transfer_params" in event for event in events)


def test_several_choices_get_none() -> None:
    """With n > 1, or several prompts, nobody could tell whose handle it is."""
    finished = [output("b", "stop", HANDLE)]
    for call in ({"request": SimpleNamespace(n=2)}, {"num_prompts": 2}):
        events = collect(Server(), finished, **call)
        assert not any("kv_transfer_params" in event for event in events)


def test_abandoned_stream_closes_the_engine_side() -> None:
    """A client that leaves closes vLLM's generator, so that the request is aborted."""
    server = Server()

    async def run() -> None:
        stream = with_handle(Server.stream)(
            server, SimpleNamespace(n=1), results(output("a"), output("b")), "r"
        )
        await anext(stream)
        await stream.aclose()

    asyncio.run(run())
    assert server.closed


def test_splice_keeps_the_event_framing() -> None:
    """One data line and one blank line, before and after."""
    assert (
        splice('data: {"a":1}\n\n', {"b": 2}) == 'data: {"a":1,"kv_transfer_params":{"b": 2}}\n\n'
    )


IS_NEXT = KV_PARAMS in ChatCompletionStreamResponse.model_fields
"""vLLM 0.33 hands chat chunks as objects to the converter, 0.32 as events."""


def chat_chunk(text: str, **more: Any) -> dict[str, Any]:
    """A chunk of a chat stream with one choice."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": more.pop("reason", None)}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **more}


def chat_stream(handle: dict[str, Any] | None, closed: list[bool]) -> AsyncGenerator[Any]:
    """What the converter of this vLLM is given for an answer of two words."""
    counts = {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": 2}
    chunks = [
        chat_chunk(""),
        chat_chunk('one "kv_transfer_params": {} '),
        chat_chunk("two", reason="length", **({KV_PARAMS: handle} if handle else {})),
        chat_chunk("", usage=counts) | {"choices": []},
    ]

    async def stream() -> AsyncGenerator[Any]:
        try:
            for chunk in chunks:
                if IS_NEXT:
                    yield ChatCompletionStreamResponse.model_validate(chunk)
                else:
                    yield f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"
            if not IS_NEXT:
                yield "data: [DONE]\n\n"
        finally:
            closed.append(True)

    return stream()


async def message_events(handle: dict[str, Any] | None, limit: int | None = None) -> list[str]:
    """Events of vLLM's own converter, wrapped; after `limit` of them the client leaves."""
    convert = with_handle_at_end(AnthropicServingMessages.message_stream_converter)
    server = AnthropicServingMessages.__new__(AnthropicServingMessages)
    closed: list[bool] = []
    stream = convert(server, chat_stream(handle, closed))
    events = []
    async for event in stream:
        events.append(event)
        if len(events) == limit:
            break
    await stream.aclose()
    assert closed == [True]
    return events


def data_of(event: str) -> tuple[str, dict[str, Any]]:
    """Name and data of an Anthropic event, which has two lines and a blank one."""
    name, data = event.removesuffix("\n\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_message_delta_carries_the_handle() -> None:
    """A streamed message has the handle in `message_delta`, and in no other event."""
    events = list(map(data_of, asyncio.run(message_events(HANDLE))))
    assert [name for name, data in events if KV_PARAMS in data] == ["message_delta"]
    (delta,) = [data for name, data in events if name == "message_delta"]
    assert delta[KV_PARAMS] == HANDLE
    assert delta["delta"]["stop_reason"] == "max_tokens"
    assert delta["usage"]["output_tokens"] == 2
    assert events[-1][0] == "message_stop"


def test_message_without_a_handle_passes_unchanged() -> None:
    """Without a handle the events are what vLLM makes, byte for byte."""

    async def plain() -> list[str]:
        server = AnthropicServingMessages.__new__(AnthropicServingMessages)
        stream = AnthropicServingMessages.message_stream_converter(server, chat_stream(None, []))
        return [event async for event in stream]

    assert asyncio.run(message_events(None)) == asyncio.run(plain())


def test_abandoned_message_closes_the_chat_stream() -> None:
    """A client that leaves closes the chat stream below, so that the request is aborted."""
    assert len(asyncio.run(message_events(HANDLE, limit=3))) == 3


def test_register_patches_what_drops_the_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are patched on both engines; chat and completions only on vLLM 0.32."""
    assert multiprocessing.current_process().name == "MainProcess"
    owners = (
        (AnthropicServingMessages, "message_stream_converter", True),
        (OpenAIServingChat, "chat_completion_stream_generator", not IS_NEXT),
        (OpenAIServingCompletion, "completion_stream_generator", not IS_NEXT),
    )
    before = [getattr(owner, method) for owner, method, _ in owners]
    for (owner, method, _), stock in zip(owners, before, strict=True):
        monkeypatch.setattr(owner, method, stock)  # put back after the test
    register()
    for (owner, method, is_patched), stock in zip(owners, before, strict=True):
        assert (getattr(owner, method) is not stock) is is_patched
