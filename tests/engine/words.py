"""Plain words of the tiny model's vocabulary."""

from pathlib import Path

from runtime.local.model import load_tokenizer


def plain_words(model: Path) -> list[str]:
    """Words that are one token each after a space, in a fixed order."""
    vocabulary = load_tokenizer(model).get_vocab()
    return sorted(word[1:] for word in vocabulary if word[0] == "Ġ" and word[1:].isalpha())
