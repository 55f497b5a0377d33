"""Hands the handle to streaming clients that vLLM forgets.

vLLM 0.32 returns `kv_transfer_params` in whole replies only, so a streamed turn would
pin the decode node's blocks and give nothing back. vLLM 0.33 puts the handle into the
chunk that carries `finish_reason`; this does the same for 0.32. Both drop it when they
turn a chat stream into Anthropic's events: here it goes into `message_delta`.
"""

import inspect
import json
import multiprocessing
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any

from runtime.engine_api import KV_PARAMS

_FINISH = '"finish_reason":"'
"""Marks the finishing event. Quotes inside JSON strings are escaped, so only the key fits."""

_HANDLE = f'"{KV_PARAMS}":'
_MESSAGE_END = "event: message_delta\n"
"""Starts the one event of a message that says how it ended."""


def splice(event: str, handle: dict[str, Any]) -> str:
    """Put a handle into one server-sent event whose data is a JSON object.

    Args:
        event: `data: {...}`, or a name and that, and a blank line.
        handle: the kv_transfer_params to add.
    """
    body = event.rstrip()
    return f"{body[:-1]},{json.dumps(KV_PARAMS)}:{json.dumps(handle)}}}\n\n"


async def _tap(results: AsyncIterator[Any], seen: list[dict[str, Any]]) -> AsyncGenerator[Any]:
    """Pass engine results on and keep the handle when it comes by."""
    async for item in results:
        output = item[1] if isinstance(item, tuple) else item
        if output.kv_transfer_params:
            seen.append(output.kv_transfer_params)
        yield item


def with_handle(
    stream: Callable[..., AsyncGenerator[str]],
) -> Callable[..., AsyncGenerator[str]]:
    """Wrap one of vLLM's stream generators so that its finishing event carries the handle."""
    signature = inspect.signature(stream)

    @wraps(stream)
    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[str]:
        call = signature.bind(*args, **kwargs)
        seen: list[dict[str, Any]] = []
        # Several choices or prompts have one handle each, of an owner no client can tell.
        single = (call.arguments["request"].n or 1) == 1 and call.arguments.get(
            "num_prompts", 1
        ) == 1
        async with aclosing(_tap(call.arguments["result_generator"], seen)) as tapped:
            call.arguments["result_generator"] = tapped
            async with aclosing(stream(*call.args, **call.kwargs)) as events:
                async for event in events:
                    if seen and single and _FINISH in event:
                        yield splice(event, seen.pop())
                    else:
                        yield event

    return wrapped


def _handle_in(chunk: Any) -> dict[str, Any] | None:
    """The handle of a chat chunk: an event's text on vLLM 0.32, an object on 0.33."""
    if not isinstance(chunk, str):
        held: dict[str, Any] | None = getattr(chunk, KV_PARAMS, None)  # an error has none
        return held
    if _HANDLE not in chunk:
        return None
    found: dict[str, Any] | None = json.loads(chunk.removeprefix("data:")).get(KV_PARAMS)
    return found


async def _tap_chat(chunks: AsyncGenerator[Any], seen: list[dict[str, Any]]) -> AsyncGenerator[Any]:
    """Pass chat chunks on and keep the handle when it comes by."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if handle := _handle_in(chunk):
                seen.append(handle)
            yield chunk


def with_handle_at_end(
    convert: Callable[[Any, AsyncGenerator[Any]], AsyncGenerator[str]],
) -> Callable[[Any, AsyncGenerator[Any]], AsyncGenerator[str]]:
    """Wrap vLLM's chat-to-Anthropic converter so that `message_delta` carries the handle."""

    @wraps(convert)
    async def wrapped(self: Any, generator: AsyncGenerator[Any]) -> AsyncGenerator[str]:
        seen: list[dict[str, Any]] = []
        async with (
            aclosing(_tap_chat(generator, seen)) as tapped,
            aclosing(convert(self, tapped)) as events,
        ):
            async for event in events:
                if seen and event.startswith(_MESSAGE_END):
                    yield splice(event, seen.pop())
                else:
                    yield event

    return wrapped


def register() -> None:
    """vLLM's plugin entry point: patch the API server of an engine that needs it."""
    name = multiprocessing.current_process().name
    if name != "MainProcess" and not name.startswith("ApiServer"):
        return  # engine cores and workers serve no HTTP
    from vllm.entrypoints.anthropic.protocol import AnthropicStreamEvent
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse

    if KV_PARAMS not in AnthropicStreamEvent.model_fields:
        AnthropicServingMessages.message_stream_converter = with_handle_at_end(
            AnthropicServingMessages.message_stream_converter
        )
    if KV_PARAMS in ChatCompletionStreamResponse.model_fields:
        return
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    for owner, method in (
        (OpenAIServingChat, "chat_completion_stream_generator"),
        (OpenAIServingCompletion, "completion_stream_generator"),
    ):
        setattr(owner, method, with_handle(getattr(owner, method)))
