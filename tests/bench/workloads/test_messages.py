"""Recorded conversations become turns; what cannot be played is named with its place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.messages import read_conversations
from runtime.contract.profile import Answers, WorkloadSpec
from runtime.errors import BadInput


def spec(answers: Answers = "free") -> WorkloadSpec:
    return WorkloadSpec(
        conversations=2,
        turns=2,
        common_prefix_tokens=0,
        own_prefix_tokens=0,
        user_tokens=1,
        answer_tokens=77,
        answers=answers,
    )


def count(text: str) -> int:
    return len(text.split())


def read(item: object, answers: Answers = "free") -> Conversation:
    (one,) = read_conversations([("[0]", item)], "file.json", spec(answers), count)
    return one


def refused(item: object) -> BadInput:
    with pytest.raises(BadInput) as caught:
        read(item)
    assert caught.value.what.startswith("file.json: 1 of 1 conversations")
    return caught.value


def says(role: Any, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
CHAT = {
    "messages": [
        says("system", "be brief"),
        says("user", "one"),
        says("assistant", "first answer of five words"),
        says("user", "two", think_s=2.5),
        says("assistant", ""),
        says("user", "three"),
    ]
}
AGENT = {
    "tools": [{"type": "function", "function": {"name": "look"}}],
    "messages": [
        says("user", "go"),
        says("assistant", None, tool_calls=[CALL]),
        says("tool", "seen", tool_call_id="c1", think_s=1),
        says("assistant", "done now"),
        says("user", "thanks"),
        says("assistant", "welcome"),
    ],
}


def test_the_engines_answers_are_the_history() -> None:
    """Only users' messages are taken; answers are as long as those recorded."""
    chat = read(CHAT)
    assert chat.opening == (says("system", "be brief"),)
    assert [turn.messages for turn in chat.turns] == [
        (says("user", "one"),),
        (says("user", "two"),),
        (says("user", "three"),),
    ]
    assert [turn.answer_tokens for turn in chat.turns] == [5, 2, 77]
    assert [turn.think_s for turn in chat.turns] == [0, 2.5, 0]
    assert {turn.said for turn in chat.turns} == {None}


def test_recorded_answers_are_replayed_when_asked_for() -> None:
    """Each turn's history then has what the file says, an empty answer too."""
    assert [turn.said for turn in read(CHAT, "recorded").turns] == [
        None,
        "first answer of five words",
        "",
    ]


@pytest.mark.parametrize("answers", ["free", "round_trip", "recorded"])
def test_calls_that_results_answer_are_replayed(answers: Answers) -> None:
    """A result without its call makes no sense; answers without results are the engine's."""
    agent = read(AGENT, answers)
    assert agent.tools == tuple(AGENT["tools"])
    tool = agent.turns[1]
    assert tool.messages == (says("tool", "seen", tool_call_id="c1"),)
    assert tool.tool_calls == (CALL,)
    assert tool.said == ""
    assert tool.think_s == 1
    last = agent.turns[2]
    assert last.tool_calls == ()
    assert last.said == ("done now" if answers == "recorded" else None)
    assert [turn.answer_tokens for turn in agent.turns] == [count(json.dumps([CALL])), 2, 2]


def test_calls_without_results_are_dropped_with_their_answer() -> None:
    """The engine's own answer stands there."""
    chat = read({"messages": [*AGENT["messages"][:2], says("user", "never mind")]})
    assert chat.turns[1].tool_calls == ()
    assert chat.turns[1].said is None


def test_ids_of_calls_may_be_missing() -> None:
    """Results answer calls in order; arguments may be an object."""
    calls = [{"function": {"name": name, "arguments": {"at": name}}} for name in "ab"]
    item = {
        "messages": [
            says("user", "go"),
            says("assistant", "looking", tool_calls=calls),
            says("tool", "A"),
            says("tool", "B"),
        ]
    }
    turn = read(item).turns[1]
    assert [call["function"]["arguments"] for call in turn.tool_calls] == [
        '{"at": "a"}',
        '{"at": "b"}',
    ]
    ids = [call["id"] for call in turn.tool_calls]
    assert [message["tool_call_id"] for message in turn.messages] == ids
    assert len(set(ids)) == 2
    assert turn.said == "looking"


