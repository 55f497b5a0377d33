"""Texts have exact token counts, repeat for a seed, and share only what they should."""

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.synthetic import (
    LEAST_IDS,
    MOST_ALLOWED_IDS,
    allowed_ids,
    build_conversations,
    round_trip_ids,
)
from runtime.contract.profile import WorkloadSpec
from runtime.errors import BadInput

SPEC = WorkloadSpec(
    conversations=3,
    turns=2,
    common_prefix_tokens=40,
    own_prefix_tokens=70,
    user_tokens=20,
    answer_tokens=8,
    warmup_conversations=2,
    seed=7,
)


@pytest.fixture(scope="module")
def count_tokens(tokenizer: Tokenizer) -> Callable[[str], int]:
    """Tokens of a text."""
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def users_of(conversation: Conversation) -> list[str]:
    return [turn.messages[0]["content"] for turn in conversation.turns]


def system_of(conversation: Conversation) -> str:
    (message,) = conversation.opening
    assert message["role"] == "system"
    return str(message["content"])


def texts_of(conversation: Conversation) -> set[str]:
    return {system_of(conversation), *users_of(conversation)}


@settings(deadline=None, max_examples=100)
@given(picks=st.lists(st.integers(min_value=0), min_size=1, max_size=40))
def test_sequences_of_usable_ids_survive_decoding(tokenizer: Tokenizer, picks: list[int]) -> None:
    """Any sequence of the ids decodes to a text that encodes to the same sequence."""
    usable = round_trip_ids(tokenizer)
    ids = [usable[pick % len(usable)] for pick in picks]
    assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False).ids == ids


def test_usable_ids_are_whole_words(tokenizer: Tokenizer) -> None:
    """Pieces of words, bytes and special tokens are not among the ids."""
    texts = [tokenizer.decode([token]) for token in round_trip_ids(tokenizer)]
    assert len(texts) >= LEAST_IDS
    assert all(text[0] == " " and text[1:].isalpha() for text in texts)


def test_words_that_no_merge_reaches_are_left_out(tokenizer: Tokenizer) -> None:
    """A word of the vocabulary that its own text does not encode to is not usable."""
    saved = json.loads(tokenizer.to_str())
    unreached = len(saved["model"]["vocab"])
    saved["model"]["vocab"]["Ġzzz"] = unreached
    changed = Tokenizer.from_str(json.dumps(saved))
    assert changed.decode([unreached]) == " zzz"
    assert round_trip_ids(changed) == round_trip_ids(tokenizer)


def test_texts_have_the_wanted_token_counts(
    tokenizer: Tokenizer, count_tokens: Callable[[str], int]
) -> None:
    """Every text has exactly the tokens that its place in the workload asks for."""
    built = build_conversations(tokenizer, SPEC)
    assert len(built) == 5
    for conversation in built:
        assert count_tokens(system_of(conversation)) == 40
        assert [count_tokens(user) for user in users_of(conversation)] == [90, 20]


def test_the_seed_decides_every_text(tokenizer: Tokenizer) -> None:
    """The same seed gives the same conversations and another seed other ones."""
    again = build_conversations(tokenizer, SPEC)
    other = build_conversations(tokenizer, SPEC.model_copy(update={"seed": 8}))
    assert build_conversations(tokenizer, SPEC) == again
    assert not texts_of(other[0]) & texts_of(again[0])


def test_conversations_share_the_common_prefix_only(tokenizer: Tokenizer) -> None:
    """Measured conversations have one system message and no other text in common."""
    measured = [c for c in build_conversations(tokenizer, SPEC) if not c.is_warmup]
    assert [c.index for c in measured] == [0, 1, 2]
    assert len({system_of(c) for c in measured}) == 1
    assert len({user for c in measured for user in users_of(c)}) == 6


def test_warmup_shares_no_text_with_the_measured_part(tokenizer: Tokenizer) -> None:
    """Warm-up fills no cache that a measured turn could use."""
    built = build_conversations(tokenizer, SPEC)
    warmup = set().union(*(texts_of(c) for c in built if c.is_warmup))
    measured = set().union(*(texts_of(c) for c in built if not c.is_warmup))
    assert len(warmup) == 5
    assert not warmup & measured


def test_no_common_prefix_gives_no_system_message(tokenizer: Tokenizer) -> None:
    """A workload without a common prefix has no system message."""
    spec = SPEC.model_copy(update={"common_prefix_tokens": 0})
    assert build_conversations(tokenizer, spec)[0].opening == ()


def test_a_sweep_has_conversations_of_its_own_at_every_point(
    tokenizer: Tokenizer, count_tokens: Callable[[str], int]
) -> None:
    """Points come in order, with as many conversations each and no user text in common."""
    spec = SPEC.model_copy(update={"sweep_own_prefix_tokens": (30, 10)})
    built = build_conversations(tokenizer, spec)
    measured = [c for c in built if not c.is_warmup]
    assert [(c.index, c.point) for c in measured] == [*enumerate([30] * 3 + [10] * 3)]
    assert [count_tokens(users_of(c)[0]) for c in measured] == [50] * 3 + [30] * 3
    assert len({user for c in measured for user in users_of(c)}) == 12
    assert len({system_of(c) for c in measured}) == 1
    assert [count_tokens(users_of(c)[0]) for c in built if c.is_warmup] == [90, 90]


def test_without_a_sweep_texts_stay_as_they_were(tokenizer: Tokenizer) -> None:
    """A seed's texts do not change between versions: figures can be compared."""
    built = build_conversations(tokenizer, SPEC)
    ids = round_trip_ids(tokenizer)
    rng = random.Random(repr((7, "measured", 1, 0)))  # noqa: S311 - texts, not secrets
    assert users_of(built[3])[0] == tokenizer.decode(rng.choices(ids, k=90))
    assert {c.point for c in built} == {0}


def test_think_times_are_between_turns_alone(tokenizer: Tokenizer) -> None:
    """Nobody waits before a first message, nor in the warm-up."""
    built = build_conversations(tokenizer, SPEC.model_copy(update={"think_s": 1.5}))
    waits = {c.is_warmup: [turn.think_s for turn in c.turns] for c in built}
    assert waits == {True: [0, 0], False: [0, 1.5]}


def test_a_tokenizer_without_words_is_refused() -> None:
    """Fewer than 64 usable ids end with a message that says how many there are."""
    alphabet = {char: at for at, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    with pytest.raises(BadInput) as caught:
        build_conversations(bytes_only, SPEC)
    assert caught.value.got.startswith("0 tokens")


@pytest.mark.parametrize(("have", "want"), [(64, 64), (1024, 1024), (1025, 1024), (90_000, 1024)])
def test_allowed_ids_are_bounded_and_spread(have: int, want: int) -> None:
    """At most 1024 different ids go out, from the whole range."""
    chosen = allowed_ids(list(range(have)))
    assert len(set(chosen)) == want <= MOST_ALLOWED_IDS
    assert chosen[0] == 0
    assert chosen[-1] >= have - 1 - have // want
