"""The hazards of docs/exactness.md on two real servers: no answer differs from a cold run's.

Each test plays its legs against the engines themselves and then asks the same prompt once
more without a handle, to find a cache that was poisoned.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.engine_api import EXTERNAL_HIT_TOKENS, NIXL_READS, RECORD, Receipt
from tests.engine.cases import FOLLOW_UPS, NOTHING_SHARED, following, opening, play, play_next
from tests.engine.play import KV_USAGE, LegRefused, PairClient, Params, difference
from tests.engine.turns import (
    assert_exact,
    assert_gives_up,
    first_turn,
    is_above,
    second_turn,
    settles,
)
from tests.engine.words import plain_words
from tests.fuzz.run import fuzz
from tests.fuzz.script import Texts

pytestmark = pytest.mark.engine

FUZZED_TURNS = 60


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
    free = 0.0  # but vLLM tells it a step later
    await assert_gives_up(client, client.decode_url, free)
    first, salt, answer = await first_turn(client, texts)
    assert answer.handle is not None
    await settles(lambda: is_above(client, free), True)
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
