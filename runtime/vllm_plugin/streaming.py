"""Hands the handle to streaming clients on vLLM 0.32; does nothing on 0.33.

vLLM 0.32 returns `kv_transfer_params` in whole replies only, so a streamed turn would
pin the decode node's blocks and give nothing back. vLLM 0.33 puts the handle into the
chunk that carries `finish_reason`; this does the same for 0.32.
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


def splice(event: str, handle: dict[str, Any]) -> str:
    """Put a handle into one server-sent event whose data is a JSON object.

    Args:
        event: `data: {...}` and a blank line.
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


def register() -> None:
    """vLLM's plugin entry point: patch the API server of an engine that needs it."""
    name = multiprocessing.current_process().name
    if name != "MainProcess" and not name.startswith("ApiServer"):
        return  # engine cores and workers serve no HTTP
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse

    if KV_PARAMS in ChatCompletionStreamResponse.model_fields:
        return
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

    for owner, method in (
        (OpenAIServingChat, "chat_completion_stream_generator"),
        (OpenAIServingCompletion, "completion_stream_generator"),
    ):
        setattr(owner, method, with_handle(getattr(owner, method)))
