"""Whose handle a turn takes: histories, ids, branches, tenants, budgets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from runtime.contract.http import CONVERSATION_HEADER, SESSION_HEADER
from runtime.engine_api import PIN
from runtime.router.auth import Gate
from tests.router.fleet import (
    LONG_TEXT,
    MODEL,
    Fleet,
    Message,
    TurnReply,
    assert_used_once,
    params_of,
    running_fleet,
    until,
)

KEYS = {
    "keys": [
        {"key": "key-of-ann-1234567", "tenant": "ann"},
        {"key": "key-of-ann-7654321", "tenant": "ann"},
        {"key": "key-of-bob-1234567", "tenant": "bob"},
    ]
}


def user(text: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


async def say(
    fleet: Fleet, history: list[Message], text: str, *, key: str | None = None, **more: Any
) -> TurnReply:
    """One turn on a history of its own; the history grows by question and answer."""
    history.append(user(text))
    headers = more.pop("headers", None)
    body = {"model": MODEL, "messages": history, "max_tokens": 4, "temperature": 0} | more
    reply = await fleet.post(body, key=key, headers=headers)
    assert reply.status == 200, reply.raw
    history.append({"role": "assistant", "content": reply.text})
    return reply


async def test_histories_that_interleave_keep_their_own_handles(model: Path) -> None:
    """Without any id, each conversation finds what it left, whatever happens in between."""
    async with running_fleet(model) as fleet:
        talks: list[list[Message]] = [[] for _ in range(4)]
        for at, talk in enumerate(talks):
            assert (await say(fleet, talk, f"{at} {LONG_TEXT}")).path == "cold"
        for talk in reversed(talks):
            reply = await say(fleet, talk, "go on")
            assert reply.receipt is not None
            assert (reply.path, reply.receipt.reason) == ("warm", "pulled")
        assert_used_once(fleet)


async def test_branches_that_share_an_id_keep_their_own_handles(model: Path) -> None:
    """Two branches of one history, under one id: both go on warm, and stay so."""
    async with running_fleet(model) as fleet:
        trunk: list[Message] = []
        await say(fleet, trunk, LONG_TEXT, key="talk")
        one, other = list(trunk), list(trunk)
        await say(fleet, one, "go left", key="talk")
        await say(fleet, other, "go right", key="talk")
        paths = []
        for _ in range(3):
            paths.append((await say(fleet, one, "and on", key="talk")).path)
            paths.append((await say(fleet, other, "and on", key="talk")).path)
        assert paths.count("cold") <= 1
        assert paths[-4:] == ["warm"] * 4
        assert_used_once(fleet)


async def test_sub_agents_that_share_an_id_and_a_beginning(model: Path) -> None:
    """Parallel agents with one system prompt and one id never take each other's handles."""
    async with running_fleet(model) as fleet:
        system = {"role": "system", "content": LONG_TEXT}
        agents: list[list[Message]] = [[dict(system)] for _ in range(3)]
        for turn in range(3):
            replies = await asyncio.gather(
                *(say(fleet, talk, f"task {at}", key="job") for at, talk in enumerate(agents))
            )
            assert [reply.path for reply in replies] == ["warm" if turn else "cold"] * 3
        assert_used_once(fleet)


async def test_edited_history_finds_its_handle_by_the_id(model: Path) -> None:
    """With an id, what is left of an edited history is still returned; without, it is cold."""
    async with running_fleet(model) as fleet:
        for key, expected in (("talk", "warm"), (None, "cold")):
            talk: list[Message] = []
            await say(fleet, talk, f"{key} {LONG_TEXT}", key=key)
            await say(fleet, talk, "go on", key=key)
            edited = [*talk[:2], user("go elsewhere")]
            body = {"model": MODEL, "messages": edited, "max_tokens": 4}
            assert (await fleet.post(body, key=key)).path == expected


async def test_regenerated_answer_finds_no_handle_of_another_branch(model: Path) -> None:
    """The same question again, from the start, cannot tell whether the first goes on."""
    async with running_fleet(model) as fleet:
        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT, key="talk")
        assert (await say(fleet, [], LONG_TEXT, key="talk")).path == "cold"


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({CONVERSATION_HEADER: "x"}, {}),
        ({SESSION_HEADER: "x"}, {}),
        ({}, {"conversation_id": "x"}),
        ({}, {"session_id": "x"}),
        ({}, {"metadata": {"conversation_id": "x"}}),
    ],
)
async def test_every_id_narrows_the_search(
    model: Path, headers: dict[str, str], more: dict[str, Any]
) -> None:
    """The same history under another id, or none, takes no handle; the id's own turn does."""
    async with running_fleet(model) as fleet:
        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT, headers=headers, **more)
        assert (await say(fleet, list(talk), "go on")).path == "cold"
        assert (await say(fleet, list(talk), "go on", key="other")).path == "cold"
        assert (await say(fleet, talk, "go on", headers=headers, **more)).path == "warm"


