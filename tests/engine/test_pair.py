"""Two real vLLM servers with the verified connector, behind the router.

The tests run in the order they stand in: the last one ends the pair.
"""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tokenizers import Tokenizer

from runtime.bench.report import build_report
from runtime.bench.run import BenchPlan, run_benchmark
from runtime.bench.scrape import Counters, difference, settled_scrape
from runtime.bench.turn import TurnResult
from runtime.contract.profile import load_profile
from runtime.engine_api import EXTERNAL_HIT_TOKENS, parse_metrics
from tests.engine.cases import FOLLOW_UPS, PairClient, Words, first_difference, play
from tests.engine.conftest import Up, alive, descendants
from tests.engine.suite import CHECKS, Check, Pair

pytestmark = pytest.mark.engine


@pytest.fixture
async def client(up: Up) -> AsyncIterator[PairClient]:
    """Plays turns against the engines themselves."""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield PairClient(session, up.prefill_url, up.decode_url, "tiny")


def test_printed_curl_line_works(up: Up) -> None:
    """The line that `turnback up` prints gives an answer and shows nothing internal."""
    done = subprocess.run(
        shlex.split(up.curl), capture_output=True, text=True, timeout=60, check=True
    )
    reply = json.loads(done.stdout)
    assert reply["usage"]["completion_tokens"] == 16
    assert "kv_transfer_params" not in done.stdout
    assert "turnback_" not in done.stdout


def test_engines_do_not_share_a_core(up: Up) -> None:
    """The stock connector puts both model threads on the machine's last core."""
    below = descendants(up.process.pid)
    workers = [pid for pid in below if b"Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    one, other = (os.sched_getaffinity(pid) for pid in workers)
    assert one != other


async def test_answer_depends_on_the_whole_history(
    client: PairClient, tokenizer: Tokenizer
) -> None:
    """One other word at the start of a long prompt changes the answer; else no test has power."""
    words = Words(tokenizer, seed=5)
    first, second, rest = words.text(1), words.text(1), words.text(500)
    one = await client.turn([{"role": "user", "content": first + rest}], salt="power-1")
    other = await client.turn([{"role": "user", "content": second + rest}], salt="power-2")
    assert first != second
    assert one.token_ids != other.token_ids


@pytest.mark.parametrize("following", FOLLOW_UPS)
async def test_wrong_handle_gives_the_cold_answer(
    following: str, client: PairClient, tokenizer: Tokenizer
) -> None:
    """A handle that fits badly never changes ids or logprobs, and only equal KV is read."""
    warm, cold = await play(client, Words(tokenizer, seed=FOLLOW_UPS.index(following)), following)
    assert first_difference(warm, cold) is None
    assert warm.receipt is not None
    if following in ("edited_start", "other_conversation"):
        assert (warm.receipt.pulled_tokens, warm.receipt.reason) == (0, "no_match")
    else:
        assert 0 < warm.receipt.pulled_tokens < warm.receipt.offered_tokens


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_shared_suite(check: Check, up: Up) -> None:
    """vLLM does what the mock engine does in its place."""
    await check(Pair(up.prefill_url, up.decode_url, "tiny"))


async def test_benchmark_through_the_router(up: Up, model: Path, tmp_path: Path) -> None:
    """Both halves of the gain are there, answers are equal, and the receipts add up."""
    profile = load_profile("tiny")
    workload = profile.workload.model_copy(
        update={"conversations": 2, "turns": 3, "own_prefix_tokens": 300, "user_tokens": 100}
    )
    profile = profile.model_copy(update={"workload": workload})
    plan = BenchPlan(
        router_url=up.router_url,
        served_model_name="tiny",
        tokenizer_path=model / "tokenizer.json",
        workload=workload,
        run_id="test",
    )
    results: list[TurnResult] = []
    urls = {"prefill": up.prefill_url, "decode": up.decode_url}
    async with aiohttp.ClientSession() as session:
        before: dict[str, Counters | None] = {}
        hits_before = 0.0

        async def on_warm() -> None:
            nonlocal hits_before
            for role, url in urls.items():
                before[role] = await settled_scrape(session, url)
            hits_before = await external_hits(session, up)

        await run_benchmark(plan, results, tmp_path / "turns.jsonl", on_warm=on_warm)
        after = {role: await settled_scrape(session, url) for role, url in urls.items()}
        hits = await external_hits(session, up) - hits_before
    engine = {role: difference(before[role], after[role]) for role in urls}
    report = build_report(profile, results, environment={}, created_utc="", engine=engine)

    exactness = report["exactness"]
    assert exactness["compared"] == 6
    assert exactness["equal"] + exactness["ties"] == 6, exactness["differences"]
    turns = report["arms"]["bidirectional"]["turns"][1:]
    covered = sum(turn["pulled_answer_tokens"] for turn in turns)
    possible = sum(turn["answer_tokens_in_whole_blocks"] for turn in turns)
    assert possible > 0
    assert covered >= 0.9 * possible
    receipts = sum(r.receipt.pulled_tokens for r in results if r.receipt)
    assert receipts == covered + sum(turn["pulled_prompt_tokens"] for turn in turns)
    assert hits == receipts
    for role in urls:
        assert engine[role] is not None
        assert engine[role]["reads_after_free"] == 0  # type: ignore[index]
        assert engine[role]["failed_transfers"] == 0  # type: ignore[index]
    assert engine["prefill"]["nixl_reads"] >= 4  # type: ignore[index]


async def external_hits(session: aiohttp.ClientSession, up: Up) -> float:
    """Tokens that P has pulled so far, by its own counter."""
    async with session.get(f"{up.prefill_url}/metrics") as reply:
        return parse_metrics(await reply.text(), [EXTERNAL_HIT_TOKENS])[EXTERNAL_HIT_TOKENS]


def test_killed_engine_core_ends_everything(up: Up) -> None:
    """SIGKILL of one engine core: exit code 4, a message with the log, no process left."""
    below = descendants(up.process.pid)
    cores = [pid for pid in below if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(cores) == 2
    os.kill(cores[0], signal.SIGKILL)
    assert up.process.wait(timeout=60) == 4
    end = time.monotonic() + 10
    while any(map(alive, below)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in below if alive(pid)]
