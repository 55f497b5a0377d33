"""The four client APIs through the router and mock engines, streamed and whole."""

import asyncio
from pathlib import Path

import pytest

from runtime.engine_api import KV_PARAMS, NIXL_AFTER_EXPIRY, PIN
from runtime.router.apis import APIS
from tests.router.clients import BODIES, USER, Item, chat, play
from tests.router.fleet import (
    LONG_TEXT,
    MODEL,
    assert_used_once,
    legs_of,
    params_of,
    running_fleet,
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", APIS)
async def test_a_conversation_returns_kv_by_its_history(
    model: Path, path: str, stream: bool
) -> None:
    """From the second turn on P pulls; no id is needed but for prompts without messages."""
    async with running_fleet(model) as fleet:
        history: list[Item] = [dict(USER)]
        paths = []
        for _ in range(3):
            reply = await play(fleet, path, history, stream=stream)
            paths.append(reply.path)
            assert b"kv_transfer_params" not in reply.raw
            assert b"turnback_" not in reply.raw
            assert reply.headers["Content-Type"].startswith(
                "text/event-stream" if stream else "application/json"
            )
        assert paths == ["cold", "warm", "warm"]
        assert reply.receipt is not None
        assert reply.receipt.reason == "pulled"
        assert {leg.path for leg in legs_of([*fleet.prefills, *fleet.decodes])} == {path}
        assert fleet.decodes[0].transfers.kept_count == 1
        assert fleet.prefills[0].transfers.kept_count == 0
        assert fleet.decodes[0].transfers.counters[NIXL_AFTER_EXPIRY] == 0
        assert_used_once(fleet)


DIRECT: list[tuple[str, Item]] = [
    ("/v1/chat/completions", {"n": 2}),
    ("/v1/chat/completions", {"prompt_logprobs": 1}),
    ("/v1/chat/completions", {"echo": True}),
    ("/v1/completions", {"echo": True}),
    ("/v1/completions", {"n": 2}),
    ("/v1/completions", {"prompt": ["one", "two"]}),
]


@pytest.mark.parametrize(("path", "more"), DIRECT)
async def test_what_has_no_defined_reuse_goes_to_decode_alone(
    model: Path, path: str, more: Item
) -> None:
    """It is served, carries no dict, takes no handle and pins nothing."""
    async with running_fleet(model) as fleet:
        body = BODIES[path]([dict(USER)]) | {"model": MODEL} | more
        reply = await fleet.post(body, path=path)
        assert (reply.status, reply.path) == (200, "direct")
        assert fleet.prefills[0].requests == []
        assert KV_PARAMS not in fleet.decodes[0].requests[0].body
        assert fleet.decodes[0].transfers.kept_count == 0


async def test_a_completion_without_id_pins_nothing(model: Path) -> None:
    """Nobody could find its handle again."""
    async with running_fleet(model) as fleet:
        body = {"prompt": LONG_TEXT, "max_tokens": 4, "model": MODEL}
        reply = await fleet.post(body, path="/v1/completions")
        assert (reply.status, reply.path) == (200, "cold")
        assert params_of(fleet.decodes[0])[PIN] is False


async def test_a_response_that_builds_on_another_goes_to_its_decode_node(model: Path) -> None:
    """previous_response_id: the D that stores it has the history, and no other D has."""
    async with running_fleet(model, decodes=3) as fleet:
        body = {"model": MODEL, "input": LONG_TEXT, "max_output_tokens": 4}
        first = await fleet.post(body, path="/v1/responses")
        (owner,) = [node for node in fleet.decodes if node.requests]
        for _ in range(4):
            await fleet.post(body, path="/v1/responses")
        seen = len(owner.requests)
        more = body | {"previous_response_id": first.body["id"], "stream": True}
        reply = await fleet.post(more, path="/v1/responses")
        assert reply.path == "direct"
        assert len(owner.requests) == seen + 1


async def test_unknown_fields_reach_both_legs_unchanged(model: Path) -> None:
    """What the router does not know is the engines' business."""
    async with running_fleet(model) as fleet:
        odd = {"seed": 7, "some_field": {"a": [1, None, 1.5, "\u00e9"]}, "vllm_xargs": {"k": 1}}
        await fleet.post({"model": MODEL, "messages": [dict(USER)], **odd})
        for leg in legs_of([*fleet.prefills, *fleet.decodes]):
            assert {name: leg.body[name] for name in odd} == odd


async def test_forced_tool_is_not_forced_on_prefill(model: Path) -> None:
    """vLLM's Messages API fails on the cut call; D is asked as the client asked."""
    async with running_fleet(model) as fleet:
        choice = {"type": "tool", "name": "look"}
        body = chat([dict(USER)]) | {"model": MODEL, "tool_choice": choice}
        await fleet.post(body, path="/v1/messages")
        assert fleet.prefills[0].requests[0].body["tool_choice"] == {"type": "none"}
        assert fleet.decodes[0].requests[0].body["tool_choice"] == choice


async def test_stream_is_passed_on_as_it_comes(model: Path) -> None:
    """The client has the first tokens while D still generates the last."""
    async with running_fleet(model, engine={"token_ms": 100.0}) as fleet:
        body = chat([dict(USER)]) | {"model": MODEL, "stream": True, "max_tokens": 8}
        async with fleet.session.post(f"{fleet.url}/v1/chat/completions", json=body) as reply:
            first = await reply.content.readany()
            assert b'"role":"assistant"' in first
            assert fleet.turns.admission.running == 1
            rest = await reply.content.read()
        assert rest.count(b"data: ") >= 7


@pytest.mark.parametrize("path", APIS)
async def test_request_without_a_limit_is_served(model: Path, path: str) -> None:
    """No max_tokens: P computes one token all the same, and D gets what the client sent."""
    async with running_fleet(model) as fleet:
        body = BODIES[path]([dict(USER)]) | {"model": MODEL}
        body = {name: value for name, value in body.items() if not name.startswith("max_")}
        await fleet.post(body, path=path)
        limits = {"max_tokens": 1, "max_output_tokens": 1}
        sent = fleet.prefills[0].requests[0].body
        assert any(sent.get(name) == limit for name, limit in limits.items())
        assert not limits.keys() & fleet.decodes[0].requests[0].body.keys()


async def test_usage_is_the_decode_nodes(model: Path) -> None:
    """Token counts of a warm turn are those of the whole prompt and answer, as D counts them."""
    async with running_fleet(model) as fleet:
        await fleet.turn()
        body = {"model": MODEL, "messages": [*fleet.history, dict(USER)], "max_tokens": 4}
        warm = await fleet.post(body, key="talk")
        plain = await fleet.post(body | {"n": 1}, headers={"X-Turnback-Reuse": "off"})
        assert (warm.path, plain.path) == ("warm", "cold")
        assert warm.body["usage"] == plain.body["usage"]
        assert warm.body["usage"]["completion_tokens"] == 4


async def test_many_turns_at_once_are_all_served(model: Path) -> None:
    """Two hundred clients at the same moment: no refusal and no mix-up."""
    async with running_fleet(model, prefills=2, decodes=2) as fleet:
        bodies = [
            {"model": MODEL, "messages": [{"role": "user", "content": f"{at} {LONG_TEXT}"}]}
            for at in range(200)
        ]
        replies = await asyncio.gather(*(fleet.post(body) for body in bodies))
        assert [reply.status for reply in replies] == [200] * 200
        again = await asyncio.gather(
            *(fleet.post(body, headers={"X-Turnback-Reuse": "off"}) for body in bodies)
        )
        assert [reply.text for reply in replies] == [reply.text for reply in again]


async def test_images_reach_both_legs_and_are_part_of_the_history(model: Path) -> None:
    """Parts go on as they are; another image under the same text is another history."""
    async with running_fleet(model) as fleet:

        def asked(image: str) -> list[Item]:
            url = {"url": f"data:image/png;base64,{image}"}
            parts = [{"type": "text", "text": LONG_TEXT}, {"type": "image_url", "image_url": url}]
            return [{"role": "user", "content": parts}]

        first = await fleet.post({"model": MODEL, "messages": asked("aaaa"), "max_tokens": 4})
        for leg in legs_of([*fleet.prefills, *fleet.decodes]):
            assert leg.body["messages"] == asked("aaaa")
        answer = {"role": "assistant", "content": first.text}
        paths = []
        for image in ("bbbb", "aaaa"):
            history = [*asked(image), answer, {"role": "user", "content": "and then"}]
            paths.append((await fleet.post({"model": MODEL, "messages": history})).path)
        assert paths == ["cold", "warm"]
