"""Who holds which blocks of a mock engine: pool, lease, release, aborts, ranks, restarts."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from runtime.engine_api import COLD_PREFILL, KV_PARAMS, NIXL_AFTER_EXPIRY, RECEIPT, RELEASE_PATH
from runtime.local.mock_engine import MockEngine
from runtime.local.mock_pool import BlockPool
from runtime.local.mock_tokens import HashedTokens, MockTokens, block_hashes
from runtime.local.mock_transfer import Transfers
from tests.local.mock_rig import MESSAGES, Mocks, running_mocks
from tests.router.fleet import MODEL, until, url_of, write_tokenizer

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


def is_idle(engine: MockEngine) -> bool:
    """Whether nothing is kept and no request holds blocks."""
    rank = engine.transfers
    return rank.kept_count == 0 and rank.pool.free == rank.pool.capacity


async def start_leg(
    mocks: Mocks, engine: MockEngine, params: Any, **more: Any
) -> "asyncio.Task[tuple[int, Any]]":
    """Send a leg, and wait until the engine has it."""
    seen = len(engine.requests)
    task = asyncio.create_task(mocks.post(engine, params, **more))
    await until(lambda: len(engine.requests) > seen)
    return task


async def abort(task: "asyncio.Task[Any]") -> None:
    """Let the client go away."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_pool_serves_in_order_of_arrival() -> None:
    """A small request does not pass a big one that came before it."""
    pool = BlockPool(10)
    await pool.take(8)
    order: list[int] = []

    async def take(blocks: int) -> None:
        await pool.take(blocks)
        order.append(blocks)

    big, small = asyncio.create_task(take(9)), asyncio.create_task(take(1))
    await asyncio.sleep(0)
    assert (order, pool.waiting_count) == ([], 2)
    pool.give(8)
    await asyncio.gather(big, small)
    assert order == [9, 1]
    assert pool.free == 0


async def test_pool_lets_the_next_in_when_the_first_leaves() -> None:
    """A request that stops waiting holds nobody up, and takes no blocks with it."""
    pool = BlockPool(10)
    await pool.take(8)
    big, small = asyncio.create_task(pool.take(9)), asyncio.create_task(pool.take(1))
    await asyncio.sleep(0)
    big.cancel()
    await small
    assert (pool.free, pool.waiting_count) == (1, 0)
    late = asyncio.create_task(pool.take(2))
    await asyncio.sleep(0)
    pool.give(9)  # granted, but cancelled before it runs again
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert pool.free == 10


async def test_books_after_each_leg(model: Path) -> None:
    """A finished request holds no block but those of the sequence that it keeps."""
    async with running_mocks(model, num_blocks=500) as mocks:
        p_dict = await mocks.p_dict()
        books = await mocks.books(mocks.prefill)
        assert books["kept"] == 1
        assert books["kept_blocks"] == len(p_dict["remote_block_ids"][0])
        assert books["free_blocks"] == 500 - books["kept_blocks"]
        assert books["engine_id"] == p_dict["remote_engine_id"]
        _, reply = await mocks.post(mocks.decode, p_dict)
        assert is_idle(mocks.prefill)
        kept = len(reply[KV_PARAMS]["remote_block_ids"][0])
        assert (await mocks.books(mocks.decode))["free_blocks"] == 500 - kept
        await mocks.post(mocks.decode, None)
        assert (await mocks.books(mocks.decode))["free_blocks"] == 500 - kept


async def test_request_waits_for_blocks_that_a_pin_holds(model: Path) -> None:
    """With the pool full of pins a request waits, until one of them is released."""
    async with running_mocks(model) as plain:
        need = len((await plain.handle())["remote_block_ids"][0])
    async with running_mocks(model, num_blocks=need + 1) as mocks:
        handle = await mocks.handle()
        waiting = await start_leg(mocks, mocks.decode, None)
        await until(lambda: mocks.decode.transfers.pool.waiting_count == 1)
        url = f"{url_of(mocks.decode)}{RELEASE_PATH}"
        async with mocks.session.post(url, json={KV_PARAMS: handle}) as reply:
            assert reply.status == 202
        assert (await waiting)[0] == 200
        assert is_idle(mocks.decode)


async def test_request_waits_for_blocks_whose_time_ends(model: Path) -> None:
    """Blocks that nobody read come back by themselves to a request that waits for them."""
    async with running_mocks(model) as plain:
        need = len((await plain.handle())["remote_block_ids"][0])
    async with running_mocks(model, num_blocks=need + 1, lease_s=0.1) as mocks:
        await mocks.p_dict()
        async with asyncio.timeout(5):
            status, _ = await mocks.post(mocks.prefill, None)
        assert status == 200


async def test_request_larger_than_the_pool_is_refused(model: Path) -> None:
    """A prompt that can never fit is a 400, not a request that waits for ever."""
    async with running_mocks(model, num_blocks=2) as mocks:
        assert (await mocks.post(mocks.decode, None))[0] == 400
        assert is_idle(mocks.decode)