def test_neighbours_of_one_side_belong_together() -> None:
    """Two user messages are one turn; two of the assistant are one answer."""
    item = {
        "messages": [
            *(says("user", "a"), says("user", "b", think_s=1)),
            *(says("assistant", "c d"), says("assistant", "e f g")),
            *(says("system", "now"), says("user", "h")),
        ]
    }
    chat = read(item, "recorded")
    assert [[m["content"] for m in turn.messages] for turn in chat.turns] == [
        ["a", "b"],
        ["now", "h"],
    ]
    assert chat.turns[0].answer_tokens == 5
    assert chat.turns[1].said == "c d\ne f g"


def test_what_no_engine_needs_is_left_out() -> None:
    """Fields of a log are dropped; text in parts, names and developers stay."""
    parts = [{"type": "text", "text": "hi"}]
    item = {
        "id": "x",
        "model": "m",
        "messages": [
            says("developer", "d", refusal=None),
            says("user", parts, name="ann", annotations=[]),
            says("assistant", "yes", reasoning_content="hm"),
            says("user", "more"),
        ],
    }
    chat = read(item)
    assert chat.opening == (says("developer", "d"),)
    assert chat.turns[0].messages == (says("user", parts, name="ann"),)
    assert chat.turns[0].answer_tokens == 2


def test_sharegpt_is_read() -> None:
    """Its names of roles are known; a record that begins with an answer loses it."""
    item = {
        "id": "a_0",
        "conversations": [
            {"from": "gpt", "value": "rest of another"},
            {"from": "human", "value": "one"},
            {"from": "gpt", "value": "a b c"},
            {"from": "user", "value": "two"},
            {"from": "chatgpt", "value": "d e f g"},
        ],
    }
    chat = read(item, "recorded")
    assert chat.opening == ()
    assert [turn.messages for turn in chat.turns] == [
        (says("user", "one"),),
        (says("user", "two"),),
    ]
    assert [turn.answer_tokens for turn in chat.turns] == [3, 4]
    assert chat.turns[1].said == "a b c"
    system = {"conversations": [{"from": "system", "value": "s"}, *item["conversations"][1:]]}
    assert read(system).opening == (says("system", "s"),)


def only(message: object) -> dict[str, Any]:
    """A conversation whose second message is the given one."""
    return {"messages": [says("user", "a"), message, says("user", "b")]}


def with_call(**changes: Any) -> dict[str, Any]:
    return only(says("assistant", None, tool_calls=[{**CALL, **changes}]))


@pytest.mark.parametrize(
    ("item", "place", "allowed"),
    [
        ("text", "[0]: 'text'", "messages or conversations"),
        ([says("user", "a")], "[0]: [{", "messages or conversations"),
        ({"prompt": "a"}, "[0]: an object with prompt", "messages (OpenAI)"),
        ({}, "[0]: an object with nothing", "messages (OpenAI)"),
        ({"messages": []}, "[0].messages: []", "at least one message"),
        ({"messages": "a"}, "[0].messages: 'a'", "at least one message"),
        ({"messages": [says("system", "a")]}, "no message of a user", "at least one"),
        ({"messages": [says("user", "a")], "tools": {}}, "", ""),
        ({"messages": [says("user", "a")], "tools": [1]}, "[0].tools: [1]", "OpenAI tools"),
        (only("text"), "[0].messages[1]: 'text'", "role and content"),
        (only({"content": "a"}), "[0].messages[1].role: None", "system, developer"),
        (only(says("function", "a")), "[0].messages[1].role: 'function'", "tool"),
        (only(says(["user"], "a")), "[0].messages[1].role: ['user']", "system"),
        (only(says("user", None)), "[0].messages[1].content: None", "a text"),
        (only(says("user", 3)), "[0].messages[1].content: 3", "a text"),
        (only(says("assistant", None)), "[0].messages[1].content: None", "a text"),
        (only(says("user", [{"type": "image_url"}])), "[0].messages[1].content", "text parts"),
        (only(says("user", "a", think_s=-1)), "[0].messages[1].think_s: -1", "seconds"),
        (only(says("user", "a", think_s=True)), "[0].messages[1].think_s: True", "seconds"),
        (only(says("user", "a", think_s=float("nan"))), "think_s: nan", "seconds"),
        (only(says("user", "a", think_s=10**400)), "think_s: 1000", "seconds"),
        (only(says("user", "\ud800")), "[0].messages[1]", "valid Unicode"),
        (only(says("tool", "a")), "[0].messages[1].tool_call_id: None", "a call in the answer"),
        (only(says("assistant", None, tool_calls={"a": 1})), "[1].tool_calls", "a list"),
        (with_call(function=None), "[1].tool_calls[0]: {", "function.name"),
        (with_call(function={"name": 3}), "[1].tool_calls[0]: {", "function.name"),
        (
            with_call(function={"name": "f", "arguments": "{"}),
            "[1].tool_calls[0].function.arguments: '{'",
            "JSON object",
        ),
        (with_call(function={"name": "f", "arguments": "[1]"}), "arguments: '[1]'", "object"),
        ({"conversations": [{"from": "human"}]}, "[0].conversations[0]: {", "from and value"),
        ({"conversations": [{"from": "tool", "value": ""}]}, "[0].from: 'tool'", "human"),
        ({"conversations": [{"from": ["a"], "value": ""}]}, "[0].from: ['a']", "human"),
        ({"conversations": [{"from": "human", "value": None}]}, "[0].content: None", "a text"),
    ],
)
def test_what_cannot_be_played_is_named(item: object, place: str, allowed: str) -> None:
    """The place, what stands there, and what would have been accepted."""
    if not place:  # an empty object of tools is none
        assert read(item).tools == ()
        return
    problem = refused(item)
    assert place in problem.got
    assert allowed in problem.allowed
    assert problem.fix


