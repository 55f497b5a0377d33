"""The mock engine: the shared suite, its books, its faults, its process."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from runtime.engine_api import (
    EXTERNAL_HIT_TOKENS,
    KV_PARAMS,
    NIXL_AFTER_EXPIRY,
    NIXL_BYTES,
    NIXL_FAILED,
    NIXL_READS,
    NIXL_SECONDS,
    PIN,
    RECEIPT,
    RECORD,
    parse_metrics,
)
from runtime.local.mock_tokens import MockTokens, block_hashes
from runtime.local.mock_transfer import BYTES_PER_TOKEN, COUNTER_NAMES
from tests.engine.suite import CHECKS, Check
from tests.engine.suite_client import Pair
from tests.local.mock_rig import MESSAGES, running_mocks
from tests.router.fleet import (
    MODEL,
    running_engine,
    unused_port,
    url_of,
    wait_listening,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_suite(model: Path, check: Check) -> None:
    """The mock pair gives what the router and the benchmark rely on."""
    async with running_mocks(model) as mocks:
        await check(Pair(url_of(mocks.prefill), url_of(mocks.decode), MODEL))


async def test_counters_of_a_returned_turn(model: Path) -> None:
    """Reads, bytes and hit tokens are counted on the reader, and only there."""
    async with running_mocks(model) as mocks:
        handle = await mocks.handle()
        receipt = await mocks.receipt(handle)
        pulled = receipt["pulled_tokens"]
        counters = mocks.prefill.transfers.counters
        assert pulled > 0
        assert counters[NIXL_READS] == 1
        assert counters[NIXL_BYTES] == pulled * BYTES_PER_TOKEN
        assert counters[NIXL_SECONDS] > 0
        assert counters[EXTERNAL_HIT_TOKENS] == pulled
        decode = mocks.decode.transfers.counters
        assert decode[NIXL_READS] == 1
        assert decode[NIXL_AFTER_EXPIRY] == counters[NIXL_AFTER_EXPIRY] == 0
        assert mocks.decode.transfers.kept_count == 0


async def test_metrics_page_shows_the_counters(model: Path) -> None:
    """/metrics has every counter that the kit reads, with vLLM's labels."""
    async with running_mocks(model) as mocks:
        await mocks.handle()
        async with mocks.session.get(f"{url_of(mocks.decode)}/metrics") as reply:
            page = await reply.text()
        assert parse_metrics(page, COUNTER_NAMES) == mocks.decode.transfers.counters
        assert f'{NIXL_READS}{{engine="0",model_name="{MODEL}"}} 1.0' in page


async def test_second_read_is_refused_and_by_another_engine_counted(model: Path) -> None:
    """One P reads a handle once; another P cannot know, and the owner counts it."""
    async with running_mocks(model) as mocks, running_engine(model, "prefill") as other:
        handle = await mocks.handle()
        await mocks.receipt(handle)
        assert (await mocks.receipt(handle))["reason"] == "spent"
        assert mocks.decode.transfers.counters[NIXL_AFTER_EXPIRY] == 0
        await mocks.post(other, handle)
        assert mocks.decode.transfers.counters[NIXL_AFTER_EXPIRY] == 1


async def test_expired_blocks_are_gone(model: Path) -> None:
    """After the TTL the owner no longer knows the blocks."""
    async with running_mocks(model, ttl_s=0.0, lease_s=0.0) as mocks:
        await mocks.handle()
        assert mocks.decode.transfers.kept_count == 0
        assert mocks.prefill.transfers.counters[NIXL_AFTER_EXPIRY] == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({RECORD: None}, "no_record"),
        ({RECORD: {"version": 99}}, "bad_record"),
        ({"record": {"seed_fingerprint": "f" * 16}}, "other_hash"),
        ({"record": {"block_size_tokens": 10**6, "hashes": ""}}, "other_block_size"),
    ],
)
async def test_handle_that_cannot_be_verified_is_only_released(
    model: Path, change: dict[str, Any], reason: str
) -> None:
    """Without a usable record nothing is pulled, and the owner's blocks are freed."""
    async with running_mocks(model) as mocks:
        handle = await mocks.handle()
        record = handle[RECORD] | change.pop("record", {})
        receipt = await mocks.receipt(handle | {RECORD: record} | change)
        assert (receipt["reason"], receipt["pulled_tokens"]) == (reason, 0)
        assert mocks.decode.transfers.kept_count == 0
        assert mocks.prefill.transfers.counters[NIXL_READS] == 0


async def test_other_salt_is_no_match(model: Path) -> None:
    """The salt is part of the first block's hash: equal text of another salt is not equal."""
    async with running_mocks(model) as mocks:
        handle = await mocks.handle(cache_salt="one")
        receipt = await mocks.receipt(handle, cache_salt="two")
        assert receipt["reason"] == "no_match"


