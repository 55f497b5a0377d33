"""The hazards of docs/exactness.md on two real servers: no answer differs from a cold run's.

Each test plays its legs against the engines themselves and then asks the same prompt once
more without a handle, to find a cache that was poisoned.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from runtime.engine_api import (
    EXTERNAL_HIT_TOKENS,
    NIXL_AFTER_EXPIRY,
    NIXL_READS,
    RECORD,
    Receipt,
)
from tests.engine.cases import (
    FOLLOW_UPS,
    NOTHING_SHARED,
    Played,
    following,
    opening,
    play,
    play_next,
)
from tests.engine.conftest import Up
from tests.engine.play import (
    KV_USAGE,
    Answer,
    LegRefused,
    Message,
    PairClient,
    Params,
    difference,
)
from tests.engine.words import plain_words
from tests.fuzz.run import fuzz
from tests.fuzz.script import Texts

pytestmark = pytest.mark.engine

FUZZED_TURNS = 60
_SETTLE_S = 10.0


@pytest.fixture
async def client(up: Up) -> AsyncIterator[PairClient]:
    """Plays turns against the engines; what they pin for a test is given back after it."""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        one = PairClient(session, up.prefill_url, up.decode_url, "tiny")
        yield one
        await one.release_all()


@pytest.fixture
def texts(model: Path, request: pytest.FixtureRequest) -> Texts:
    """Texts of a test's own."""
    return Texts(plain_words(model), seed=sum(request.node.name.encode()))


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


async def test_answer_depends_on_the_whole_history(client: PairClient, texts: Texts) -> None:
    """One other word at the start of a long prompt changes the answer; else no test has power."""
    first, second, rest = texts.text(1), texts.text(1), texts.text(500)
    assert first != second
    one = await client.cold([{"role": "user", "content": first + rest}])
    other = await client.cold([{"role": "user", "content": second + rest}])
    assert one.token_ids != other.token_ids


async def test_fuzzed_histories(client: PairClient, model: Path) -> None:
    """Edited histories in a short run of `make fuzz`: no difference, no missed reuse."""
    tally = await fuzz(client, plain_words(model), seed=3, turns=FUZZED_TURNS)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.turns == FUZZED_TURNS
    assert tally.ties <= 0.01 * tally.compared
    assert tally.reused == tally.reusable >= 0.6 * tally.turns


@pytest.mark.parametrize("kind", FOLLOW_UPS)
async def test_badly_fitting_handle_gives_the_cold_answer(
    kind: str, client: PairClient, texts: Texts
) -> None:
    """Hazards 1, 2, 4 and 5: ids and logprobs are a cold run's; only equal KV is read."""
    played = await play(client, texts, kind)
    assert_exact(played)
    receipt = played.prefilled.receipt
    if kind in NOTHING_SHARED:
        assert (receipt.pulled_tokens, receipt.reason) == (0, "no_match")
    else:
        assert receipt.reason == "pulled"
        assert 0 < receipt.pulled_tokens <= receipt.offered_tokens


async def test_second_use_of_a_handle(client: PairClient, texts: Texts) -> None:
    """Hazard 6: P refuses it, tells nobody, and answers from the prompt."""
    first, salt, answer = await first_turn(client, texts)
    messages = following("unedited", first, answer.text, texts)
    assert answer.handle is not None
    assert_exact(await play_next(client, messages, salt, answer.handle))
    again = await play_next(client, messages, salt, answer.handle)
    assert again.prefilled.receipt.reason == "spent"
    assert_exact(again)


async def test_expired_handle_is_an_error_and_nothing_more(
    client: PairClient, texts: Texts
) -> None:
    """Hazard 7: P declines, the turn is asked again cold, and P keeps no block of it."""
    first, salt, answer = await first_turn(client, texts)
    messages = following("unedited", first, answer.text, texts)
    assert answer.handle is not None
    held = await client.metric(client.prefill_url, KV_USAGE)
    expired = answer.handle | {"remote_blocks_expiry_time": 1.0}
    with pytest.raises(LegRefused) as refused:
        await client.prefill(messages, salt=salt, handle=expired)
    assert refused.value.status == 500
    await assert_gives_up(client, client.prefill_url, held)
    _, retried = await client.turn(messages, salt=salt)
    assert difference(retried, await client.cold(messages)) is None


async def test_equal_tokens_under_another_salt(client: PairClient, texts: Texts) -> None:
    """Hazard 8: the salt parts tenants; one's KV is not read for the other's equal prompt."""
    first, _, answer = await first_turn(client, texts)
    messages = following("unedited", first, answer.text, texts)
    assert answer.handle is not None
    played = await play_next(client, messages, uuid.uuid4().hex, answer.handle)
    assert played.prefilled.receipt.reason == "no_match"
    assert_exact(played)


