"""The mock engine's endpoints beside chat: shapes, token prefixes, where handles lie."""

from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, RECEIPT, RECORD
from tests.local.mock_rig import MESSAGES, Mocks, running_mocks
from tests.router.fleet import LONG_TEXT, MODEL, url_of, write_tokenizer

Event = tuple[str, Any]
Body = dict[str, Any]

ASKED: dict[str, Body] = {
    "/v1/completions": {"prompt": LONG_TEXT, "max_tokens": 4},
    "/v1/responses": {"input": LONG_TEXT, "instructions": "be brief", "max_output_tokens": 4},
    "/v1/messages": {
        "messages": [{"role": "user", "content": LONG_TEXT}],
        "system": "be brief",
        "max_tokens": 4,
    },
}
PATHS = list(ASKED)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def text_of(path: str, reply: Any) -> str:
    """The answer of a whole reply."""
    if path == "/v1/completions":
        return str(reply["choices"][0]["text"])
    content = reply["content"] if path == "/v1/messages" else reply["output"][0]["content"]
    return str(content[0]["text"])


def delta_of(path: str, event: Event) -> str:
    """What an event adds to the answer."""
    name, data = event
    if path == "/v1/completions":
        return str(data["choices"][0]["text"]) if data != "[DONE]" and data["choices"] else ""
    if path == "/v1/responses":
        return str(data["delta"]) if name == "response.output_text.delta" else ""
    return str(data["delta"]["text"]) if name == "content_block_delta" else ""


def extended(path: str, body: Body, answer: str) -> Body:
    """The next turn of a conversation."""
    more = "tell me more"
    turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": more}]
    if path == "/v1/completions":
        return body | {"prompt": body["prompt"] + answer + more}
    if path == "/v1/responses":
        return body | {"input": [{"role": "user", "content": body["input"]}, *turns]}
    return body | {"messages": [*body["messages"], *turns]}


async def leg(mocks: Mocks, role: str, path: str, params: Any, **more: Any) -> Any:
    """Reply of one leg, which must be served."""
    engine = mocks.prefill if role == "prefill" else mocks.decode
    body = {"model": MODEL, KV_PARAMS: params, **ASKED[path], **more}
    status, reply = await mocks.ask(engine, path, body)
    assert status == 200, reply
    return reply


async def streamed(mocks: Mocks, path: str, params: Any, **more: Any) -> list[Event]:
    """Events of a streamed D leg, with their names; chunks without a name have none."""
    body = {"model": MODEL, KV_PARAMS: params, **ASKED.get(path, {}), "stream": True, **more}
    async with mocks.session.post(f"{url_of(mocks.decode)}{path}", json=body) as reply:
        assert reply.content_type == "text/event-stream"
        raw = await reply.read()
    events: list[Event] = []
    for frame in raw.removesuffix(b"\n\n").split(b"\n\n"):
        *names, data = frame.split(b"\n")
        name = names[0].removeprefix(b"event: ").decode() if names else ""
        data = data.removeprefix(b"data: ")
        events.append((name, "[DONE]" if data == b"[DONE]" else orjson.loads(data)))
    return events


@pytest.mark.parametrize("path", PATHS)
async def test_both_legs_and_the_next_turn(model: Path, path: str) -> None:
    """P gives a P dict, D reads it and gives a handle, and P pulls for the next turn."""
    async with running_mocks(model) as mocks:
        prefilled = await leg(mocks, "prefill", path, dict(COLD_PREFILL))
        assert prefilled[KV_PARAMS]["do_remote_prefill"] is True
        answered = await leg(mocks, "decode", path, prefilled[KV_PARAMS])
        handle = answered[KV_PARAMS]
        assert handle[RECEIPT]["reason"] == "pulled"
        assert handle[RECORD]["tokens"] == handle["remote_num_tokens"]
        body = extended(path, ASKED[path], text_of(path, answered))
        status, reply = await mocks.ask(
            mocks.prefill, path, {"model": MODEL, KV_PARAMS: handle, **body}
        )
        assert status == 200
        assert reply[KV_PARAMS][RECEIPT]["reason"] == "pulled"
        assert (
            reply[KV_PARAMS][RECEIPT]["verified_tokens"]
            >= prefilled[KV_PARAMS]["remote_num_tokens"] // 32 * 32
        )


