"""vLLM's generator files are read as they are."""

import copy
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.bench.workloads import generator
from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.generator import LEAST_USER_TOKENS, read_generator
from runtime.errors import BadInput


def constant(value: float) -> dict[str, Any]:
    return {"distribution": "constant", "value": value}


PUBLISHED: dict[str, Any] = {
    "filetype": "generate_conversations",
    "num_conversations": 10,
    "print_stats": False,
    "prompt_input": {
        "num_turns": constant(10),
        "common_prefix_num_tokens": constant(500),
        "prefix_num_tokens": constant(2000),
        "num_tokens": constant(150),
    },
    "prompt_output": {"num_tokens": constant(300)},
}
"""As the published runs had it, without its text file."""


def changed(**changes: Any) -> dict[str, Any]:
    raw = copy.deepcopy(PUBLISHED)
    for name, value in changes.items():
        section = "prompt_output" if name == "answer" else "prompt_input"
        if name in raw or name == "text_files":
            raw[name] = value
        else:
            raw[section]["num_tokens" if name == "answer" else name] = value
    return raw


@pytest.fixture
def read(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """Reads a file's JSON that lies in a folder of its own."""

    def build(raw: object, most_tokens: int = 32_768) -> list[Conversation]:
        path = tmp_path / "generate.json"
        return read_generator(raw, path, tokenizer, seed=3, most_tokens=most_tokens)

    return build


def users(conversation: Conversation) -> list[str]:
    assert all(len(turn.messages) == 1 for turn in conversation.turns)
    return [turn.messages[0]["content"] for turn in conversation.turns]


def test_the_published_sizes(read: Any, tokenizer: Tokenizer) -> None:
    """Ten turns are five of the user; the common prefix is part of the first one's tokens."""
    built = read(PUBLISHED)
    assert [each.index for each in built] == list(range(10))
    common = tokenizer.decode(tokenizer.encode(users(built[0])[0]).ids[:500])
    for each in built:
        assert each.opening == ()
        assert not each.is_warmup
        assert users(each)[0].startswith(common)
        sizes = [len(tokenizer.encode(user, add_special_tokens=False).ids) for user in users(each)]
        assert sizes == [500 + 2000 + LEAST_USER_TOKENS, 150, 150, 150, 150]
        assert [turn.answer_tokens for turn in each.turns] == [300] * 5
    assert len({user for each in built for user in users(each)}) == 50


def test_all_distributions_of_the_example_file(read: Any) -> None:
    """vLLM's own example: turns, prefixes and answers vary within their bounds."""
    raw = {
        **PUBLISHED,
        "num_conversations": 24,
        "prompt_input": {
            "num_turns": {"distribution": "uniform", "min": 12, "max": 18},
            "common_prefix_num_tokens": constant(500),
            "prefix_num_tokens": {"distribution": "lognormal", "average": 1000, "max": 5000},
            "num_tokens": {"distribution": "poisson", "alpha": 140},
        },
        "prompt_output": {"num_tokens": {"distribution": "zipf", "alpha": 1.5, "max": 120}},
    }
    built = read(raw)
    assert {len(each.turns) for each in built} == {6, 7, 8, 9}
    answers = {turn.answer_tokens for each in built for turn in each.turns}
    assert min(answers) >= 1
    assert max(answers) == 120
    assert read(raw) == built


@pytest.mark.parametrize(("turns", "played"), [(1, 1), (2, 1), (3, 2), (4, 2), (0, 1)])
def test_an_odd_number_of_turns_gets_one_more(read: Any, turns: int, played: int) -> None:
    """Every user turn has an answer."""
    built = read(changed(num_turns=constant(turns)))
    assert {len(each.turns) for each in built} == {played}


def test_the_common_prefix_may_be_left_out(read: Any, tokenizer: Tokenizer) -> None:
    """As there, it is optional."""
    raw = copy.deepcopy(PUBLISHED)
    del raw["prompt_input"]["common_prefix_num_tokens"]
    assert len(tokenizer.encode(users(read(raw)[0])[0]).ids) == 2150


def test_words_come_from_text_files(read: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The files' text is cut into pieces of the wanted sizes, none used twice."""
    text = " ".join(f"word{at}" for at in range(30_000))
    (tmp_path / "book.txt").write_text(text, "utf-8")
    raw = changed(text_files=["book.txt"], num_conversations=3, prefix_num_tokens=constant(200))
    built = read(raw)
    common, rest = "", []
    for at, each in enumerate(built):
        first, *later = users(each)
        common = common or first[: len(first) // 3]
        assert first.startswith(common)
        assert all(user in text for user in later), at
        rest += later
    pieces = sorted(text.index(user) for user in rest)
    assert len(set(pieces)) == len(rest)
    size = len(tokenizer.encode(rest[0], add_special_tokens=False).ids)
    assert size == pytest.approx(150, abs=2)


def test_a_missing_text_file_is_named_with_what_to_do(read: Any) -> None:
    """The message says how to get it, and how to do without."""
    with pytest.raises(BadInput) as caught:
        read(changed(text_files=["pg1184.txt"]))
    assert caught.value.got == "pg1184.txt"
    assert "curl" in caught.value.fix
    assert "leave text_files out" in caught.value.fix


def test_a_text_file_that_is_too_short_is_refused(read: Any, tmp_path: Path) -> None:
    """No text is used twice: shared texts would be found in caches."""
    (tmp_path / "book.txt").write_text("a few words", "utf-8")
    with pytest.raises(BadInput, match="too short"):
        read(changed(text_files=["book.txt"]))


def test_a_text_file_in_another_encoding_is_refused(read: Any, tmp_path: Path) -> None:
    """The message names the file and the byte."""
    (tmp_path / "book.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(BadInput) as caught:
        read(changed(text_files=["book.txt"]))
    assert "book.txt" in caught.value.got
    assert "0xfc" in caught.value.got


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"filetype": "generate_conversations"}, "num_conversations"),
        (changed(filetype="other"), "filetype"),
        (changed(num_conversations=0), "greater than or equal to 1"),
        (changed(num_conversations="10"), "valid integer"),
        (changed(num_conversations=10**7), "less than or equal to 100000"),
        (changed(text_files="pg1184.txt"), "text_files"),
        (changed(text_files=[3]), "text_files.0"),
        (changed(num_turns={"distribution": "constant"}), "prompt_input.num_turns"),
        (changed(num_turns={"distribution": "gauss"}), "prompt_input.num_turns"),
        (changed(answer=300), "prompt_output.num_tokens"),
        ({**PUBLISHED, "prompt_inptu": {}}, "prompt_inptu"),
        ([1], "(whole)"),
    ],
)
def test_every_wrong_value_is_named(read: Any, raw: object, told: str) -> None:
    """The place in the file and what would have been accepted."""
    with pytest.raises(BadInput) as caught:
        read(raw)
    assert told in f"{caught.value.allowed} {caught.value.got}"
    assert "generate.json" in caught.value.what


def test_sizes_no_engine_takes_are_not_built(read: Any) -> None:
    """A size of a billion tokens ends at the longest sequence; so do turns without end."""
    huge = changed(prefix_num_tokens=constant(10**9), num_turns=constant(10**9))
    built = read(huge, most_tokens=1000)
    assert {len(each.turns) for each in built} == {1}
    assert max(len(users(each)[0].split()) for each in built) < 2000
    endless = read(changed(prefix_num_tokens=constant(0), num_turns=constant(10**9)), 3000)
    assert {len(each.turns) for each in endless} == {6}


def test_a_workload_of_days_is_refused(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole has a limit too."""
    monkeypatch.setattr(generator, "MOST_TOKENS", 10_000)
    with pytest.raises(BadInput, match="too large") as caught:
        read(PUBLISHED)
    assert caught.value.got.startswith("3 of 10 conversations")