KILLERS: dict[str, Callable[[Params], Params]] = {
    "ids_cut_alone": lambda p: p | {"remote_block_ids": [p["remote_block_ids"][0][:3]]},
    "count_too_large": lambda p: p | {"remote_num_tokens": 10_000},
    "count_text": lambda p: p | {"remote_num_tokens": str(p["remote_num_tokens"])},
    "count_float": lambda p: p | {"remote_num_tokens": float(p["remote_num_tokens"])},
    "ids_words": lambda p: p | {"remote_block_ids": [["one"] * len(p["remote_block_ids"][0])]},
    "ids_flat": lambda p: p | {"remote_block_ids": p["remote_block_ids"][0]},
    "expiry_text": lambda p: p | {"remote_blocks_expiry_time": "soon"},
    "no_ids": lambda p: {name: p[name] for name in p if name != "remote_block_ids"},
    "million_ids": lambda p: p | {"remote_block_ids": [[1] * 1_000_000]},
    "huge_id": lambda p: p | {"remote_block_ids": [[2**40] * len(p["remote_block_ids"][0])]},
    "pipeline": lambda p: p | {"pp_size": 2},
    "ranks": lambda p: p | {"tp_size": 10**6},
    "engine_id_list": lambda p: p | {"remote_engine_id": ["x"]},
    "internal_mark": lambda p: p | {"_remote_blocks_processed": True, "remote_num_tokens": 1},
}
"""Shapes that end a stock engine's process, or are read as something else by it."""


async def test_malformed_dicts_are_refused_on_both_legs(client: PairClient, texts: Texts) -> None:
    """Hazard 10: the prompt is computed, the reason is told, and the engine lives."""
    first = await first_turn(client, texts)
    messages = first[0]
    cold = await client.cold(messages)
    for name, spoil in KILLERS.items():
        salt = uuid.uuid4().hex
        _, answer = await client.turn(messages, salt=salt)
        assert answer.handle is not None
        warm = await client.prefill(messages, salt=salt, handle=spoil(dict(answer.handle)))
        assert warm.receipt.reason == "malformed", name
        spoilt = await client.decode(messages, salt=salt, params=spoil(dict(warm.params)))
        assert spoilt.receipt is not None
        assert spoilt.receipt.reason == "malformed", name
        assert difference(spoilt, cold) is None, name
        _, again = await client.turn(messages, salt=salt)
        assert difference(again, cold) is None, name
        await client.release_all()


async def test_fields_that_nobody_looks_at_do_no_harm(client: PairClient, texts: Texts) -> None:
    """Deep nesting ends a worker, an odd release mark the scheduler, if they get so far."""
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    messages, salt, answer = await first_turn(client, texts)
    assert answer.handle is not None
    cold = await client.cold(messages)
    prefilled = await client.prefill(
        messages, salt=salt, handle={"do_remote_decode": True, "x": deep}
    )
    played = await client.decode(messages, salt=salt, params=prefilled.params | {"x": deep})
    assert difference(played, cold) is None
    assert played.receipt is not None
    assert played.receipt.reason == "pulled"
    owner = answer.handle["remote_engine_id"]
    odd_ids: list[Any] = [[], {}, None, 7]
    for odd in odd_ids:
        mark = {"turnback_release": True, "remote_engine_id": owner, "remote_request_id": odd}
        answered = await client.decode(messages, salt=salt, params=mark)
        assert difference(answered, cold) is None