@pytest.mark.parametrize("path", PATHS)
async def test_stream_says_what_the_whole_reply_says(model: Path, path: str) -> None:
    """The deltas of a stream joined are the text of the reply that is not streamed."""
    async with running_mocks(model) as mocks:
        whole = await leg(mocks, "decode", path, None)
        events = await streamed(mocks, path, None)
        assert "".join(delta_of(path, event) for event in events) == text_of(path, whole)
        assert text_of(path, whole)


@pytest.mark.parametrize(
    ("path", "carrier"),
    [("/v1/completions", ""), ("/v1/messages", "message_delta")],
)
async def test_one_event_carries_the_handle(model: Path, path: str, carrier: str) -> None:
    """The handle is at the top of the finishing chunk, or of `message_delta`."""
    async with running_mocks(model) as mocks:
        params = (await leg(mocks, "prefill", path, dict(COLD_PREFILL)))[KV_PARAMS]
        events = await streamed(mocks, path, params)
        (found,) = [event for event in events if event[1] != "[DONE]" and KV_PARAMS in event[1]]
        assert found[0] == carrier
        assert found[1][KV_PARAMS]["do_remote_decode"] is True
        if path == "/v1/completions":
            assert found[1]["choices"][0]["finish_reason"] == "length"


async def test_events_of_a_response(model: Path) -> None:
    """vLLM's order of events; only `response.completed` has the handle, in its response."""
    async with running_mocks(model) as mocks:
        path = "/v1/responses"
        params = (await leg(mocks, "prefill", path, dict(COLD_PREFILL)))[KV_PARAMS]
        events = await streamed(mocks, path, params)
        names = [name for name, _ in events]
        assert all(data["type"] == name for name, data in events)
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
        assert list(dict.fromkeys(names)) == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        held = [name for name, data in events if (data.get("response") or {}).get(KV_PARAMS)]
        assert held == ["response.completed"]
        final = events[-1][1]["response"]
        assert final["status"] == "incomplete"
        assert final["usage"]["output_tokens"] == 4


async def test_events_of_a_message(model: Path) -> None:
    """Anthropic's order of events, with the token counts where they belong."""
    async with running_mocks(model) as mocks:
        events = await streamed(mocks, "/v1/messages", None)
        assert list(dict.fromkeys(name for name, _ in events)) == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert events[0][1]["message"]["usage"]["output_tokens"] == 0
        assert events[-2][1]["usage"]["output_tokens"] == 4


async def test_completion_of_several_prompts_and_answers(model: Path) -> None:
    """Two prompts with n=2 give four choices in order; a stream of them has no handle."""
    async with running_mocks(model) as mocks:
        params = (await leg(mocks, "prefill", "/v1/completions", dict(COLD_PREFILL)))[KV_PARAMS]
        prompts = [LONG_TEXT, "tell me"]
        reply = await leg(mocks, "decode", "/v1/completions", None, prompt=prompts, n=2)
        assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
        texts = [choice["text"] for choice in reply["choices"]]
        assert texts[0] == texts[1] != texts[2] == texts[3]
        assert reply["usage"]["completion_tokens"] == 16
        events = await streamed(mocks, "/v1/completions", params, prompt=prompts)
        assert not [event for event in events if KV_PARAMS in event[1]]
        assert {data["choices"][0]["index"] for _, data in events[:-1]} == {0, 1}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_stream_of_several_answers_has_no_handle(model: Path, path: str) -> None:
    """With n=2 nobody could tell whose handle it is."""
    async with running_mocks(model) as mocks:
        more = {"messages": MESSAGES, "prompt": LONG_TEXT}
        for count, handles in ((1, 1), (2, 0)):
            params = await mocks.p_dict()
            events = await streamed(mocks, path, params, n=count, **more)
            data = [data for _, data in events if data != "[DONE]"]
            assert len([one for one in data if one.get(KV_PARAMS)]) == handles
            assert {one["choices"][0]["index"] for one in data} == set(range(count))


async def test_completion_of_token_ids_and_echo(model: Path) -> None:
    """Token ids mean what their text means, and echo puts the prompt first."""
    async with running_mocks(model) as mocks:
        ids = mocks.decode.tokens.encoded(LONG_TEXT)
        by_text = await leg(mocks, "decode", "/v1/completions", None, return_token_ids=True)
        by_ids = await leg(mocks, "decode", "/v1/completions", None, prompt=ids, echo=True)
        assert by_text["choices"][0]["prompt_token_ids"] == ids
        assert by_ids["choices"][0]["text"] == LONG_TEXT + by_text["choices"][0]["text"]
        events = await streamed(mocks, "/v1/completions", None, prompt=ids, echo=True)
        text = "".join(delta_of("/v1/completions", event) for event in events)
        assert text == by_ids["choices"][0]["text"]


