"""What is pinned for nobody is freed, at once, and nothing that was freed is read."""

import pytest

from runtime.engine_api import NIXL_AFTER_EXPIRY
from tests.engine.cases import following, opening, play_next
from tests.engine.play import KV_USAGE, PairClient, difference
from tests.engine.turns import assert_exact, assert_gives_up, first_turn, is_above, settles
from tests.fuzz.script import Texts

pytestmark = pytest.mark.engine


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
    await settles(lambda: is_above(client, free), True)
    assert await client.release(client.decode_url, answer.handle) == 202
    await assert_gives_up(client, client.decode_url, free)
    assert await client.release(client.decode_url, answer.handle) == 202
    expired = "vllm:nixl_num_kv_expired_reqs_total"
    assert await client.metric(client.decode_url, expired) == 0


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


async def test_nothing_was_read_after_it_was_freed(client: PairClient) -> None:
    """After all of the above no owner saw a read of blocks that it had freed."""
    for url in (client.prefill_url, client.decode_url):
        assert await client.metric(url, NIXL_AFTER_EXPIRY) == 0