LOST: dict[str, Params] = {
    "restarted": {"remote_engine_id": "00000000-0000-0000-0000-000000000000"},
    "dead_host": {"remote_engine_id": "11111111-1111-1111-1111-111111111111", "remote_port": 9},
}


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("change", [*LOST, "ids_out_of_range"])
async def test_owner_that_cannot_be_read_fails_the_leg_alone(
    leg: str, change: str, client: PairClient, texts: Texts
) -> None:
    """Hazards 9 and 10: HTTP 500 for this request; the engine lives and answers the next."""
    first, salt, answer = await first_turn(client, texts)
    messages = following("unedited", first, answer.text, texts)
    assert answer.handle is not None
    fresh = await client.prefill(messages, salt=salt)
    offered = dict(answer.handle if leg == "prefill" else fresh.params)
    blocks = len(offered["remote_block_ids"][0])
    offered |= LOST.get(change, {"remote_block_ids": [[2**31 - 1] * blocks]})
    play_leg = (
        client.prefill(messages, salt=salt, handle=offered)
        if leg == "prefill"
        else client.decode(messages, salt=salt, params=offered)
    )
    with pytest.raises(LegRefused) as refused:
        await play_leg
    assert refused.value.status == 500
    _, next_answer = await client.turn(messages, salt=salt)
    assert difference(next_answer, await client.cold(messages)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({RECORD: None}, "no_record"),
        ({RECORD: {"version": 2}}, "bad_record"),
        ({"seed_fingerprint": "0" * 16}, "other_hash"),
    ],
)
async def test_stock_or_other_peer_is_not_read_and_frees(
    change: dict[str, Any], reason: str, client: PairClient, texts: Texts
) -> None:
    """No comparable record: no pull, an exact answer, and D's blocks are free at once."""

    def spoil(handle: Params) -> Params:
        is_record = RECORD in change
        return handle | (change if is_record else {RECORD: handle[RECORD] | change})

    played = await second_turn(client, texts, spoil)
    assert (played.prefilled.receipt.reason, played.prefilled.receipt.pulled_tokens) == (reason, 0)
    assert_exact(played)
    await client.release_all()
    free = await client.metric(client.decode_url, KV_USAGE)
    first, salt, answer = await first_turn(client, texts)
    assert answer.handle is not None
    await settles(lambda: _is_above(client, free), True)
    await client.prefill(first, salt=salt, handle=spoil(dict(answer.handle)))
    await assert_gives_up(client, client.decode_url, free)


async def test_decode_that_renders_another_prompt(client: PairClient, texts: Texts) -> None:
    """Hazard 21: a clock in the template or a tool dropped on D never shifts KV."""
    messages = opening(texts)
    clock = [{"role": "system", "content": "it is noon"}, *messages]
    tool: Any = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    later = [*messages[:1], {"role": "user", "content": messages[1]["content"][:-200]}]
    for name, on_d, tools, reason in (
        ("clock", clock, None, "no_match"),
        ("tool dropped", messages, [tool], "no_match"),
        ("shorter", later, None, "pulled"),
    ):
        salt = uuid.uuid4().hex
        more: dict[str, Any] = {"tools": tools, "tool_choice": "none"} if tools else {}
        prefilled = await client.prefill(messages, salt=salt, **more)
        answer = await client.decode(on_d, salt=salt, params=prefilled.params)
        assert answer.receipt is not None
        assert answer.receipt.reason == reason, name
        cold = await client.cold(on_d)
        assert difference(answer, cold) is None, name
        _, again = await client.turn(on_d, salt=salt)
        assert difference(again, cold) is None, name


async def test_prompt_logprobs_with_a_handle(client: PairClient, texts: Texts) -> None:
    """Hazard 22: vLLM computes the whole prompt; the receipt says so, and D is told."""
    free = await client.metric(client.decode_url, KV_USAGE)
    first, salt, answer = await first_turn(client, texts)
    assert answer.handle is not None
    messages = following("unedited", first, answer.text, texts)
    reads = await client.metric(client.prefill_url, NIXL_READS)
    prefilled = await client.prefill(messages, salt=salt, handle=answer.handle, prompt_logprobs=1)
    assert (prefilled.receipt.reason, prefilled.receipt.pulled_tokens) == ("recompute_asked", 0)
    assert await client.metric(client.prefill_url, NIXL_READS) == reads
    await assert_gives_up(client, client.decode_url, free)
    warm = await client.decode(messages, salt=salt, params=prefilled.params)
    cold = await client.cold(messages)
    assert difference(warm, cold) is None
    _, again = await client.turn(messages, salt=salt)
    assert difference(again, cold) is None


async def test_several_answers_to_one_prompt(client: PairClient, texts: Texts) -> None:
    """Hazard 16: of n children one reads the dict, the others compute; none reads freed blocks."""
    first, salt, answer = await first_turn(client, texts)
    assert answer.handle is not None
    messages = following("unedited", first, answer.text, texts)
    best = {"n": 3, "temperature": 1.0, "top_k": 1}  # vLLM refuses n > 1 at temperature 0
    prefilled = await client.prefill(messages, salt=salt, handle=answer.handle, **best)
    body = {"model": "tiny", "messages": messages, "cache_salt": salt, **best}
    body |= {"ignore_eos": True, "max_tokens": 8, "return_token_ids": True}
    reply = await client.post(
        client.decode_url, body | {"kv_transfer_params": prefilled.params | {"turnback_pin": False}}
    )
    cold = await client.cold(messages, max_tokens=8)
    assert [choice["token_ids"] for choice in reply["choices"]] == [cold.token_ids] * 3
    _, again = await client.turn(messages, salt=salt, max_tokens=8)
    assert difference(again, cold) is None


