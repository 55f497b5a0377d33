"""Blocks, arms in them, arrivals and aborts."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.order import Block, plan_aborts, plan_blocks
from runtime.contract.bench import BenchSpec
from tests.bench.stub_router import ANSWER_TOKENS, talk


def planned(count: int, *, points: tuple[int, ...] = (0,), **bench: Any) -> tuple[Block, ...]:
    talks = [
        talk(at * count + index, point=point)
        for at, point in enumerate(points)
        for index in range(count)
    ]
    return plan_blocks([talk(0, is_warmup=True), *talks], BenchSpec(**bench))


def order(blocks: tuple[Block, ...]) -> list[str]:
    """Arms in their order of play: A one way, B bidirectional, a the A/A control."""
    letters = {("one_way", False): "A", ("bidirectional", False): "B", ("one_way", True): "a"}
    return ["".join(letters[part.arm, part.is_again] for part in block.parts) for block in blocks]


def sizes(blocks: tuple[Block, ...]) -> list[int]:
    return [len(block.conversations) for block in blocks]


def test_one_client_takes_conversation_by_conversation() -> None:
    """The order of the arms alternates; warm-up conversations are no part of it."""
    blocks = planned(4, again_share=0)
    assert order(blocks) == ["AB", "BA", "AB", "BA"]
    assert [block.conversations[0].index for block in blocks] == [0, 1, 2, 3]
    assert [block.number for block in blocks] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("bench", "expected"),
    [
        ({"clients": 2}, [3, 3, 4]),
        ({"clients": 2, "block_conversations": 5}, [5, 5]),
        ({"clients": 8}, [10]),
        ({"block_conversations": 2}, [2] * 5),
        ({"arrivals_per_s": 1.0}, [10]),
    ],
)
def test_blocks_hold_twice_the_clients_and_are_of_like_size(
    bench: dict[str, Any], expected: list[int]
) -> None:
    """A small last block would run at another concurrency."""
    assert sizes(planned(10, again_share=0, **bench)) == expected


def test_a_repeat_begins_with_the_other_arm() -> None:
    """Over two repeats each conversation has had both orders."""
    blocks = planned(3, repeats=2, again_share=0)
    assert order(blocks) == ["AB", "BA", "AB", "BA", "AB", "BA"]
    assert [block.repeat for block in blocks] == [0, 0, 0, 1, 1, 1]
    assert [block.number for block in blocks] == list(range(6))


def test_points_come_in_order_and_never_in_one_block() -> None:
    """A block of mixed prefix lengths would be of neither point."""
    blocks = planned(3, points=(2000, 500), clients=2, repeats=2)
    points = [{each.point for each in block.conversations} for block in blocks]
    assert points == [{2000}, {500}] * 2


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.1, 2), (0.5, 10), (1.0, 20)])
def test_the_control_has_its_share_of_blocks(share: float, count: int) -> None:
    """At least one where a share is asked for; always right after the one-way arm."""
    played = order(planned(20, again_share=share))
    assert sum("a" in parts for parts in played) == count
    assert all("a" not in parts or "Aa" in parts for parts in played)


def test_without_the_feature_there_is_one_arm() -> None:
    """No return and no control."""
    blocks = plan_blocks([talk(0), talk(1)], BenchSpec(again_share=1.0), is_feature_on=False)
    assert order(blocks) == ["A", "A"]


def test_nothing_to_measure_is_no_block() -> None:
    """Warm-up alone is none."""
    assert planned(0) == ()


@given(
    count=st.integers(1, 30),
    clients=st.integers(1, 9),
    repeats=st.integers(1, 3),
    share=st.floats(0, 1),
    rate=st.none() | st.just(2.0),
    seed=st.integers(0, 5),
)
def test_every_conversation_is_played_once_by_each_arm(
    count: int, clients: int, repeats: int, share: float, rate: float | None, seed: int
) -> None:
    """Whatever is asked for, in every repeat."""
    blocks = planned(
        count,
        points=(1, 2),
        clients=clients,
        repeats=repeats,
        again_share=share,
        arrivals_per_s=rate,
        seed=seed,
    )
    seen = Counter(
        (block.repeat, part, each.index)
        for block in blocks
        for part in block.parts
        for each in block.conversations
    )
    assert set(seen.values()) == {1}
    assert sum(not part.is_again for _, part, _ in seen) == 2 * 2 * count * repeats


def test_a_closed_loop_waits_for_no_moment() -> None:
    """Free clients begin at once."""
    assert [block.starts_s for block in planned(4, clients=2)] == [(0.0,) * 4]


def test_arrivals_are_poisson_and_seeded() -> None:
    """The mean gap is 1 / rate and so is its spread; another seed, other moments."""
    bench: dict[str, Any] = {"arrivals_per_s": 20.0, "block_conversations": 2000}
    (block,) = planned(2000, **bench)
    gaps = [later - sooner for sooner, later in pairwise((0.0, *block.starts_s))]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.05, rel=0.1)
    assert spread == pytest.approx(0.05, rel=0.1)
    assert planned(2000, **bench)[0].starts_s == block.starts_s
    assert planned(2000, seed=1, **bench)[0].starts_s != block.starts_s


def test_blocks_arrive_at_moments_of_their_own() -> None:
    """A pattern that came back in each block would be no Poisson process."""
    one, two = planned(8, arrivals_per_s=1.0, block_conversations=4)
    assert one.starts_s != two.starts_s


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.25, 15), (1.0, 60)])
def test_aborts_have_their_share_of_turns(share: float, count: int) -> None:
    """Somewhere in mid-answer, never in a warm-up; the same for the same seed."""
    talks = [talk(99, is_warmup=True), *(talk(index) for index in range(20))]
    aborts = plan_aborts(talks, BenchSpec(abort_share=share))
    assert len(aborts) == count
    assert set(aborts.values()) <= set(range(1, ANSWER_TOKENS))
    assert 99 not in {index for index, _ in aborts}
    assert plan_aborts(talks, BenchSpec(abort_share=share)) == aborts


def test_another_seed_leaves_elsewhere() -> None:
    """Turns and tokens both come from the seed."""
    talks = [talk(index) for index in range(20)]
    one, two = (plan_aborts(talks, BenchSpec(abort_share=0.5, seed=seed)) for seed in (0, 1))
    assert set(one) != set(two)
    assert [one[key] for key in sorted(one)] != [two[key] for key in sorted(two)]


def test_an_answer_of_one_token_has_no_middle() -> None:
    """Its client stays."""
    short = talk(0)
    turns = tuple(replace(turn, answer_tokens=1) for turn in short.turns)
    assert plan_aborts([replace(short, turns=turns)], BenchSpec(abort_share=1.0)) == {}
