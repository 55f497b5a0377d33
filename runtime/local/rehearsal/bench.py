"""A short benchmark through the rehearsed router, and what it must show."""

import json
from collections.abc import Callable
from pathlib import Path

from runtime.bench.exactness import compare
from runtime.bench.run import BenchPlan, run_benchmark
from runtime.bench.turn import TurnResult
from runtime.contract.profile import WorkloadSpec
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
"""Seconds on two cores, and longer than the threshold of 64 tokens."""


def first_key(text: str) -> str:
    """The administrator's key of the deployed secret.

    Raises:
        StartFailed: the secret refers to nothing.
    """
    keys = json.loads(text)
    check_no_empty_values({"API keys": keys})
    key: str = keys["keys"][0]["key"]
    return key


async def run_short_benchmark(
    url: str,
    model_name: str,
    model: Path,
    api_key: str,
    out: Path,
    run_id: str,
    on_turn: Callable[[TurnResult], None],
) -> str:
    """Run both arms; returns what was seen.

    Raises:
        EngineDied: a turn failed, none was warm, or an answer differs.
    """
    plan = BenchPlan(
        router_url=url,
        served_model_name=model_name,
        tokenizer_path=model / "tokenizer.json",
        workload=WORKLOAD,
        run_id=run_id,
        timeout_s=120.0,
        api_key=api_key,
    )
    results: list[TurnResult] = []
    await run_benchmark(plan, results, out / f"turns-{run_id}.jsonl", on_turn)
    return judge(results)


def judge(results: list[TurnResult]) -> str:
    """What a run must have shown.

    Raises:
        EngineDied: it has not.
    """
    later = [each for each in results if each.arm == "bidirectional" and each.turn > 1]
    warm = [each for each in later if each.path == "warm"]
    pulled = sum(each.receipt.pulled_tokens for each in warm if each.receipt)
    exact = compare(results)
    failed = [each.error for each in results if not each.is_successful]
    whole = 2 * WORKLOAD.conversations * WORKLOAD.turns
    is_equal = exact.equal + exact.ties == exact.compared == whole // 2
    if failed or len(results) != whole or warm != later or not pulled or not is_equal:
        raise EngineDied(
            "the rehearsed engines do not hand KV back as they should",
            got=f"{len(results)} turns, failed: {failed[:1] or 'none'}; {len(warm)} of "
            f"{len(later)} later turns warm, {pulled} tokens pulled; {exact.equal} of "
            f"{exact.compared} answers equal, {exact.ties} up to a tie",
            allowed=f"{whole} turns, all successful; every later turn warm; answers equal",
            fix="read the engines' logs and turns-*.jsonl",
        )
    return (
        f"{len(warm)} of {len(later)} later turns warm, {pulled} tokens pulled, "
        f"{exact.equal} of {exact.compared} answers equal"
        + (f", {exact.ties} up to a tie" if exact.ties else "")
    )