async def test_stop_string_leaves_nothing(client: PairClient, texts: Texts) -> None:
    """Hazard 17: D gives no handle then, and keeps no block."""
    free = await client.metric(client.decode_url, KV_USAGE)
    messages = opening(texts)
    cold = await client.cold(messages, max_tokens=8)
    prefilled = await client.prefill(messages, salt="stop-string")
    body = {"model": "tiny", "messages": messages, "temperature": 0, "ignore_eos": True}
    body |= {"stop": [cold.text.split()[0]], "max_tokens": 8, "cache_salt": "stop-string"}
    reply = await client.post(client.decode_url, body | {"kv_transfer_params": prefilled.params})
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert not reply.get("kv_transfer_params")
    await assert_gives_up(client, client.decode_url, free)
    _, again = await client.turn(messages, salt="stop-string", max_tokens=8)
    assert difference(again, cold) is None


async def test_flags_that_name_no_role_do_not_leak(client: PairClient, texts: Texts) -> None:
    """Hazard 14: stock D pins the blocks of such a request until it is restarted."""
    await client.release_all()
    before = await client.metric(client.decode_url, KV_USAGE)
    for params in (
        {"do_remote_prefill": False, "do_remote_decode": False},
        {"do_remote_prefill": True, "do_remote_decode": True},
        {"turnback_pin": True},
    ):
        answer = await client.decode(opening(texts), salt="flags", params=params, max_tokens=2)
        assert answer.handle is None
    await assert_gives_up(client, client.decode_url, before)


async def test_release_frees_at_once_and_can_be_repeated(client: PairClient, texts: Texts) -> None:
    """Hazard 15: a handle that nobody will use costs D nothing; nor does it cost a step."""
    await client.release_all()
    free = await client.metric(client.decode_url, KV_USAGE)
    _, _, answer = await first_turn(client, texts)
    assert answer.handle is not None
    await settles(lambda: _is_above(client, free), True)
    assert await client.release(client.decode_url, answer.handle) == 202
    await assert_gives_up(client, client.decode_url, free)
    assert await client.release(client.decode_url, answer.handle) == 202
    expired = "vllm:nixl_num_kv_expired_reqs_total"
    assert await client.metric(client.decode_url, expired) == 0


async def _is_above(client: PairClient, free: float) -> bool:
    return await client.metric(client.decode_url, KV_USAGE) > free


async def test_release_of_a_handle_that_was_read(client: PairClient, texts: Texts) -> None:
    """It is harmless: the blocks may be another request's by then, and stay its own."""
    first, salt, answer = await first_turn(client, texts)
    assert answer.handle is not None
    messages = following("unedited", first, answer.text, texts)
    played = await play_next(client, messages, salt, answer.handle)
    assert await client.release(client.decode_url, answer.handle) == 202
    assert_exact(played)
    assert played.warm.handle is not None
    later = [*messages, {"role": "assistant", "content": played.warm.text}, messages[1]]
    assert_exact(await play_next(client, later, salt, played.warm.handle))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"kv_transfer_params": {"a": 1}}'])
async def test_release_of_anything_else_is_refused(body: bytes, client: PairClient) -> None:
    """A body that is no handle is a 400 that says what is wrong."""
    async with client.session.post(
        f"{client.decode_url}/v1/turnback/release",
        data=body,
        headers={"Content-Type": "application/json"},
    ) as reply:
        told = (await reply.json())["error"]["message"]
        assert reply.status == 400
    for word in ("got:", "allowed:", "fix:"):
        assert word in told


async def test_receipts_agree_with_the_engines_own_counter(
    client: PairClient, texts: Texts
) -> None:
    """What the receipt says was pulled is what vLLM counted as loaded from outside."""
    before = await client.metric(client.prefill_url, EXTERNAL_HIT_TOKENS)
    played = await second_turn(client, texts)
    receipt: Receipt = played.prefilled.receipt
    assert receipt.pulled_tokens > 700

    async def counted() -> float:
        return await client.metric(client.prefill_url, EXTERNAL_HIT_TOKENS) - before

    await settles(counted, receipt.pulled_tokens)


async def test_nothing_was_read_after_it_was_freed(client: PairClient) -> None:
    """After all of the above no owner saw a read of blocks that it had freed."""
    for url in (client.prefill_url, client.decode_url):
        assert await client.metric(url, NIXL_AFTER_EXPIRY) == 0
