"""A conversation is recognised by its history, and by nothing less."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.router.conversation import Keys, Message, call_part, id_key, keys_of, merged

TEXTS = st.text(max_size=6)
PARTS = st.lists(
    st.one_of(TEXTS, st.integers(-9, 9), st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=2
).map(tuple)
MESSAGES = st.builds(
    Message, st.sampled_from(["system", "user", "tool", "assistant"]), TEXTS, PARTS
)
HISTORIES = st.lists(MESSAGES, max_size=6)
ANSWERS = st.builds(Message, st.just("assistant"), TEXTS, PARTS)
USER = Message("user", "go on")


def keys(messages: list[Message], **changed: Any) -> Keys:
    """Digest a history of one tenant, one id and one shape, but for what is given."""
    what: dict[str, Any] = {"tenant": "t", "conversation": "c", "shape": {"model": "m"}} | changed
    return keys_of(messages, **what)


@given(HISTORIES, ANSWERS, st.lists(st.sampled_from([USER, Message("tool", "42")]), max_size=3))
def test_history_extended_by_its_answer_is_found(
    history: list[Message], answer: Message, more: list[Message]
) -> None:
    """The next turn looks first under the digest that the last one has left."""
    left = keys(history).after(answer)
    assert keys([*history, answer, *more]).answered[0] == left


@given(HISTORIES, ANSWERS, HISTORIES)
def test_branch_finds_the_turn_it_starts_from(
    history: list[Message], answer: Message, more: list[Message]
) -> None:
    """However the conversation went on, an earlier turn's digest is among its own."""
    left = keys(history).after(answer)
    assert left in keys([*history, answer, *more]).answered


@given(HISTORIES, ANSWERS, st.data())
def test_edited_history_is_another(
    history: list[Message], answer: Message, data: st.DataObject
) -> None:
    """A message that was changed, added or left out makes every later digest another."""
    left = keys(history).after(answer)
    at = data.draw(st.integers(0, len(history)))
    changed = data.draw(MESSAGES)
    edited = [*history[:at], changed, *history[at + data.draw(st.integers(0, 1)) :]]
    if [*edited, answer][: len(history) + 1] != [*history, answer]:
        assert left not in keys([*edited, answer]).answered


@given(HISTORIES.filter(lambda history: any(each.role == "assistant" for each in history)))
def test_longest_beginning_comes_first(history: list[Message]) -> None:
    """Digests of the beginnings that end in an answer, the longest first, none missing."""
    ends = [at + 1 for at, message in enumerate(history) if message.role == "assistant"]
    assert keys(history).answered == tuple(keys(history[:end]).whole for end in reversed(ends))


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "other"},
        {"conversation": "other"},
        {"conversation": None},
        {"tenant": "tc", "conversation": ""},
        {"tenant": "", "conversation": "tc"},
        {"shape": {}},
        {"shape": {"model": "m", "tools": []}},
        {"shape": {"model": "m", "cache_salt": "s"}},
        {"shape": {"model": "m", "chat_template_kwargs": {"enable_thinking": False}}},
    ],
    ids=str,
)
def test_other_owner_or_shape_never_matches(changed: dict[str, Any]) -> None:
    """Same messages, but another tenant, id, model, tool, salt or template argument."""
    history = [USER, Message("assistant", "a"), USER]
    ours, theirs = keys(history), keys(history, **changed)
    assert not {ours.whole, *ours.answered} & {theirs.whole, *theirs.answered}
    assert ours.after(USER) != theirs.after(USER)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_tenants_never_share_an_id(tenant: str, id_: str, other: str, other_id: str) -> None:
    """Ids of two tenants are two keys, however both are written."""
    is_same = (tenant, id_) == (other, other_id)
    assert (id_key(tenant, id_) == id_key(other, other_id)) is is_same


def test_id_key_is_the_one_handles_are_kept_under() -> None:
    """What ends a conversation finds what its turns left; no id is no key."""
    assert keys([USER]).id_key == id_key("t", "c")
    assert keys([USER], conversation=None).id_key is None
    assert keys([USER], conversation=None).whole != keys([USER], conversation="").whole


def test_order_of_fields_does_not_matter() -> None:
    """JSON objects have no order."""
    one, two = {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}
    assert keys([USER], shape=one) == keys([USER], shape=two)
    call = Message("assistant", "", (["call", "f", one],))
    assert keys([call]) == keys([replace(call, parts=(["call", "f", two],))])


def test_very_long_history_has_the_latest_digests() -> None:
    """A bounded number of digests is looked for, the longest beginnings of all."""
    history = [USER, Message("assistant", "a")] * 500
    found = keys(history).answered
    assert len(found) == 64
    assert found[0] == keys(history).whole


@pytest.mark.parametrize("text", ["\udcff", "a\nb", "é"])
def test_any_text_can_be_digested(text: str) -> None:
    """Headers with bytes that are no UTF-8 tell conversations apart like others."""
    assert keys([Message("user", text)], conversation=text, tenant=text) != keys([USER])
    assert id_key("t", text) != id_key("t", "x")


def test_deep_json_can_be_digested() -> None:
    """What cannot be written as JSON is refused by the legs, not by a crash here."""
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    assert keys([Message("user", "", (deep,))], shape={"tools": deep}).whole


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ('{"a": 1,\n "b": [2]}', '{"b":[2],"a":1}'),
        ('{"a": 1}', {"a": 1}),
        (' {"cut": ', '{"cut":'),
        ("", ""),
        (None, None),
    ],
)
def test_spacing_of_arguments_does_not_matter(arguments: Any, same: Any) -> None:
    """Clients and templates write a call's arguments anew, engines cut them off."""
    calls = [Message("assistant", "", (call_part("f", given),)) for given in (arguments, same)]
    assert keys([calls[0]]) == keys([calls[1]])


@pytest.mark.parametrize("other", [call_part("g", "{}"), call_part("f", '{"a":1}')])
def test_another_call_is_another(other: Any) -> None:
    """Name and arguments of a call count."""
    ours = Message("assistant", "", (call_part("f", "{}"),))
    assert keys([ours]) != keys([replace(ours, parts=(other,))])


def test_items_of_one_answer_are_one_message() -> None:
    """Text and calls of neighbouring assistant items are joined; others stay apart."""
    items = [
        USER,
        Message("assistant", "a"),
        Message("assistant", "", ("call",)),
        Message("assistant", "b", ("x",)),
        USER,
        USER,
        Message("assistant", "c"),
    ]
    joined = Message("assistant", "ab", ("call", "x"))
    assert merged(items) == [USER, joined, USER, USER, Message("assistant", "c")]


def test_parts_are_not_text() -> None:
    """A text that reads like a tool call is another message than the call."""
    whole = Message("assistant", 'a["x"]').digest(b"")
    assert whole != Message("assistant", "a", ("x",)).digest(b"")
    assert whole != Message("assistant", 'a["x"]', ("x",)).digest(b"")
