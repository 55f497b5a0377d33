"""Who plays what, and when: blocks, arms in them, arrivals, aborts. Pure, and seeded."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import TypeVar

from runtime.bench.turn import ARMS, Arm
from runtime.bench.workloads.conversation import Conversation
from runtime.contract.bench import BenchSpec

OPEN_LOOP_BLOCK = 16
"""Conversations of a block at least: it begins and ends empty, and most of it should not be so."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """One arm's pass through a block."""

    arm: Arm
    is_again: bool = False


@dataclass(frozen=True)
class Block:
    """Conversations that one arm plays, and then the others.

    Attributes:
        number: from 0, over the whole pass.
        repeat: of the workload, from 0.
        parts: in the order of play, drained between; the first one's answers are the
            history of all.
        starts_s: when each conversation begins, since its part does; the same for all
            parts. Zeros in a closed loop, where a free client takes the next one.
    """

    number: int
    repeat: int
    conversations: tuple[Conversation, ...]
    parts: tuple[Part, ...]
    starts_s: tuple[float, ...]


def plan_blocks(
    conversations: Sequence[Conversation], bench: BenchSpec, *, is_feature_on: bool = True
) -> tuple[Block, ...]:
    """The blocks of a pass, in the order of play.

    Points of a sweep come one after the other and are never in one block. Which arm is
    first alternates from block to block (A B, B A) and, for the same conversations, from
    repeat to repeat.

    The A/A control plays the one-way arm of whole blocks a second time, right beside the
    first (A A' B, or B A A'), with salts of its own and the same history: a turn sent twice
    by itself would find the caches that the first has left, or none of its own earlier
    turns. `again_share` of the blocks, rounded, and at least one where a share is asked for.

    Args:
        conversations: of the workload; warm-up conversations are left out.
        bench: how it is played.
        is_feature_on: False: the one-way arm alone, without A/A.
    """
    measured = [each for each in conversations if not each.is_warmup]
    points = list(dict.fromkeys(each.point for each in measured))
    chunks = [
        chunk
        for point in points
        for chunk in _chunks([each for each in measured if each.point == point], bench)
    ]
    numbers = range(bench.repeats * len(chunks))
    again = set(_share(bench, "again", bench.again_share, numbers)) if is_feature_on else set()
    blocks = []
    for number in numbers:
        repeat, at = divmod(number, len(chunks))
        arms = (ARMS if (repeat + at) % 2 == 0 else ARMS[::-1]) if is_feature_on else ARMS[:1]
        parts = [Part(arm) for arm in arms]
        if number in again:
            parts.insert(arms.index("one_way") + 1, Part("one_way", is_again=True))
        starts_s = _starts_s(bench, number, len(chunks[at]))
        blocks.append(Block(number, repeat, chunks[at], tuple(parts), starts_s))
    return tuple(blocks)


def block_size(bench: BenchSpec) -> int:
    """Conversations of one block, at most."""
    if bench.block_conversations is not None:
        return bench.block_conversations
    if bench.arrivals_per_s is not None:
        return max(OPEN_LOOP_BLOCK, 2 * bench.clients)
    return 1 if bench.clients == 1 else 2 * bench.clients


def plan_aborts(
    conversations: Sequence[Conversation], bench: BenchSpec
) -> dict[tuple[int, int], int]:
    """After how many tokens the client leaves, by (conversation, turn from 1).

    Holds for every arm and repeat. Turns of a single token have no middle to leave in.
    """
    turns = [
        (each.index, turn, planned.answer_tokens)
        for each in conversations
        for turn, planned in enumerate(each.turns, start=1)
        if not each.is_warmup and planned.answer_tokens > 1
    ]
    return {
        (index, turn): _seeded(bench, "tokens", index, turn).randrange(1, tokens)
        for index, turn, tokens in _share(bench, "abort", bench.abort_share, turns)
    }


def _chunks(
    conversations: Sequence[Conversation], bench: BenchSpec
) -> list[tuple[Conversation, ...]]:
    # Of like sizes: a small last one would run at a lower concurrency than the rest.
    many = len(conversations)
    count = ceil(many / block_size(bench))
    return [
        tuple(conversations[many * at // count : many * (at + 1) // count]) for at in range(count)
    ]


def _starts_s(bench: BenchSpec, number: int, count: int) -> tuple[float, ...]:
    rate = bench.arrivals_per_s
    if rate is None:
        return (0.0,) * count
    rng = _seeded(bench, "arrivals", number)
    return tuple(accumulate(rng.expovariate(rate) for _ in range(count)))


def _share(bench: BenchSpec, what: str, share: float, items: Sequence[Item]) -> list[Item]:
    count = max(1, round(share * len(items))) if share and items else 0
    return _seeded(bench, what).sample(items, count)


def _seeded(bench: BenchSpec, *what: object) -> random.Random:
    return random.Random(repr((bench.seed, *what)))  # noqa: S311 - a plan, not a secret
