"""Two real vLLM servers with the verified connector, behind the router.

The tests run in the order they stand in: the last one ends the pair.
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from runtime.bench.folder import PassInfo, Sample
from runtime.bench.measure import read_workload
from runtime.bench.player import Target
from runtime.bench.report import build_report
from runtime.bench.run import play_workload
from runtime.bench.scrape import settled_scrape
from runtime.bench.turn import TurnResult
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import load_profile
from runtime.engine_api import EXTERNAL_HIT_TOKENS, NIXL_AFTER_EXPIRY, parse_metrics
from runtime.router.apis import APIS
from runtime.router.app import Router
from tests.engine.conftest import Up, alive, descendants
from tests.engine.play import KV_USAGE
from tests.engine.suite import CHECKS, Check
from tests.engine.suite_client import Pair, release_all
from tests.router.clients import play
from tests.router.fleet import LONG_TEXT, Fleet

pytestmark = pytest.mark.engine

LEASE_S = 40.0
"""P's lease of 30 s and some: what a failed leg left on P is gone after it."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_shared_suite(check: Check, up: Up) -> None:
    """vLLM does what the mock engine does in its place."""
    pair = Pair(up.prefill_url, up.decode_url, "tiny")
    await check(pair)
    await release_all(pair)


async def test_nothing_is_left_on_either_node(up: Up) -> None:
    """After all that was played both engines hold no block, and none was read after its end."""
    end = time.monotonic() + LEASE_S
    async with aiohttp.ClientSession() as session:
        for url in (up.prefill_url, up.decode_url):
            while (seen := await figures(session, url))[KV_USAGE] > 0:
                assert time.monotonic() < end, f"{url}: {seen}"
                await asyncio.sleep(0.2)
            assert seen[NIXL_AFTER_EXPIRY] == 0


async def figures(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """An engine's KV usage and its reads after free."""
    async with session.get(f"{url}/metrics") as reply:
        return parse_metrics(await reply.text(), [KV_USAGE, NIXL_AFTER_EXPIRY])


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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", APIS)
async def test_every_api_returns_kv_by_its_history(up: Up, path: str, stream: bool) -> None:
    """No id is needed: the second turn of each API pulls, and shows nothing internal."""
    async with aiohttp.ClientSession() as session:
        fleet = Fleet(up.router_url, cast(Router, None), session, [], [])
        history = [{"role": "user", "content": f"{path} {stream} {LONG_TEXT}"}]
        replies = [await play(fleet, path, history, stream=stream, model="tiny") for _ in range(2)]
    assert [reply.path for reply in replies] == ["cold", "warm"]
    assert replies[1].receipt is not None
    assert replies[1].receipt.reason == "pulled"
    assert b"kv_transfer_params" not in replies[0].raw + replies[1].raw


async def test_benchmark_through_the_router(up: Up, model: Path) -> None:
    """Both halves of the gain are there, answers are equal, and the receipts add up."""
    profile = load_profile("tiny")
    workload = profile.workload.model_copy(
        update={"conversations": 2, "turns": 3, "own_prefix_tokens": 300, "user_tokens": 100}
    )
    profile = profile.model_copy(update={"workload": workload})
    bench = BenchSpec(again_share=0.0)
    words = read_workload(profile, model, bench)
    target = Target(up.router_url, "tiny", "test", words.allowed_token_ids)
    results: list[TurnResult] = []
    urls = {"prefill": up.prefill_url, "decode": up.decode_url}
    async with aiohttp.ClientSession() as session:
        samples: list[Sample] = []
        hits_before = 0.0

        async def read(at_s: float) -> None:
            for role, url in urls.items():
                samples.append(Sample(at_s, role, url, await settled_scrape(session, url) or {}))

        async def on_warm() -> None:
            nonlocal hits_before
            await read(-1.0)
            hits_before = await external_hits(session, up)

        await play_workload(target, words.conversations, bench, results.append, on_warm)
        await read(1.0)
        hits = await external_hits(session, up) - hits_before
    info = PassInfo("main", "", profile, bench, profile.name, prefill_prefix_caching=False)
    report = build_report([(info, results, samples)])
    engine = report["engine"]

    exactness = report["exactness"]
    assert exactness["compared"] == 6
    assert exactness["equal"] + exactness["ties"] == 6, exactness["differences"]
    turns = report["arms"]["bidirectional"]["turns"][1:]
    covered = sum(turn["pulled_answer_tokens"] for turn in turns)
    possible = sum(turn["returnable_answer_tokens"] for turn in turns)
    assert possible > 0
    assert covered >= 0.9 * possible
    for arm in report["arms"].values():
        for turn in arm["turns"]:
            assert turn["decode"]["reasons"] == {"pulled": 2}
    receipts = sum(r.receipt.pulled_tokens for r in results if r.receipt)
    assert receipts == covered + sum(turn["pulled_prompt_tokens"] for turn in turns)
    assert hits == receipts
    for role in urls:
        assert engine[role] is not None
        assert engine[role]["reads_after_free"] == 0
        assert engine[role]["failed_transfers"] == 0
    assert engine["prefill"]["nixl_reads"] >= 4


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
