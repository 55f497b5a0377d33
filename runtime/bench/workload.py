"""Texts with an exact number of tokens, the same for the same seed. Pure."""

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from runtime.contract.profile import WorkloadSpec
from runtime.errors import BadInput

LEAST_IDS = 64
"""With fewer ids the texts of two conversations would share long runs."""
MOST_ALLOWED_IDS = 1024
"""Bounds the list that every request carries."""


@dataclass(frozen=True)
class Conversation:
    """What the client says in one conversation; answers come from the engine.

    Attributes:
        index: counts from 0, warm-up conversations apart.
        system: the common prefix; empty when the workload has none.
        users: one user message per turn.
    """

    index: int
    is_warmup: bool
    system: str
    users: tuple[str, ...]


def round_trip_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that stay themselves in any sequence that is decoded and encoded again.

    Such an id's text is one space and then letters only: pre-tokenizers cut before
    the space, so that neighbours never merge.

    Returns:
        Sorted ids, possibly none.
    """
    ids = sorted(tokenizer.get_vocab().values())
    texts = dict(zip(ids, tokenizer.decode_batch([[token] for token in ids]), strict=True))
    words = {token: text for token, text in texts.items() if _is_word(text)}
    again = tokenizer.encode_batch(list(words.values()), add_special_tokens=False)
    return [token for token, coded in zip(words, again, strict=True) if coded.ids == [token]]


def _is_word(text: str) -> bool:
    return text.startswith(" ") and text[1:].isalpha()


def usable_ids(tokenizer: Tokenizer) -> list[int]:
    """`round_trip_ids`, or an error when there are too few of them.

    Raises:
        BadInput: fewer than LEAST_IDS.
    """
    ids = round_trip_ids(tokenizer)
    if len(ids) < LEAST_IDS:
        raise BadInput(
            "the tokenizer has too few whole words to build the workload from",
            got=f"{len(ids)} tokens that are a space and letters",
            allowed=f"at least {LEAST_IDS}",
            fix="use a model with a byte-level BPE tokenizer",
        )
    return ids


def allowed_ids(ids: list[int]) -> tuple[int, ...]:
    """At most MOST_ALLOWED_IDS of the ids, evenly spread, for allowed_token_ids."""
    count = min(len(ids), MOST_ALLOWED_IDS)
    return tuple(ids[at * len(ids) // count] for at in range(count))


def build_conversations(tokenizer: Tokenizer, workload: WorkloadSpec) -> list[Conversation]:
    """Build the warm-up conversations and then the measured ones.

    Every text has exactly the tokens that the workload asks for, before the chat
    template adds its own. Warm-up texts are all different from measured ones.

    Raises:
        BadInput: the tokenizer has too few usable ids.
    """
    ids = usable_ids(tokenizer)

    def text(count_tokens: int, *place: object) -> str:
        rng = random.Random(repr((workload.seed, *place)))  # noqa: S311 - texts, not secrets
        return str(tokenizer.decode(rng.choices(ids, k=count_tokens)))

    def conversation(kind: str, index: int) -> Conversation:
        sizes = [workload.user_tokens] * workload.turns
        sizes[0] += workload.own_prefix_tokens
        users = tuple(text(size, kind, index, turn) for turn, size in enumerate(sizes))
        system = text(workload.common_prefix_tokens, kind, "system")
        return Conversation(index, kind == "warmup", system, users)

    counts = {"warmup": workload.warmup_conversations, "measured": workload.conversations}
    return [conversation(kind, index) for kind, count in counts.items() for index in range(count)]