async def test_items_of_a_response_are_part_of_the_prompt(model: Path) -> None:
    """Messages, function calls and their outputs all change the prompt."""
    asked = {"role": "user", "content": [{"type": "input_text", "text": LONG_TEXT}]}
    call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}
    output = {"type": "function_call_output", "call_id": "c", "output": "a whale"}
    async with running_mocks(model) as mocks:
        counts = []
        for items in ([asked], [asked, call], [asked, call, output]):
            reply = await leg(mocks, "decode", "/v1/responses", None, input=items)
            counts.append(reply["usage"]["input_tokens"])
        assert counts == sorted(set(counts))


async def test_blocks_of_a_message_are_part_of_the_prompt(model: Path) -> None:
    """Text blocks say what a string says; tool use and its result change the prompt."""
    blocks = [{"type": "text", "text": LONG_TEXT}]
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "a whale"}
    turns: list[Body] = [{"role": "user", "content": blocks}]
    async with running_mocks(model) as mocks:
        plain = await leg(mocks, "decode", "/v1/messages", None)
        counts = [(await leg(mocks, "decode", "/v1/messages", None, messages=turns))["usage"]]
        assert counts[0] == plain["usage"]
        for turn in (
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ):
            turns.append(turn)
            reply = await leg(mocks, "decode", "/v1/messages", None, messages=turns)
            counts.append(reply["usage"])
        sizes = [usage["input_tokens"] for usage in counts]
        assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "min_tokens": 9}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "stream_options": {"a": 1}}, 400),
        ("/v1/completions", {"prompt": ""}, 400),
        ("/v1/completions", {"prompt": [1, "two"]}, 400),
        ("/v1/completions", {"min_tokens": 9}, 400),
        ("/v1/completions", {"stream_options": {"include_usage": True}}, 400),
        ("/v1/responses", {"input": None}, 400),
        ("/v1/responses", {"max_output_tokens": 0}, 400),
        ("/v1/responses", {"background": True}, 400),
        ("/v1/responses", {"previous_response_id": "resp_x"}, 404),
        ("/v1/messages", {"max_tokens": None}, 400),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400),
        ("/v1/messages", {"model": "other"}, 404),
    ],
)
async def test_what_vllm_refuses(model: Path, path: str, change: Body, status: int) -> None:
    """Fields that would make vLLM refuse a leg are refused here too, and nothing is held."""
    async with running_mocks(model) as mocks:
        body = {"model": MODEL, "max_tokens": 4, **ASKED.get(path, {}), **change}
        assert (await mocks.ask(mocks.decode, path, body))[0] == status
        assert (await mocks.books(mocks.decode))["free_blocks"] == 100_000


async def test_one_token_leg_of_a_thinking_message_is_served(model: Path) -> None:
    """vLLM lets a P leg ask for one token whatever its thinking budget is."""
    async with running_mocks(model) as mocks:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        more: Body = {"thinking": thinking, "max_tokens": 1}
        reply = await leg(mocks, "prefill", "/v1/messages", dict(COLD_PREFILL), **more)
        assert reply["usage"]["output_tokens"] == 1


async def test_body_that_is_no_json_is_a_400(model: Path) -> None:
    """A broken body is refused in vLLM's shape."""
    async with (
        running_mocks(model) as mocks,
        mocks.session.post(f"{url_of(mocks.decode)}/v1/completions", data=b"{") as reply,
    ):
        assert reply.status == 400
        assert (await reply.json())["error"]["type"] == "BadRequestError"


async def test_version_and_capacity(model: Path) -> None:
    """/version and the cache's size are told as vLLM tells them."""
    async with running_mocks(model, num_blocks=200, version="0.33.1") as mocks:
        url = url_of(mocks.decode)
        async with mocks.session.get(f"{url}/version") as reply:
            assert await reply.json() == {"version": "0.33.1"}
        await mocks.handle()
        kept = mocks.decode.transfers.kept_blocks
        page = await metrics(mocks.session, url)
        assert 'block_size="32"' in page
        assert 'num_gpu_blocks="200"} 1.0' in page
        (used,) = [line for line in page.splitlines() if line.startswith("vllm:kv_cache_usage")]
        assert float(used.split()[-1]) == pytest.approx(kept / 200)
        assert kept > 0


async def metrics(session: aiohttp.ClientSession, url: str) -> str:
    """An engine's metrics page."""
    async with session.get(f"{url}/metrics") as reply:
        return await reply.text()