async def test_short_prefix_is_below_the_threshold(model: Path) -> None:
    """A verified prefix below the threshold is recomputed."""
    async with running_mocks(model, threshold_tokens=10_000) as mocks:
        receipt = await mocks.receipt(await mocks.handle())
        assert receipt["reason"] == "below_threshold"
        assert receipt["verified_tokens"] > 0 == receipt["pulled_tokens"]


async def test_malformed_handle_is_served_cold(model: Path) -> None:
    """A handle that would end a stock engine is refused with a reason, and frees nothing."""
    async with running_mocks(model) as mocks:
        handle = await mocks.handle()
        receipt = await mocks.receipt(handle | {"tp_size": 0})
        assert (receipt["reason"], receipt["pulled_tokens"]) == ("malformed", 0)
        assert mocks.decode.transfers.kept_count == 1


@pytest.mark.parametrize("change", ["restarted", "gone"])
async def test_owner_that_is_not_there_fails_the_read(model: Path, change: str) -> None:
    """Blocks of an engine that restarted or ended cannot be read."""
    async with running_mocks(model) as mocks:
        handle = await mocks.handle()
        if change == "restarted":
            mocks.decode.transfers.engine_id = uuid.uuid4().hex
        else:
            handle["remote_port"] = unused_port()
        assert (await mocks.post(mocks.prefill, handle))[0] == 500
        assert mocks.prefill.transfers.counters[NIXL_FAILED] == 1


async def test_pin_false_and_no_params_keep_nothing(model: Path) -> None:
    """D keeps blocks only for a request that P prepared and that did not say no."""
    async with running_mocks(model) as mocks:
        _, reply = await mocks.post(mocks.decode, await mocks.p_dict() | {PIN: False})
        assert set(reply[KV_PARAMS]) == {RECEIPT}
        _, reply = await mocks.post(mocks.decode, None)
        assert reply[KV_PARAMS] is None
        assert mocks.decode.transfers.kept_count == 0


async def test_one_way_decode_keeps_nothing(model: Path) -> None:
    """A pair without the return: P hands over, D gives no handle."""
    async with running_mocks(model, is_one_way=True) as mocks:
        _, reply = await mocks.post(mocks.decode, await mocks.p_dict())
        assert set(reply[KV_PARAMS]) == {RECEIPT}
        assert reply[KV_PARAMS][RECEIPT]["reason"] == "pulled"
        assert mocks.decode.transfers.kept_count == 0


async def test_unknown_model_is_a_404(model: Path) -> None:
    """A model of another name is refused in vLLM's shape."""
    async with running_mocks(model) as mocks:
        status, reply = await mocks.post(mocks.decode, None, model="other")
        assert (status, reply["error"]["code"]) == (404, 404)


async def test_pulled_tokens_save_prefill_time(model: Path) -> None:
    """P computes only what it did not pull."""
    async with running_mocks(model, prefill_us_per_token=500.0) as mocks:
        began = time.perf_counter()
        handle = await mocks.handle()
        cold_s = time.perf_counter() - began
        began = time.perf_counter()
        await mocks.receipt(handle)
        assert time.perf_counter() - began < cold_s / 2


def test_answer_follows_from_the_history_alone(model: Path) -> None:
    """Equal histories give equal tokens, and each token depends on all before it."""
    tokens = MockTokens(model)
    prompt = tokens.prompt_ids(MESSAGES)
    whole = tokens.answer(prompt, 8)
    assert whole == tokens.answer(prompt, 8)
    ids = [choice.token_id for choice in whole]
    rest = tokens.answer([*prompt, *ids[:3]], 5)
    assert [choice.token_id for choice in rest] == ids[3:]
    assert tokens.answer([prompt[0] + 1, *prompt[1:]], 8) != whole


def test_block_hashes_cover_whole_blocks_and_all_before() -> None:
    """A token's change shows in its block and every later one, in none before."""
    ids = list(range(100))
    mine = block_hashes(ids, 32, "s")
    theirs = block_hashes([*ids[:40], 7, *ids[41:]], 32, "s")
    assert len(mine) == 3
    assert [a == b for a, b in zip(mine, theirs, strict=True)] == [True, False, False]
    assert block_hashes(ids, 32, "t")[0] != mine[0]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_process_serves_and_ends_on_sigterm(model: Path, role: str) -> None:
    """The process listens on its port and ends at once, with code 0, on SIGTERM."""
    port = unused_port()
    argv = [sys.executable, "-m", "runtime.local.mock_engine", "--role", role]
    argv += ["--port", str(port), "--model", str(model), "--served-model-name", MODEL]
    with subprocess.Popen(argv, env=os.environ) as process:
        try:
            wait_listening(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=5) == 0
        finally:
            process.kill()
