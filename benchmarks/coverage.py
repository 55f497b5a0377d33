"""How often the report's 95 % intervals hold the truth, over whole simulated benchmarks.

    .venv/bin/python -m benchmarks.coverage [--draws 1000] [--conversations 10 100]

Every draw is a pass made up from a known ratio (tests/bench/simulated.py: skewed noise that
turns of a conversation share in part, and an effect of each conversation on the ratio), put
through the report as a real pass is. Ends with 1 when an interval of the speed-up holds the
ratio in less than 93 or more than 97 % of the draws.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from runtime.bench.report.ratios import speedup, stability
from tests.bench.simulated import simulated_pass

RATIO, TURNS, NOISE = 2.0, 5, 0.2
_BAR = (0.93, 0.97)


def held(conversations: int, seed: int) -> Iterator[str]:
    """Which intervals of one draw hold what it was made from."""
    _, results, _ = simulated_pass(
        RATIO, conversations, TURNS, noise=NOISE, again_share=0.3, seed=seed
    )
    found = speedup(results, TURNS)
    if _holds(found["overall"]["ci95"], RATIO):
        yield "overall"
    if _holds(found["turns"][-1]["ci95"], RATIO):
        yield "last turn"
    if _holds(found["turn_1"]["ci95"], 1.0):
        yield "turn 1"
    if _holds(stability(results, 1)["again"]["ci95"], 1.0):
        yield "A/A"


def _holds(ci95: Any, truth: float) -> bool:
    return ci95 is not None and ci95[0] <= truth <= ci95[1]


def main() -> int:
    """Print the share of draws per interval as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--conversations", type=int, nargs="+", default=[10, 100])
    args = parser.parse_args()
    is_good = True
    for conversations in args.conversations:
        counts = Counter(name for seed in range(args.draws) for name in held(conversations, seed))
        shares = {name: count / args.draws for name, count in sorted(counts.items())}
        print(json.dumps({"conversations": conversations, "draws": args.draws} | shares))  # noqa: T201
        is_good &= _BAR[0] <= shares["overall"] <= _BAR[1]
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
