"""Made-up agents: tool calls and results of skewed sizes, growing context, pauses. Pure.

The answers are the engine's own; a tool call is attached to the answer in the history, as if
the model had asked for it, so that any model will do.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.bench.workloads.distributions import chosen, lognormal
from runtime.bench.workloads.synthetic import Texts, system_message, texts_of
from runtime.contract.profile import AgenticSpec, WorkloadSpec

PARALLEL_SHARE = 0.2
"""Of tool turns that bring the results of two calls."""
PAUSE_MEDIAN_RATIO = 0.6
BEYOND_TTL = (1.05, 1.5)
"""A pause beyond the TTL lasts between so many TTLs."""
ARGUMENT_TOKENS = 6

_TOOLS = {
    "read_file": "Read a file of the working tree.",
    "search_code": "Find lines of the working tree that match an expression.",
    "list_files": "List the files below a folder.",
    "run_tests": "Run tests and return their output.",
    "fetch_page": "Fetch a page and return its text.",
    "query_database": "Run a read-only query and return its rows.",
}
TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"target": {"type": "string"}},
                "required": ["target"],
            },
        },
    }
    for name, description in _TOOLS.items()
)
_NAMES = tuple(_TOOLS)


@dataclass(frozen=True)
class _Drawn:
    """What was drawn for one turn.

    Attributes:
        result_tokens: of every tool result; empty: a user speaks.
        pause_s: before the turn.
    """

    result_tokens: tuple[int, ...]
    pause_s: float


def build_agents(
    tokenizer: Tokenizer, workload: WorkloadSpec, spec: AgenticSpec, ttl_s: float
) -> list[Conversation]:
    """Build the measured conversations.

    Args:
        tokenizer: of the served model.
        workload: numbers and sizes.
        spec: what agents do.
        ttl_s: how long D keeps the KV.

    Raises:
        BadInput: the tokenizer has too few usable ids.
    """
    texts = texts_of(tokenizer, workload.seed)
    opening = system_message(texts, workload, "agent")
    drawn = _draw(workload, spec, ttl_s)

    def turn(index: int, at: int) -> PlannedTurn:
        this, place = drawn[index, at], ("agent", index, at)
        if this.result_tokens:
            calls, messages = _tools(texts, this.result_tokens, place)
        else:
            size = workload.user_tokens + (0 if at else workload.own_prefix_tokens)
            calls, messages = (), ({"role": "user", "content": texts(size, *place)},)
        return PlannedTurn(messages, workload.answer_tokens, this.pause_s, calls)

    return [
        Conversation(
            index,
            is_warmup=False,
            opening=opening,
            turns=tuple(turn(index, at) for at in range(workload.turns)),
            tools=TOOLS,
        )
        for index in range(workload.conversations)
    ]


def _draw(workload: WorkloadSpec, spec: AgenticSpec, ttl_s: float) -> dict[tuple[int, int], _Drawn]:
    """All turns, by conversation and turn from 0."""
    rng = np.random.default_rng(workload.seed)
    places = [(i, k) for i in range(workload.conversations) for k in range(workload.turns)]
    later = [place for place in places if place[1]]
    by_tools = chosen(rng, later, spec.tool_share)
    beyond = chosen(rng, later, spec.beyond_ttl_share)
    sizes = lognormal(
        rng, spec.tool_result_tokens, spec.tool_result_median_ratio, 2 * len(places)
    ).clip(1, spec.tool_result_max_tokens)
    calls = np.where(rng.random(len(places)) < PARALLEL_SHARE, 2, 1)
    gaps_s = _pauses(rng, spec.tool_gap_s, len(places))
    thoughts_s = _pauses(rng, workload.think_s, len(places))
    too_long_s = ttl_s * rng.uniform(*BEYOND_TTL, len(places))
    drawn = {}
    for at, place in enumerate(places):
        is_tool = place in by_tools
        pause_s = (too_long_s if place in beyond else gaps_s if is_tool else thoughts_s)[at]
        results = sizes[2 * at : 2 * at + calls[at]] if is_tool else ()
        tokens = tuple(round(size) for size in results)
        drawn[place] = _Drawn(tokens, float(pause_s) if place[1] else 0.0)
    return drawn


def _pauses(rng: np.random.Generator, average_s: float, count: int) -> NDArray[np.float64]:
    return lognormal(rng, average_s, PAUSE_MEDIAN_RATIO, count) if average_s else np.zeros(count)


def _tools(
    texts: Texts, result_tokens: tuple[int, ...], place: tuple[object, ...]
) -> tuple[tuple[dict[str, Any], ...], tuple[Message, ...]]:
    """The calls of the answer before, and the results."""
    calls, results = [], []
    for at, tokens in enumerate(result_tokens):
        arguments = {"target": texts(ARGUMENT_TOKENS, *place, at, "call").strip()}
        name = _NAMES[(tokens + at) % len(_NAMES)]
        call_id = f"call_{'_'.join(map(str, place[1:]))}_{at}"
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls.append({"id": call_id, "type": "function", "function": function})
        content = texts(tokens, *place, at)
        results.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return tuple(calls), tuple(results)
