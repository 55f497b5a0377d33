"""One function for profiles and files, and what it says of files that cannot be used."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.json_file import MOST_BYTES
from runtime.bench.workloads.load import WorkloadFile, load_workload
from runtime.bench.workloads.synthetic import build_conversations
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import AgenticSpec, Profile
from runtime.errors import BadInput

Load = Callable[..., list[Conversation]]


@pytest.fixture
def load(tokenizer: Tokenizer, profile: Profile) -> Load:
    """Loads a profile's workload, or a file, with changes to the workload."""

    def build(path: Path | None = None, *, bench: Any = None, **rest: Any) -> list[Conversation]:
        notes = {name: rest.pop(name) for name in ("on_note",) if name in rest}
        most = [rest.pop(name, None) for name in ("most_conversations", "most_turns")]
        file = None if path is None else WorkloadFile(path, *most)
        changed = profile.model_copy(update={"workload": profile.workload.model_copy(update=rest)})
        return load_workload(changed, tokenizer, file, bench or BenchSpec(), **notes)

    return build


def chat(*users: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "one system"}]
    for user in users:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": "yes"}]
    return {"messages": messages}


CHATS = [chat("a b c", "d e"), chat("f", "g", "h")]
GENERATOR = {
    "filetype": "generate_conversations",
    "num_conversations": 4,
    "prompt_input": {
        "num_turns": {"distribution": "constant", "value": 6},
        "prefix_num_tokens": {"distribution": "constant", "value": 50},
        "num_tokens": {"distribution": "constant", "value": 20},
    },
    "prompt_output": {"num_tokens": {"distribution": "constant", "value": 7}},
}


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), "utf-8")
    return path


def texts(conversations: list[Conversation]) -> set[str]:
    found = {str(message["content"]) for each in conversations for message in each.opening}
    for each in conversations:
        found |= {str(message["content"]) for turn in each.turns for message in turn.messages}
    return found


def test_a_profile_gives_what_it_always_gave(
    load: Load, tokenizer: Tokenizer, profile: Profile
) -> None:
    """The warm-up is first and no longer than two turns; measured ones are untouched."""
    built = build_conversations(tokenizer, profile.workload)
    loaded = load()
    assert [each.is_warmup for each in loaded] == [True, False, False]
    assert loaded[1:] == built[1:]
    assert loaded[0].turns == built[0].turns[:2]


@pytest.mark.parametrize(
    ("name", "content", "turns"),
    [
        ("generator.json", json.dumps(GENERATOR), [3, 3, 3, 3]),
        ("openai.json", json.dumps(CHATS), [2, 3]),
        ("one.json", json.dumps(CHATS[0]), [2]),
        ("openai.jsonl", "".join(f"{json.dumps(each)}\n\n" for each in CHATS), [2, 3]),
        ("crlf.txt", "".join(f"{json.dumps(each)}\r\n" for each in CHATS), [2, 3]),
        ("one.jsonl", json.dumps(CHATS[1]) + "\n", [3]),
        ("pretty.json", json.dumps(CHATS, indent=2), [2, 3]),
        ("bom.json", "\ufeff" + json.dumps(CHATS), [2, 3]),
        (
            "sharegpt.json",
            json.dumps(
                [
                    {
                        "id": "x_0",
                        "conversations": [
                            {"from": "human", "value": "one"},
                            {"from": "gpt", "value": "two"},
                            {"from": "human", "value": "three"},
                        ],
                    }
                ]
            ),
            [2],
        ),
        ("converted.json", json.dumps([{"id": "x", **each} for each in CHATS]), [2, 3]),
    ],
)
def test_every_kind_of_file_is_known_by_its_content(
    load: Load, tmp_path: Path, name: str, content: str, turns: list[int]
) -> None:
    """No flag says what a file is."""
    path = tmp_path / name
    path.write_bytes(content.encode())
    loaded = load(path)
    assert [each.is_warmup for each in loaded] == [True] + [False] * len(turns)
    assert [len(each.turns) for each in loaded[1:]] == turns
    assert [each.index for each in loaded[1:]] == list(range(len(turns)))


@pytest.mark.parametrize("content", [GENERATOR, CHATS])
def test_the_warm_up_of_a_file_has_texts_of_its_own(
    load: Load, tmp_path: Path, content: object
) -> None:
    """It fills no cache that a measured turn could use."""
    loaded = load(write(tmp_path / "file.json", content), warmup_conversations=3)
    warmup = [each for each in loaded if each.is_warmup]
    assert [each.index for each in warmup] == [0, 1, 2]
    assert all(len(each.turns) == 2 for each in warmup)
    assert not texts(warmup) & texts([each for each in loaded if not each.is_warmup])


def test_a_generator_files_seed_is_the_profiles(load: Load, tmp_path: Path) -> None:
    """Two runs have the same texts, another seed others."""
    path = write(tmp_path / "file.json", GENERATOR)
    assert load(path) == load(path)
    assert not texts(load(path)) & texts(load(path, seed=5))


def test_agents_are_built_where_the_profile_says_so(load: Load) -> None:
    """The TTL is that of the profile's D; the warm-up is made of their shapes."""
    loaded = load(agentic=AgenticSpec(beyond_ttl_share=1.0), turns=4)
    assert [each.is_warmup for each in loaded] == [True, False, False]
    assert all(each.tools for each in loaded)
    pauses = [turn.think_s for each in loaded[1:] for turn in each.turns[1:]]
    assert len(pauses) == 6
    assert all(480 < pause <= 720 for pause in pauses)
    assert {turn.think_s for turn in loaded[0].turns} == {0.0}


