"""Tokens, answers and block hashes of the mock engine. Pure, all from the inputs."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

HASH_ALGORITHM = "sha256_cbor"
SEED_FINGERPRINT = "00" * 8
"""Of every mock engine: they all hash alike."""

LogprobEntry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One generated token and the ones it was preferred to, best first."""

    token_id: int
    logprob: float
    ranked: tuple[tuple[int, float], ...]


class MockTokens:
    """A tokenizer with a chat template and a rule for the next token.

    Args:
        folder: model folder; only its tokenizer.json is read.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        special = {
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._plain_ids = sorted(set(self._tokenizer.get_vocab().values()) - special)

    def prompt_ids(self, messages: Iterable[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins."""
        turns = "".join(
            f"<|im_start|>{message['role']}\n{_text_of(message.get('content'))}<|im_end|>\n"
            for message in messages
        )
        text = f"{turns}<|im_start|>assistant\n"
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        """What the ids say, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def answer(
        self,
        prompt: Sequence[int],
        count: int,
        *,
        allowed: Sequence[int] | None = None,
        ranked: int = 0,
    ) -> list[Choice]:
        """Generate tokens that follow from the whole history, and from nothing else.

        Args:
            prompt: token ids of the prompt.
            count: tokens to generate.
            allowed: the only ids the answer may hold; None for all but special ones.
            ranked: how many of the best tokens to name at each position.
        """
        candidates = sorted(set(allowed)) if allowed else self._plain_ids
        history = hashlib.sha256(_packed(prompt))
        choices = []
        for _ in range(count):
            choice = _choose(history.digest(), candidates, ranked)
            history.update(_packed([choice.token_id]))
            choices.append(choice)
        return choices

    def logprob_entry(self, choice: Choice) -> LogprobEntry:
        """A choice as an element of `logprobs.content`."""
        return {
            **self._named(choice.token_id, choice.logprob),
            "top_logprobs": [self._named(*ranked) for ranked in choice.ranked],
        }

    def _named(self, token_id: int, logprob: float) -> LogprobEntry:
        token = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def block_hashes(ids: Sequence[int], block_size_tokens: int, salt: str | None) -> list[bytes]:
    """Hash chain over the whole blocks of a sequence; the salt is in the first block."""
    hashes: list[bytes] = []
    parent = (salt or "").encode()
    for end in range(block_size_tokens, len(ids) + 1, block_size_tokens):
        parent = hashlib.sha256(parent + _packed(ids[end - block_size_tokens : end])).digest()
        hashes.append(parent)
    return hashes


def tail_hash(ids: Sequence[int], start: int, block_size_tokens: int, salt: str | None) -> bytes:
    """Hash of the tokens from `start` on, chained to the whole blocks before it."""
    before = block_hashes(ids[:start], block_size_tokens, salt)
    parent = before[-1] if before else (salt or "").encode()
    return hashlib.sha256(parent + _packed(ids[start:])).digest()


def _choose(digest: bytes, candidates: Sequence[int], ranked: int) -> Choice:
    at = int.from_bytes(digest[:8], "big")
    best = -0.1 - digest[8] / 1000
    # Half a nat apart: no two tokens tie.
    order = tuple(
        (candidates[(at + rank) % len(candidates)], best - rank / 2)
        for rank in range(min(max(ranked, 1), len(candidates)))
    )
    return Choice(order[0][0], best, order if ranked else ())


def _packed(ids: Sequence[int]) -> bytes:
    return b"".join(token_id.to_bytes(4, "big") for token_id in ids)


def _text_of(content: Any) -> str:
    """A message's text: a string, or OpenAI's list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
