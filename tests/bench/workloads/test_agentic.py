"""Agents: tools called and answered, skewed sizes, pauses of which some outlast the TTL."""

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.bench.workloads.agentic import TOOLS, build_agents
from runtime.bench.workloads.conversation import Conversation
from runtime.contract.profile import AgenticSpec, WorkloadSpec

TTL_S = 480.0
WORK = WorkloadSpec(
    conversations=20,
    turns=11,
    common_prefix_tokens=40,
    own_prefix_tokens=70,
    user_tokens=20,
    answer_tokens=8,
    think_s=30.0,
    seed=7,
)


def build(tokenizer: Tokenizer, *, work: WorkloadSpec = WORK, **changes: Any) -> list[Conversation]:
    return build_agents(tokenizer, work, AgenticSpec(**changes), TTL_S)


def test_calls_and_results_refer_to_each_other(tokenizer: Tokenizer) -> None:
    """Every call is answered by a result with its id, names a tool, and has a JSON object."""
    ids: list[str] = []
    for conversation in build(tokenizer):
        assert conversation.tools == TOOLS
        names = {tool["function"]["name"] for tool in conversation.tools}
        for turn in conversation.turns:
            called = [call["id"] for call in turn.tool_calls]
            results = [message for message in turn.messages if message["role"] == "tool"]
            assert called == [message["tool_call_id"] for message in results]
            assert bool(called) != any(message["role"] == "user" for message in turn.messages)
            assert all(call["function"]["name"] in names for call in turn.tool_calls)
            for call in turn.tool_calls:
                assert set(json.loads(call["function"]["arguments"])) == {"target"}
            assert turn.said is None
            ids += called
    assert len(ids) == len(set(ids))


def test_shares_are_those_of_the_settings(tokenizer: Tokenizer) -> None:
    """So many later turns bring results, and so many pauses are longer than the TTL."""
    later = [turn for each in build(tokenizer, beyond_ttl_share=0.1) for turn in each.turns[1:]]
    assert len(later) == 200
    assert sum(bool(turn.tool_calls) for turn in later) == 160
    assert sum(turn.think_s > TTL_S for turn in later) == 20
    assert max(turn.think_s for turn in later) <= 1.5 * TTL_S
    parallel = Counter(len(turn.tool_calls) for turn in later)
    assert parallel[2] > 0
    assert set(parallel) == {0, 1, 2}


def test_nobody_waits_before_a_first_turn(tokenizer: Tokenizer) -> None:
    """Pauses are between turns; tools and users have averages of their own."""
    built = build(tokenizer, beyond_ttl_share=0.0, tool_gap_s=2.0)
    assert {each.turns[0].think_s for each in built} == {0.0}
    pauses: dict[bool, list[float]] = {True: [], False: []}
    for turn in itertools.chain.from_iterable(each.turns[1:] for each in built):
        pauses[bool(turn.tool_calls)].append(turn.think_s)
    assert sum(pauses[True]) / len(pauses[True]) == pytest.approx(2.0, rel=0.3)
    assert sum(pauses[False]) / len(pauses[False]) == pytest.approx(30.0, rel=0.5)


def test_without_times_there_are_no_pauses(tokenizer: Tokenizer) -> None:
    """Zero is allowed for all of them."""
    work = WORK.model_copy(update={"think_s": 0.0})
    built = build(tokenizer, work=work, tool_gap_s=0.0, beyond_ttl_share=0.0)
    assert {turn.think_s for each in built for turn in each.turns} == {0.0}


def test_sizes_are_skewed_and_bounded(tokenizer: Tokenizer) -> None:
    """Texts have exact token counts; results are mostly small and some large."""
    built = build(tokenizer, tool_result_tokens=100, tool_result_max_tokens=600)

    def tokens(message: dict[str, Any]) -> int:
        return len(tokenizer.encode(message["content"], add_special_tokens=False).ids)

    results: list[int] = []
    for each in built:
        assert tokens(dict(each.opening[0])) == 40
        for at, turn in enumerate(each.turns):
            for message in turn.messages:
                if message["role"] == "tool":
                    results.append(tokens(message))
                else:
                    assert tokens(message) == (20 if at else 90)
    results.sort()
    assert results[-1] <= 600
    assert results[len(results) // 2] < 60
    assert results[-1] > 300


def test_the_seed_decides_and_nothing_is_shared(tokenizer: Tokenizer) -> None:
    """The system message alone is common to all."""
    built = build(tokenizer)
    assert build(tokenizer) == built
    assert build(tokenizer, work=WORK.model_copy(update={"seed": 8})) != built
    texts = [m["content"] for each in built for turn in each.turns for m in turn.messages]
    assert len(set(texts)) == len(texts)
    assert len({each.opening[0]["content"] for each in built}) == 1