async def test_p_dict_ends_with_the_lease_and_a_handle_with_the_ttl(model: Path) -> None:
    """What nobody reads is freed: after the lease on P, after the TTL on D."""
    async with running_mocks(model, lease_s=0.05, ttl_s=60.0) as mocks:
        await mocks.handle()
        p_dict = await mocks.p_dict()
        await until(lambda: is_idle(mocks.prefill))
        assert mocks.decode.transfers.kept_count == 1
        await mocks.post(mocks.decode, p_dict)
        assert mocks.prefill.transfers.counters[NIXL_AFTER_EXPIRY] == 1


async def test_release_frees_a_p_dict(model: Path) -> None:
    """The release route works on P as it does on D; a late reader is counted."""
    async with running_mocks(model) as mocks:
        p_dict = await mocks.p_dict()
        url = f"{url_of(mocks.prefill)}{RELEASE_PATH}"
        async with mocks.session.post(url, json={KV_PARAMS: p_dict}) as reply:
            assert reply.status == 202
        assert is_idle(mocks.prefill)
        await mocks.post(mocks.decode, p_dict)
        assert mocks.prefill.transfers.counters[NIXL_AFTER_EXPIRY] == 1


@pytest.mark.parametrize("stage", ["stalled", "queued", "prefilling"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_aborted_leg_frees_what_it_owed(model: Path, role: str, stage: str) -> None:
    """A leg whose client leaves keeps nothing, and the blocks it came to read are freed."""
    config = {"prefill_us_per_token": 10_000.0} if stage == "prefilling" else {}
    async with running_mocks(model, **config) as mocks:
        # What is computed slowly is only what was not pulled: give it another history.
        other = [{"role": "user", "content": "short"}]
        if role == "prefill":
            owner, reader, params = mocks.decode, mocks.prefill, await mocks.handle(messages=other)
        else:
            owner, reader, params = mocks.prefill, mocks.decode, await mocks.p_dict(messages=other)
        assert owner.transfers.kept_count == 1
        pool = reader.transfers.pool
        if stage == "queued":
            await pool.take(pool.free)
        if stage == "stalled":
            reader.faults.stall_next = 1
        task = await start_leg(mocks, reader, params)
        if stage == "queued":
            await until(lambda: pool.waiting_count == 1)
        await asyncio.sleep(0.02)
        await abort(task)
        await until(lambda: is_idle(owner))
        if stage == "queued":
            pool.give(pool.capacity)
        await until(lambda: is_idle(reader))
        assert owner.transfers.counters[NIXL_AFTER_EXPIRY] == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_leg_aborted_while_it_generates_pins_nothing(model: Path, is_streamed: bool) -> None:
    """D keeps nothing for a client that left before the last token."""
    async with running_mocks(model, token_ms=10.0) as mocks:
        p_dict = await mocks.p_dict()
        more: dict[str, Any] = {"max_tokens": 1000, "stream": is_streamed}
        task = await start_leg(mocks, mocks.decode, p_dict, **more)
        await until(lambda: is_idle(mocks.prefill))
        await asyncio.sleep(0.05)
        assert not is_idle(mocks.decode)
        await abort(task)
        await until(lambda: is_idle(mocks.decode))


async def test_client_that_left_with_the_handle_can_use_it(model: Path) -> None:
    """A client need not read a stream beyond the event that carries the handle."""
    async with running_mocks(model, token_ms=5.0) as mocks:
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, "stream": True}
        body |= {KV_PARAMS: await mocks.p_dict(), "stream_options": {"include_usage": True}}
        async with aiohttp.ClientSession() as session:
            reply = await session.post(f"{url_of(mocks.decode)}{CHAT}", json=body)
            async for line in reply.content:
                if b"remote_request_id" in line:
                    break
            reply.close()
        await asyncio.sleep(0.05)
        assert mocks.decode.transfers.kept_count == 1


async def test_client_that_left_before_the_handle_pins_nothing(model: Path) -> None:
    """Between a message's last token and the event with its handle the pin can be undone."""
    async with running_mocks(model, token_ms=50.0) as mocks:
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1, "stream": True}
        body |= {KV_PARAMS: await mocks.p_dict()}
        async with aiohttp.ClientSession() as session:
            reply = await session.post(f"{url_of(mocks.decode)}/v1/messages", json=body)
            async for line in reply.content:
                if b"content_block_delta" in line:
                    break
            assert mocks.decode.transfers.kept_count == 1
            reply.close()
        await until(lambda: is_idle(mocks.decode))


async def test_read_of_an_aborted_leg_goes_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leg aborted while it reads frees the owner's blocks when the read is done."""
    started = asyncio.Event()
    read = Transfers.read

    async def slow_read(*args: Any) -> None:
        started.set()
        await asyncio.sleep(0.1)
        await read(*args)

    monkeypatch.setattr(Transfers, "read", slow_read)
    async with running_mocks(model) as mocks:
        task = await start_leg(mocks, mocks.decode, await mocks.p_dict())
        await started.wait()
        await abort(task)
        await until(lambda: is_idle(mocks.decode))
        assert mocks.prefill.transfers.kept_count == 1
        await until(lambda: is_idle(mocks.prefill))