def test_a_result_must_name_a_call_before_it() -> None:
    """Each call is answered once."""
    messages = [*AGENT["messages"][:3], says("tool", "again", tool_call_id="c1")]
    assert "[0].messages[3].tool_call_id: 'c1'" in refused({"messages": messages}).got
    other = [*AGENT["messages"][:2], says("tool", "a", tool_call_id="c9")]
    problem = refused({"messages": other})
    assert "'c9'" in problem.got
    assert "one of c1" in problem.allowed


def test_problems_are_told_together_and_not_without_end() -> None:
    """Five conversations are named, the others counted; long values are cut."""
    items: list[tuple[str, object]] = [(f"[{at}]", {"messages": "x" * 1000}) for at in range(20)]
    items.append(("[20]", CHAT))
    with pytest.raises(BadInput) as caught:
        read_conversations(items, "file.json", spec(), count)
    assert "20 of 21 conversations" in caught.value.what
    assert caught.value.got.count("messages") == 5
    assert len(caught.value.got) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["messages", "role", "content", "tool_calls", "from", "value", "text"]),
            inner | st.sampled_from(["user", "assistant", "tool"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(item=JSON | st.lists(JSON, max_size=4).map(lambda each: {"messages": each}))
def test_any_json_is_read_or_refused(item: object) -> None:
    """Nothing but BadInput is raised, whatever the file holds."""
    try:
        conversation = read(item)
    except BadInput as problem:
        assert "[0]" in problem.got  # noqa: PT017 - either way is good
    else:
        assert conversation.turns


ROLES = st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=12)


@given(roles=ROLES)
def test_no_message_of_a_user_is_lost_or_moved(roles: list[str]) -> None:
    """Users' messages are sent in order, one turn per answer between them."""
    messages = [says(role, f"m{at}") for at, role in enumerate(roles)]
    if "user" not in roles:
        refused({"messages": messages})
        return
    chat = read({"messages": messages}, "recorded")
    sent = [m["content"] for turn in chat.turns for m in turn.messages if m["role"] == "user"]
    assert sent == [m["content"] for m in messages if m["role"] == "user"]
    heard = "\n".join(turn.said for turn in chat.turns if turn.said)
    opening = [m["content"] for m in chat.opening]
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    last = len(roles) - next(at for at, role in enumerate(reversed(roles)) if role != "assistant")
    said_before_a_turn = [m["content"] for m in messages[:last] if m["role"] == "assistant"]
    assert heard.split() == [text for text in said_before_a_turn if text not in opening]
    assert set(said) - set(said_before_a_turn) == {m["content"] for m in messages[last:]}
