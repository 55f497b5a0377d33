"""A short benchmark through the rehearsed router, and what it must show."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runtime.bench.exactness import compare
from runtime.bench.measure import read_workload
from runtime.bench.player import Target
from runtime.bench.run import play_workload
from runtime.bench.turn import TurnResult
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import WorkloadSpec, load_profile
from runtime.errors import EngineDied
from runtime.local.rehearsal.checks import check_no_empty_values

WORKLOAD = WorkloadSpec(
    conversations=2,
    turns=3,
    common_prefix_tokens=128,
    own_prefix_tokens=512,
    user_tokens=96,
    answer_tokens=32,
    warmup_conversations=1,
)
"""Seconds on two cores; histories longer than the threshold of 64 tokens."""
_TURNS = 2 * WORKLOAD.conversations * WORKLOAD.turns


def first_key(text: str) -> str:
    """The administrator's key of the deployed secret.

    Raises:
        StartFailed: the secret refers to nothing.
    """
    keys = json.loads(text)
    check_no_empty_values({"API keys": keys})
    key: str = keys["keys"][0]["key"]
    return key


async def run_and_judge(target: Target, model: Path, turns: Path) -> str:
    """Run both arms; returns what was seen.

    Args:
        target: where turns go; its `allowed_token_ids` are found here.
        model: folder of the served model.
        turns: file for the results.

    Raises:
        EngineDied: a turn failed, a later one was not warm, or an answer differs.
    """
    profile = load_profile("tiny").model_copy(update={"workload": WORKLOAD})
    bench = BenchSpec(again_share=0.0, timeout_s=120.0)
    workload = await asyncio.to_thread(read_workload, profile, model, bench)
    target = replace(target, allowed_token_ids=workload.allowed_token_ids)
    results: list[TurnResult] = []
    await play_workload(target, workload.conversations, bench, results.append)
    lines = (json.dumps(each.to_dict()) for each in results)
    await asyncio.to_thread(turns.write_text, "".join(f"{line}\n" for line in lines), "utf-8")
    return judge(results)


def judge(results: Sequence[TurnResult]) -> str:
    """What a run has shown.

    Raises:
        EngineDied: it has not shown what it must.
    """
    failed = [each.error for each in results if not each.is_successful]
    later = [each for each in results if each.arm == "bidirectional" and each.turn > 1]
    pulled = [each.receipt.pulled_tokens if each.receipt else 0 for each in later]
    warm = sum(
        each.path == "warm" and tokens > 0 for each, tokens in zip(later, pulled, strict=True)
    )
    exact = compare(results)
    told = (
        f"{warm} of {len(later)} later turns warm, {sum(pulled)} tokens pulled; "
        f"{exact.equal} of {exact.compared} answers equal, {exact.ties} up to a tie"
    )
    is_whole = len(results) == _TURNS and not failed
    if not is_whole or warm != len(later) or exact.differences:
        raise EngineDied(
            "the rehearsed engines do not hand KV back as they should",
            got=f"{len(results)} turns, {len(failed)} failed ({failed[:1]}); {told}",
            allowed=f"{_TURNS} turns, none failed; every later turn warm, with tokens pulled; "
            "every answer equal, or up to a tie",
            fix="read turns-*.jsonl and the engines' logs",
        )
    return told
