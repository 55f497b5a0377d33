"""The handle reaches streaming clients of vLLM 0.32."""

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from runtime.vllm_plugin.streaming import splice, with_handle

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