async def test_cache_key_is_a_hint_only(model: Path) -> None:
    """prompt_cache_key neither narrows the search nor keeps a busy D; it prefers one when cold."""
    async with running_fleet(model, decodes=4) as fleet:
        for at in range(6):
            await say(fleet, [], f"{at} {LONG_TEXT}", prompt_cache_key="mine")
        assert sorted(len(node.requests) for node in fleet.decodes) == [0, 0, 0, 6]
        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT, prompt_cache_key="mine")
        assert (await say(fleet, talk, "go on", prompt_cache_key="other")).path == "warm"


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"chat_template_kwargs": {"thinking": True}},
        {"cache_salt": "s"},
        {"chat_template": "x"},
    ],
)
async def test_what_shapes_the_prompt_is_part_of_the_history(
    model: Path, change: dict[str, Any]
) -> None:
    """The same messages with other tools, template arguments or salt are another history."""
    async with running_fleet(model) as fleet:
        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT)
        assert (await say(fleet, list(talk), "go on", **change)).path == "cold"
        assert (await say(fleet, talk, "go on")).path == "warm"


async def test_tenants_never_meet(model: Path) -> None:
    """The same history and id with another tenant's key takes nothing; the tenant's second does."""
    async with running_fleet(model, gate=Gate(lambda: json.dumps(KEYS))) as fleet:

        def key_of(at: int) -> dict[str, str]:
            return {"Authorization": f"Bearer {KEYS['keys'][at]['key']}"}

        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT, key="talk", headers=key_of(0))
        assert (await say(fleet, list(talk), "go", key="talk", headers=key_of(2))).path == "cold"
        end = f"{fleet.url}/conversations/talk/end"
        async with fleet.session.post(end, headers=key_of(2)) as reply:
            assert (await reply.json())["released"] == 1  # bob's own
        assert (await say(fleet, talk, "go", key="talk", headers=key_of(1))).path == "warm"


async def test_clients_without_keys_are_told_apart_by_their_authorization(model: Path) -> None:
    """Where the router checks no keys, two bearers are two tenants all the same."""
    async with running_fleet(model) as fleet:
        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT, key="talk", headers={"Authorization": "Bearer a"})
        other = {"Authorization": "Bearer b"}
        assert (await say(fleet, list(talk), "go", key="talk", headers=other)).path == "cold"
        mine = {"Authorization": "Bearer a"}
        assert (await say(fleet, talk, "go", key="talk", headers=mine)).path == "warm"


async def test_concurrent_turns_of_one_history(model: Path) -> None:
    """The first taker is warm, the others are cold, and none fails."""
    async with running_fleet(model) as fleet:
        talk: list[Message] = []
        await say(fleet, talk, LONG_TEXT)
        replies = await asyncio.gather(*(say(fleet, list(talk), f"way {at}") for at in range(5)))
        assert sorted(reply.path or "" for reply in replies) == ["cold"] * 4 + ["warm"]
        assert_used_once(fleet)


async def test_pins_stay_within_the_share_of_the_cache(model: Path) -> None:
    """D's handles beyond its budget are given back, oldest first; the youngest stay warm."""
    engine = {"num_blocks": 64}
    async with running_fleet(model, engine=engine, pin_share=0.5) as fleet:
        talks: list[list[Message]] = [[] for _ in range(8)]
        for at, talk in enumerate(talks):
            await say(fleet, talk, f"{at} {LONG_TEXT}")
        kept = fleet.decodes[0].transfers
        await until(lambda: kept.kept_count == len(fleet.stored))
        tokens = sum(stored.pinned_tokens for stored in fleet.stored)
        assert 0 < tokens <= 64 * 32 * 0.5
        assert len(fleet.stored) < 8
        assert (await say(fleet, talks[-1], "go on")).path == "warm"
        assert (await say(fleet, talks[0], "go on")).path == "cold"


async def test_handle_larger_than_the_budget_is_not_kept(model: Path) -> None:
    """It would push out all others and not fit even then."""
    async with running_fleet(model, engine={"num_blocks": 32}, pin_share=0.1) as fleet:
        await say(fleet, [], LONG_TEXT)
        assert fleet.stored == []
        await until(lambda: fleet.decodes[0].transfers.kept_count == 0)


async def test_short_prompts_take_part(model: Path) -> None:
    """A prompt below one block is served by both legs and leaves a handle like any other."""
    async with running_fleet(model) as fleet:
        talk: list[Message] = []
        assert (await say(fleet, talk, "hi")).path == "cold"
        assert PIN not in params_of(fleet.decodes[0])
        reply = await say(fleet, talk, "ho")
        assert reply.receipt is not None
        assert (reply.path, reply.receipt.reason) == ("warm", "below_threshold")
        await until(lambda: fleet.decodes[0].transfers.kept_count == 1)


async def test_ranks_of_one_decode_node_are_not_restarts(model: Path) -> None:
    """Each data-parallel rank has an engine id; a warm turn asks for the rank that has its KV."""
    async with running_fleet(model, engine={"data_parallel_size": 3}) as fleet:
        talks: list[list[Message]] = [[] for _ in range(6)]
        for at, talk in enumerate(talks):
            await say(fleet, talk, f"{at} {LONG_TEXT}")
        assert len({stored.engine_id for stored in fleet.stored}) == 3
        for talk in talks:
            owner = next(iter(fleet.stored)).engine_id
            assert (await say(fleet, talk, "go on")).path == "warm"
            rank = fleet.decodes[0].requests[-1].headers["X-data-parallel-rank"]
            assert owner.endswith(f"_dp{rank}")