async def test_ranks_have_books_of_their_own(model: Path) -> None:
    """The header names the rank, else they take turns; a dict is freed on its rank."""
    async with running_mocks(model, data_parallel_size=2) as mocks:
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1, KV_PARAMS: COLD_PREFILL}
        ids = []
        for headers in ({"X-data-parallel-rank": "1"}, {"X-data-parallel-rank": "1"}, {}, {}):
            _, reply = await mocks.ask(mocks.prefill, CHAT, body, **headers)
            ids.append(reply[KV_PARAMS]["remote_engine_id"])
        assert [one.rpartition("_")[2] for one in ids] == ["dp1", "dp1", "dp0", "dp1"]
        assert len({one.rpartition("_")[0] for one in ids}) == 1
        assert [rank.kept_count for rank in mocks.prefill.ranks] == [1, 3]
        assert (await mocks.books(mocks.prefill))["kept"] == 4
        assert (await mocks.post(mocks.decode, reply[KV_PARAMS]))[0] == 200
        assert [rank.kept_count for rank in mocks.prefill.ranks] == [1, 2]
        status, _ = await mocks.ask(mocks.prefill, CHAT, body, **{"X-data-parallel-rank": "2"})
        assert status == 400


async def test_restart_forgets_everything(model: Path) -> None:
    """After a restart the engine has another id and no blocks; open connections end."""
    async with running_mocks(model, token_ms=10.0) as mocks:
        handle = await mocks.handle()
        await mocks.p_dict()
        running = await start_leg(mocks, mocks.decode, None, max_tokens=1000)
        before = (await mocks.books(mocks.decode))["engine_id"]
        async with mocks.session.post(f"{url_of(mocks.decode)}/mock/restart") as reply:
            assert (await reply.json())["engine_id"] != before
        with pytest.raises(aiohttp.ClientError):
            await running
        await until(lambda: is_idle(mocks.decode))
        assert mocks.prefill.transfers.kept_count == 1
        assert (await mocks.post(mocks.prefill, handle))[0] == 500
        assert (await mocks.handle())["remote_engine_id"] != before


async def test_restarted_reader_tells_nobody(model: Path) -> None:
    """A crash sends no word to the owner: its blocks stay until their time ends."""
    async with running_mocks(model) as mocks:
        p_dict = await mocks.p_dict()
        mocks.decode.faults.stall_next = 1
        task = await start_leg(mocks, mocks.decode, p_dict)
        mocks.decode.restart()
        with pytest.raises(aiohttp.ClientError):
            await task
        await asyncio.sleep(0.05)
        assert mocks.prefill.transfers.kept_count == 1


async def test_engine_remembers_as_many_requests_as_told(model: Path) -> None:
    """A soak test's requests do not pile up."""
    async with running_mocks(model, keep_requests=2) as mocks:
        for count in (1, 2, 3):
            await mocks.post(mocks.decode, None, max_tokens=count)
        assert [seen.body["max_tokens"] for seen in mocks.decode.requests] == [2, 3]


async def test_second_prompt_of_a_completion_finds_the_dict_spent(model: Path) -> None:
    """As on vLLM all prompts of a request carry its dict, and one of them can use it."""
    async with running_mocks(model) as mocks:
        p_dict = await mocks.p_dict()
        body = {"model": MODEL, "prompt": ["one", "two"], KV_PARAMS: p_dict}
        status, reply = await mocks.ask(mocks.decode, "/v1/completions", body)
        assert status == 200
        assert reply[KV_PARAMS][RECEIPT]["reason"] == "no_match"
        assert mocks.prefill.transfers.counters[NIXL_AFTER_EXPIRY] == 0
        assert is_idle(mocks.prefill)


def test_chain_grows_as_if_hashed_at_once() -> None:
    """Hashes of a sequence do not depend on how it was put together."""
    ids = list(range(150))
    grown = HashedTokens(ids[:70], 32, "s")
    grown.extend(ids[70:97])
    grown.extend(ids[97:])
    assert grown.hashes == block_hashes(ids, 32, "s")
    whole = HashedTokens(ids, 32, "s")
    assert grown.tail_hash(128, 150) == whole.tail_hash(128, 150)
    assert whole.tail_hash(128, 150) != HashedTokens(ids, 32, "t").tail_hash(128, 150)


def test_pieces_join_to_the_text(model: Path) -> None:
    """However tokens cut characters, the pieces of a stream joined are its text."""
    tokens = MockTokens(model)
    ids = [choice.token_id for choice in tokens.answer([1], 300)]
    assert "".join(tokens.pieces(ids)) == tokens.text(ids)
    split = tokens.encoded("déjà vu — 鯨 🐋")
    pieces = list(tokens.pieces(split))
    assert "".join(pieces) == "déjà vu — 鯨 🐋"
    assert "" in pieces
    assert not any("\ufffd" in piece for piece in pieces)
