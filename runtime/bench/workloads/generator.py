"""vLLM's `generate_conversations` files, read as they are. Pure but for the text files.

Source: vLLM's `benchmarks/multi_turn/README.md`; sizes are drawn as there, by a generator
with a seed of its own, so that single values are others.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError
from tokenizers import Tokenizer

from runtime.bench.workloads.conversation import Conversation, PlannedTurn
from runtime.bench.workloads.distributions import Constant, Distribution
from runtime.bench.workloads.synthetic import Texts, texts_of
from runtime.contract.explain import explain
from runtime.contract.node import Frozen
from runtime.errors import BadInput

FILETYPE = "generate_conversations"
MOST_TOKENS = 100_000_000
"""Of a whole workload: days of prefill, and more memory than a client should need."""
LEAST_USER_TOKENS = 11
"""A user message is never shorter. Source: the fixed request that vLLM puts before a text."""


class PromptInput(Frozen):
    """What users say."""

    num_turns: Distribution
    """User's and assistant's together, as there; an odd number gets one more."""
    common_prefix_num_tokens: Distribution = Constant(distribution="constant", value=0)
    """At the start of every first message, the same for all; part of its `num_tokens`."""
    prefix_num_tokens: Distribution
    """After it, another for every conversation."""
    num_tokens: Distribution
    """Of one user message."""


class PromptOutput(Frozen):
    """What is answered."""

    num_tokens: Distribution


class GeneratorFile(Frozen):
    """The file."""

    filetype: Literal["generate_conversations"]
    num_conversations: int = Field(strict=True, ge=1, le=100_000)
    text_files: tuple[str, ...] = ()
    """Where words come from; left out or empty: made-up words with exact token counts."""
    print_stats: bool = False
    """Read and not used."""
    prompt_input: PromptInput
    prompt_output: PromptOutput


def read_generator(
    raw: object, path: Path, tokenizer: Tokenizer, *, seed: int, most_tokens: int
) -> list[Conversation]:
    """Build the measured conversations of a file.

    Args:
        raw: the file's JSON.
        path: of the file; its text files lie beside it or in the working directory.
        tokenizer: of the served model.
        seed: of sizes and texts.
        most_tokens: longest prompt and answer; sizes stop there, so that none is built
            that no engine would take.

    Raises:
        BadInput: a value cannot be used, or a text file is missing or too short.
    """
    try:
        file = GeneratorFile.model_validate(raw)
    except ValidationError as error:
        raise explain(error, str(path)) from None
    texts = _slices(file, path, tokenizer) if file.text_files else texts_of(tokenizer, seed)
    built: list[Conversation] = []
    total_tokens = 0
    for conversation, tokens in _conversations(
        file, texts, np.random.default_rng(seed), most_tokens
    ):
        built.append(conversation)
        total_tokens += tokens
        if total_tokens > MOST_TOKENS:
            raise BadInput(
                f"{path}: the workload is too large",
                got=f"{len(built)} of {file.num_conversations} conversations have "
                f"{total_tokens} tokens",
                allowed=f"at most {MOST_TOKENS} tokens",
                fix="lower num_conversations or the sizes",
            )
    return built


def _conversations(
    file: GeneratorFile, texts: Texts, rng: np.random.Generator, most: int
) -> Iterator[tuple[Conversation, int]]:
    """The conversations, each with its tokens."""
    says, count = file.prompt_input, file.num_conversations
    turns = np.minimum((np.maximum(says.num_turns.sample(rng, count), 2) + 1) // 2, most)
    own = np.minimum(says.prefix_num_tokens.sample(rng, count), most)
    common_tokens = min(int(says.common_prefix_num_tokens.sample(rng, 1)[0]), most)
    common = texts(common_tokens, "generator", "common")
    for index in range(count):
        sizes = np.minimum(says.num_tokens.sample(rng, turns[index]), most)
        sizes[0] -= common_tokens
        sizes = np.maximum(sizes, LEAST_USER_TOKENS)
        sizes[0] += own[index]
        answers = file.prompt_output.num_tokens.sample(rng, turns[index]).clip(1, most)
        planned, total = [], common_tokens
        for turn, (size, answer) in enumerate(zip(sizes.tolist(), answers.tolist(), strict=True)):
            said = texts(size, "generator", index, turn)
            content = said if turn else common + said
            planned.append(PlannedTurn(({"role": "user", "content": content},), answer))
            total += size + answer
            if total > most:
                break
        yield Conversation(index, is_warmup=False, opening=(), turns=tuple(planned)), total


def _slices(file: GeneratorFile, path: Path, tokenizer: Tokenizer) -> Texts:
    """Texts that are cut from the files one after the other, so that none is used twice."""
    text = "\n".join(_read(path, name) for name in file.text_files)
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    used = 0

    def cut(count_tokens: int, *_place: object) -> str:
        nonlocal used
        first, used = used, used + count_tokens
        if used > len(offsets):
            raise BadInput(
                f"{path}: text_files are too short for these sizes",
                got=f"{len(offsets)} tokens in {', '.join(file.text_files)}",
                allowed=f"more than {used}: no text is used twice",
                fix="name more or longer text files, or leave text_files out for made-up words",
            )
        return text[offsets[first][0] : offsets[used - 1][1]] if count_tokens else ""

    return cut


def _read(path: Path, name: str) -> str:
    places = (path.parent / name, Path(name))
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise BadInput(
            f"{path}: a file of text_files is not there",
            got=name,
            allowed=f"a text file in {path.parent} or in the working directory",
            fix="put any plain text there under that name (vLLM's example names pg1184.txt: curl "
            "-L -o pg1184.txt https://www.gutenberg.org/ebooks/1184.txt.utf-8), or leave "
            "text_files out for made-up words",
        )
    try:
        return found.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path}: a file of text_files cannot be read",
            got=f"{found}: {error}",
            allowed="a text file in UTF-8",
            fix="convert it to UTF-8, or name another",
        ) from None
