"""A report whose pulls and prefills follow known lines."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.bench.tune.observations import Observations, observe

BLOCK = 32


@dataclass(frozen=True)
class Truth:
    """pull = a + b x, prefill = c + d n + e n (history + n / 2), in ms and tokens."""

    a: float = 20.0
    b: float = 0.004
    c: float = 12.0
    d: float = 0.03
    e: float = 0.0

    @property
    def crossing(self) -> float:
        """Where a pull takes as long, nothing being in P's own cache."""
        slope, bend = self.d - self.b, self.e / 2
        if not bend:
            return self.a / slope
        return float((-slope + np.sqrt(slope**2 + 4 * bend * self.a)) / (2 * bend))


def made_report(
    truth: Truth | None = None,
    *,
    conversations: int = 10,
    turns: int = 5,
    lengths: tuple[int, int] = (100, 8000),
    noise: float = 0.0,
    outliers: float = 0.0,
    local: int = 0,
    think_s: float = 0.0,
    arms: tuple[str, ...] = ("one_way", "bidirectional"),
    seed: int = 0,
    **changes: Any,
) -> dict[str, Any]:
    """A report of one pass.

    Args:
        truth: the lines.
        lengths: own prefix of the shortest and the longest conversation.
        noise: standard deviation of log times; half as much again by conversation.
        outliers: share of times that are 3 to 10 times as long.
        local: tokens that P's own cache holds in turns that pull.
        think_s: mean of exponential gaps; 0: none.
        changes: of the report's keys.
    """
    truth, rng, now_s = truth or Truth(), np.random.default_rng(seed), 0.0
    rows = []
    for index, own in enumerate(np.geomspace(*lengths, conversations).astype(int)):
        shift = np.exp(rng.normal(0, noise / 2, 2))
        for block_arm in arms:
            for turn in range(1, turns + 1):
                gap_s = float(rng.exponential(think_s)) if turn > 1 and think_s else 0.0
                prompt = int(own) + local + turn * 150 + (turn - 1) * 50
                is_warm = block_arm == "bidirectional" and turn > 1
                pulled = (prompt - local - 150) // BLOCK * BLOCK if is_warm else 0
                held = local if is_warm else 0
                computed = prompt - held - pulled
                scatter = np.exp(rng.normal(0, noise, 2)) * shift
                scatter *= np.where(rng.random(2) < outliers, rng.uniform(3, 10, 2), 1)
                pull = (truth.a + truth.b * pulled) * scatter[0] if pulled else 0.0
                prefill = truth.c + truth.d * computed
                prefill += truth.e * computed * (held + pulled + computed / 2)
                now_s += gap_s
                rows.append(
                    {
                        "conversation": index,
                        "turn": turn,
                        "arm": block_arm,
                        "is_again": False,
                        "point": 0,
                        "repeat": 0,
                        "block": index,
                        "outcome": "successful",
                        "reason": "pulled" if is_warm else "none_offered",
                        "prompt_tokens": prompt,
                        "answer_tokens": 50,
                        "pulled_tokens": pulled,
                        "local_tokens": held,
                        "computed_tokens": computed,
                        "started_s": now_s,
                        "ended_s": now_s + 1.0,
                        "think_s": gap_s,
                        "stages_ms": {"pull": pull, "prefill": prefill * scatter[1]},
                    }
                )
                now_s += 1.0
    report: dict[str, Any] = {
        "schema_version": 1,
        "complete": True,
        "stopped_by": None,
        "created_utc": "2026-01-02T03:04:05+00:00",
        "environment": {"engine": "vllm"},
        "workload": {"name": "qwen3-32b", "kv": {"block_size_tokens": BLOCK}},
        "pass": {"name": "main", "bench": {"think_scale": 1.0}},
        "kv_capacity_tokens": {"prefill": 400_000, "decode": 400_000},
        "requests": rows,
        "other_passes": [],
    }
    rest = (
        *("arms", "speedup", "exactness", "engine", "points", "stability", "timeline"),
        *("attribution", "savings", "published", "problems"),
    )
    return dict.fromkeys(rest) | report | changes


def made(truth: Truth | None = None, **sizes: Any) -> Observations:
    """The same, as tuning reads it."""
    return observe(made_report(truth, **sizes), "report.json")
