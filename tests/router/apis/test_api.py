"""What all client APIs share: checks, texts, and the fields that shape a prompt."""

from collections.abc import Callable
from typing import Any

import pytest

from runtime.router.apis import APIS
from runtime.router.apis.api import Texts, text_of
from runtime.router.failure import RequestFailed

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}]},
}
LISTS = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/responses": "input"}


@pytest.mark.parametrize("path", APIS)
def test_plain_request_takes_both_legs(path: str) -> None:
    """The least body that each API allows is served over P and D."""
    api = APIS[path]
    assert api.path == path
    api.check(BODIES[path])
    assert api.why_direct(BODIES[path]) is None


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("value", [None, [], "", 7, {"role": "user"}], ids=str)
def test_messages_that_are_no_list_are_refused(path: str, value: Any) -> None:
    """The refusal is a 400 that names the field and says what it may be."""
    with pytest.raises(RequestFailed, match="non-empty list") as told:
        APIS[path].check({LISTS[path]: value})
    assert (told.value.status, told.value.param) == (400, LISTS[path])


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("item", ["text", None, 7, []], ids=str)
def test_message_that_is_no_object_is_refused(path: str, item: Any) -> None:
    """The refusal names the field and the place in the list."""
    field = LISTS[path]
    with pytest.raises(RequestFailed) as told:
        APIS[path].check({field: [{"role": "user", "content": "hi"}, item]})
    assert told.value.param == f"{field}[1]"


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("value", [None, 7, True, "x", {}, {"a": 1}, [None], [[7]], [{}]], ids=str)
@pytest.mark.parametrize(
    "field", ["role", "content", "tool_calls", "type", "arguments", "output", "name", "function"]
)
def test_odd_messages_are_left_to_the_engine(path: str, value: Any, field: str) -> None:
    """Whatever stands in a message, its history can be told: the engine says what is wrong."""
    history = APIS[path].history
    assert history is not None
    for kind in ({}, {"type": "function_call"}, {"type": "function_call_output"}):
        message = {"role": "assistant", **kind, field: value}
        assert history({LISTS[path]: [message]}) is not None
    content = [{"type": kind, field: value} for kind in ("text", "tool_use", "tool_result")]
    history({LISTS[path]: [{"role": "user", "content": content}]})


@pytest.mark.parametrize("path", APIS)
def test_shape_has_what_shapes_the_prompt(path: str) -> None:
    """Model and salt always do, sampling never does, and two APIs never meet."""
    body = {**BODIES[path], "model": "m", "cache_salt": "s", "temperature": 0, "stream": True}
    assert APIS[path].shape(body) == {"path": path, "model": "m", "cache_salt": "s"}


@pytest.mark.parametrize("field", ["tools", "chat_template_kwargs"])
@pytest.mark.parametrize("path", LISTS)
def test_shape_has_tools_and_template_arguments(path: str, field: str) -> None:
    """Both stand in the prompt wherever there are messages."""
    assert APIS[path].shape({field: [1]})[field] == [1]


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(("temperature", "is_greedy"), [(0, True), (0.0, True), (0.7, False)])
def test_greedy_is_what_must_repeat(path: str, temperature: float, is_greedy: bool) -> None:
    """Only a temperature of zero, said aloud, makes an answer comparable."""
    assert APIS[path].greedy({"temperature": temperature}) is is_greedy
    assert not APIS[path].greedy({})


@pytest.mark.parametrize("path", APIS)
def test_prefill_leg_is_short_and_whole(path: str) -> None:
    """P's leg is not streamed and one token long; nothing in it asks for more."""
    api = APIS[path]
    assert api.one_token["stream"] is False
    assert 1 in api.one_token.values()
    assert not api.not_for_prefill & set(api.one_token)
    assert set(api.one_token) - {"stream", "store"} <= set(api.length_fields)


@pytest.mark.parametrize(
    ("content", "text", "others"),
    [
        ("ab", "ab", []),
        (["a", "b"], "ab", []),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", []),
        ([{"type": "text", "text": "a"}, {"image": 1}], "a", [{"image": 1}]),
        (None, "", []),
        (7, "", []),
    ],
    ids=str,
)
def test_text_of_content(content: Any, text: str, others: list[Any]) -> None:
    """A string and its text parts are the same text; what is no text is kept beside it."""
    parts: list[Any] = []
    assert (text_of(content, parts), parts) == (text, others)


@pytest.mark.parametrize("between", [lambda _: None, Texts.compact], ids=["loose", "compacted"])
def test_pieces_come_together_in_order(between: Callable[[Texts], None]) -> None:
    """Texts and calls are the same whether what has come is joined in between or not."""
    texts = Texts()
    for piece in ("a", None, "b", 7, "c"):
        texts.text(piece)
        between(texts)
    for key, name, arguments in ((1, "f", None), (0, "g", "{"), (1, None, "{}"), (0, None, "}")):
        texts.call(key, name, arguments)
        between(texts)
    assert texts.joined() == ("abc", [["f", "{}"], ["g", "{}"]])