def test_edits_are_those_of_the_pass(load: Load) -> None:
    """Its share and its seed decide; the warm-up has none."""
    loaded = load(bench=BenchSpec(edit_share=0.5, seed=4))
    edits = [turn.edit for each in loaded for turn in each.turns]
    assert len([edit for edit in edits if edit]) == 2
    assert load(bench=BenchSpec(edit_share=0.5, seed=4)) == loaded
    others = [load(bench=BenchSpec(edit_share=0.5, seed=seed)) for seed in range(5, 9)]
    assert any(other != loaded for other in others)
    assert all(turn.edit is None for turn in loaded[0].turns)


def test_what_the_engines_cannot_take_is_left_out_and_told(load: Load, tmp_path: Path) -> None:
    """Turns beyond max_model_len go, and conversations whose first one is."""
    long = "word " * 5000
    content = [chat(long, "a"), chat("a", "b", long, "c"), chat("a", "b")]
    notes: list[str] = []
    loaded = load(write(tmp_path / "file.json", content), on_note=notes.append)
    measured = [each for each in loaded if not each.is_warmup]
    assert [(each.index, len(each.turns)) for each in measured] == [(1, 2), (2, 2)]
    (note,) = notes
    assert note.startswith("4 of 8 turns are left out, and 1 whole conversations")
    assert "4096 tokens" in note
    load(on_note=notes.append)
    assert len(notes) == 1


def test_only_the_first_conversations_of_a_file(load: Load, tmp_path: Path) -> None:
    """A large file can be cut without rewriting it; what lies behind is not even looked at."""
    path = write(tmp_path / "file.json", [*CHATS, {"no": "conversation"}])
    loaded = load(path, most_conversations=2)
    assert [each.index for each in loaded if not each.is_warmup] == [0, 1]
    loaded = load(write(tmp_path / "generator.json", GENERATOR), most_conversations=3, most_turns=2)
    assert [len(each.turns) for each in loaded if not each.is_warmup] == [2, 2, 2]
    loaded = load(path, most_conversations=2, most_turns=2)
    assert [len(each.turns) for each in loaded if not each.is_warmup] == [2, 2]


@pytest.mark.parametrize("content", [[chat("a"), chat("b")], [chat("word " * 5000, "a")]])
def test_without_a_second_turn_there_is_nothing_to_return(
    load: Load, tmp_path: Path, content: object
) -> None:
    """The message says what would do."""
    with pytest.raises(BadInput, match="no conversation has a second turn") as caught:
        load(write(tmp_path / "file.json", content))
    assert "two turns" in caught.value.allowed


@pytest.mark.parametrize("content", [None, GENERATOR])
def test_only_recorded_answers_are_replayed(load: Load, tmp_path: Path, content: object) -> None:
    """`recorded` asks for a file that holds answers."""
    path = write(tmp_path / "file.json", content) if content else None
    with pytest.raises(BadInput, match="no answers to replay"):
        load(path, answers="recorded")
    assert load(write(tmp_path / "chats.json", CHATS), answers="recorded")[1].turns[1].said == "yes"


GOOD = json.dumps(CHATS[0]).encode()


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b" \n\n", "an empty file"),
        (b"[]", "an empty list"),
        (b"{", "line 1 column 2"),
        (b'[{"messages": [}]', "line 1 column 16"),
        (b"not json at all", "line 1 column 1"),
        (b"a,b,c\n1,2,3\n", "line 1 column 1"),
        (GOOD + b"\n{broken\n", "line 2: Expecting property name"),
        (GOOD + b"\n" + GOOD + b" x\n", "line 2: Extra data"),
        (b"[" * 100_000, "recursion"),
        (b'{"messages": ' * 100_000, "recursion"),
        (b"9" * 10_000, "4300 digits"),
        (GOOD.decode().encode("utf-16"), "can't decode byte 0xff"),
        ("\u00e9".encode("latin-1") + GOOD, "can't decode byte 0xe9"),
        (b"\x00\x01\x02", "line 1 column 1"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(
    load: Load, tmp_path: Path, content: bytes, got: str
) -> None:
    """Empty, cut short, nested without end, in another encoding."""
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load(path)
    assert str(path) in caught.value.what
    assert got in caught.value.got
    assert "docs/workloads.md" in caught.value.fix


def test_a_file_that_is_no_file_is_refused(load: Load, tmp_path: Path) -> None:
    """Missing, a folder, unreadable, or larger than what is read."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            load(path)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        os.truncate(file.fileno(), MOST_BYTES + 1)
    with pytest.raises(BadInput) as caught:
        load(huge)
    assert f"{MOST_BYTES + 1} bytes" in caught.value.got


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([CHATS[0], 3], "[1]: 3"),
        ({"messages": 3}, "(whole).messages: 3"),
        ({"filetype": "else"}, "filetype"),
        ("text", "(whole): 'text'"),
        ([[{"role": "user", "content": "a"}]], "[0]: [{"),
    ],
)
def test_json_of_another_kind_is_refused_with_its_place(
    load: Load, tmp_path: Path, content: object, place: str
) -> None:
    """The message names the file and where in it."""
    path = write(tmp_path / "file.json", content)
    with pytest.raises(BadInput) as caught:
        load(path)
    assert str(path) in caught.value.what
    assert place in caught.value.got


def test_a_line_is_a_place(load: Load, tmp_path: Path) -> None:
    """In JSON lines the line is named."""
    path = tmp_path / "file.jsonl"
    bad = json.dumps({"messages": [{"role": "user", "content": 1}]})
    path.write_bytes(GOOD + b"\n\n" + bad.encode() + b"\n")
    with pytest.raises(BadInput) as caught:
        load(path)
    assert caught.value.got == "line 3.messages[0].content: 1"
