"""Made-up conversations whose texts have an exact number of tokens. Pure."""

import random
from collections.abc import Callable

from tokenizers import Tokenizer

from runtime.bench.turn import Message
from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.contract.profile import WorkloadSpec
from runtime.errors import BadInput

LEAST_IDS = 64
"""With fewer ids the texts of two conversations would share long runs."""
MOST_ALLOWED_IDS = 1024
"""Bounds the list that every request carries."""

Texts = Callable[..., str]
"""`texts(count_tokens, *place)`: the same text for the same place, another for another."""


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
            fix="use a model with a byte-level BPE tokenizer, or a file of real texts with "
            'workload.answers = "free"',
        )
    return ids


def allowed_ids(ids: list[int]) -> tuple[int, ...]:
    """At most MOST_ALLOWED_IDS of the ids, evenly spread, for allowed_token_ids."""
    count = min(len(ids), MOST_ALLOWED_IDS)
    return tuple(ids[at * len(ids) // count] for at in range(count))


def texts_of(tokenizer: Tokenizer, seed: int) -> Texts:
    """Texts of whole words that have exactly the wanted tokens, and keep them.

    Raises:
        BadInput: the tokenizer has too few usable ids.
    """
    ids = usable_ids(tokenizer)

    def text(count_tokens: int, *place: object) -> str:
        rng = random.Random(repr((seed, *place)))  # noqa: S311 - texts, not secrets
        return str(tokenizer.decode(rng.choices(ids, k=count_tokens)))

    return text


def system_message(texts: Texts, workload: WorkloadSpec, kind: str) -> tuple[Message, ...]:
    """The common prefix as a system message; nothing when the workload has none."""
    size = workload.common_prefix_tokens
    return ({"role": "system", "content": texts(size, kind, "system")},) if size else ()


def build_conversations(tokenizer: Tokenizer, workload: WorkloadSpec) -> list[Conversation]:
    """Build the warm-up conversations and then the measured ones, sweep point by point.

    Every text has exactly the tokens that the workload asks for, before the chat
    template adds its own. Warm-up texts are all different from measured ones, and
    those of two sweep points, the common prefix apart.

    Raises:
        BadInput: the tokenizer has too few usable ids.
    """
    texts = texts_of(tokenizer, workload.seed)

    def conversation(kind: str, index: int, own_prefix_tokens: int, point: int) -> Conversation:
        sizes = [workload.user_tokens] * workload.turns
        sizes[0] += own_prefix_tokens
        is_warmup = kind == "warmup"
        turns = tuple(
            PlannedTurn(
                messages=({"role": "user", "content": texts(size, kind, index, turn)},),
                answer_tokens=workload.answer_tokens,
                think_s=workload.think_s if turn and not is_warmup else 0.0,
            )
            for turn, size in enumerate(sizes)
        )
        opening = system_message(texts, workload, kind)
        return Conversation(index, is_warmup, opening, turns, point=point)

    own = workload.own_prefix_tokens
    warmup = [conversation("warmup", at, own, 0) for at in range(workload.warmup_conversations)]
    points = [(point, point) for point in workload.sweep_own_prefix_tokens] or [(own, 0)]
    measured = [each for each in points for _ in range(workload.conversations)]
    return warmup + [conversation("measured", at, *each) for at, each in enumerate(measured)]
