"""The fuzzer's own parts, without an engine."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.run import Tally, common_tokens, verifiable_tokens
from tests.fuzz.script import (
    EDITS,
    Edit,
    Script,
    Turn,
    first_messages,
    next_messages,
    scripts,
    shrink,
    smaller,
)

WORDS = ["ship", "left", "the", "harbour"]


def played(script: Script) -> list[list[dict[str, object]]]:
    """The messages of each turn, with made-up answers."""
    history, seen = first_messages(script, WORDS), []
    for at, turn in enumerate(script.turns):
        seen.append(next_messages(history, turn, WORDS))
        history = [*seen[-1], {"role": "assistant", "content": f"answer {at}"}]
    return seen


def test_equal_seeds_give_equal_conversations() -> None:
    """A failure can be played again from its seed; another seed plays something else."""
    first, again, other = (list(scripts(seed, 60)) for seed in (5, 5, 6))
    assert first == again != other
    assert [played(script) for script in first] == [played(script) for script in again]
    assert sum(len(script.turns) for script in first) == 60


def test_every_kind_of_edit_changes_a_history() -> None:
    """In 500 turns each edit occurs, and more often than not it changes what was said."""
    seen: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for script in scripts(1, 500):
        history = first_messages(script, WORDS)
        for at, turn in enumerate(script.turns):
            for edit in turn.edits:
                alone = Turn((edit,), 3, 1, turn.seed)
                seen[edit.kind] += 1
                plain = next_messages(history, Turn((), 3, 1, turn.seed), WORDS)
                changed[edit.kind] += next_messages(history, alone, WORDS) != plain
            messages = next_messages(history, turn, WORDS)
            json.dumps(messages)
            history = [
                *messages,
                {"role": "assistant", "content": f"a longer answer {at} of words"},
            ]
    assert set(seen) == set(EDITS)
    assert all(changed[kind] > seen[kind] / 2 for kind in seen), changed


def test_regenerate_asks_the_same_again() -> None:
    """The prompt is the last one: shorter than what the handle holds."""
    user = {"role": "user", "content": "hi"}
    history = [{"role": "system", "content": "s"}, user, {"role": "assistant", "content": "a"}]
    assert next_messages(history, Turn((Edit("regenerate", 1),), 5, 1, 1), WORDS) == history[:-1]


@given(st.lists(st.integers(0, 1), max_size=90), st.lists(st.integers(0, 1), max_size=90))
def test_verifiable_is_all_or_whole_blocks(held: list[int], prompt: list[int]) -> None:
    """The test's own count, made without the code under test."""
    common = common_tokens(held, prompt)
    assert held[:common] == prompt[:common]
    assert held[common : common + 1] != prompt[common : common + 1] or common == len(held)
    tokens = verifiable_tokens(held, prompt)
    assert tokens == len(held) if prompt[: len(held)] == held else tokens % 32 == 0
    assert common - 31 <= tokens <= common


@pytest.mark.parametrize("tries", [100, 3])
async def test_shrinking_keeps_what_fails(tries: int) -> None:
    """Turns and edits that a failure does not need are dropped, within the tries."""
    (script,) = scripts(3, 4)
    guilty = Edit("swap_roles", 1)
    broken = [*script.turns[:2], Turn((Edit("empty", 1), guilty), 3, 1, 1), *script.turns[2:]]
    script = Script(script.system_words, script.seed, tuple(broken))
    calls = 0

    async def fails(one: Script) -> bool:
        nonlocal calls
        calls += 1
        return any(guilty in turn.edits for turn in one.turns)

    small = await shrink(script, fails, tries=tries)
    assert calls <= tries
    assert any(guilty in turn.edits for turn in small.turns)
    if tries == 100:
        assert [turn.edits for turn in small.turns] == [(guilty,)]


def test_smaller_scripts_are_smaller() -> None:
    """One turn or one edit less each; a single turn without edits has nothing to drop."""
    (script,) = scripts(3, 4)
    size = sum(1 + len(turn.edits) for turn in script.turns)
    candidates = list(smaller(script))
    assert candidates
    assert all(sum(1 + len(t.edits) for t in one.turns) < size for one in candidates)
    assert not list(smaller(Script(1, 1, (Turn((), 1, 1, 1),))))


def test_last_line_has_the_fields_that_are_read() -> None:
    """What `make fuzz` prints last."""
    tally = Tally(5, 4, 4, 6, 5, 1)
    assert str(tally) == "fuzz: turns=5 reusable=4 reused=4 compared=6 equal=5 ties=1"
