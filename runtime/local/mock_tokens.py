"""Tokens, answers and block hashes of the mock engine. Pure, all from the inputs."""

import hashlib
import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

HASH_ALGORITHM = "sha256_cbor"
SEED_FINGERPRINT = "00" * 8
"""Of every mock engine: they all hash alike."""

_ENCODED_TEXTS = 64
"""Prompts whose tokens are remembered: both engines of a process see each one."""

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
        self._path = str(folder / "tokenizer.json")
        self._tokenizer = _tokenizer(self._path)
        special = {
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._plain_ids = sorted(set(self._tokenizer.get_vocab().values()) - special)

    def prompt_ids(self, messages: Iterable[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins."""
        turns = "".join(
            f"<|im_start|>{message['role']}\n{_message_text(message)}<|im_end|>\n"
            for message in messages
        )
        return self.encoded(f"{turns}<|im_start|>assistant\n")

    def encoded(self, text: str) -> list[int]:
        """Token ids of a text as it stands."""
        return list(_encoded(self._path, text))

    def text(self, ids: Sequence[int]) -> str:
        """What the ids say, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def pieces(self, ids: Sequence[int]) -> Iterator[str]:
        """What each token adds to the text; the pieces joined are the text of all ids.

        A token may end inside a character, which is then shown with a later one.
        """
        before: list[int] = []
        before_text = ""
        held: list[int] = []
        for at, token_id in enumerate(ids, start=1):
            held.append(token_id)
            shown = self.text([*before, *held])
            if shown.endswith("\ufffd") and at < len(ids):
                yield ""
                continue
            yield shown[len(before_text) :]
            before, held = held, []
            before_text = self.text(before)

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


class HashedTokens:
    """A token sequence with the hash chain over its whole blocks, each hashed once.

    Args:
        ids: its tokens.
        block_size_tokens: tokens in a block.
        salt: goes into the first block.
    """

    def __init__(self, ids: Sequence[int], block_size_tokens: int, salt: str | None) -> None:
        self.ids = list(ids)
        self._size = block_size_tokens
        self._root = (salt or "").encode()
        self.hashes: list[bytes] = []
        self._hash_new_blocks()

    def extend(self, ids: Iterable[int]) -> None:
        """Append tokens."""
        self.ids.extend(ids)
        self._hash_new_blocks()

    def tail_hash(self, start: int, end: int) -> bytes:
        """Hash of the tokens start..end-1, chained to the whole blocks before them."""
        whole = start // self._size
        parent = self.hashes[whole - 1] if whole else self._root
        return hashlib.sha256(parent + _packed(self.ids[start:end])).digest()

    def _hash_new_blocks(self) -> None:
        parent = self.hashes[-1] if self.hashes else self._root
        for start in range(len(self.hashes) * self._size, len(self.ids), self._size):
            block = self.ids[start : start + self._size]
            if len(block) < self._size:
                break
            parent = hashlib.sha256(parent + _packed(block)).digest()
            self.hashes.append(parent)


def block_hashes(ids: Sequence[int], block_size_tokens: int, salt: str | None) -> list[bytes]:
    """Hash chain over the whole blocks of a sequence; the salt is in the first block."""
    return HashedTokens(ids, block_size_tokens, salt).hashes


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
    packed = array("I", ids)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


@lru_cache(maxsize=8)
def _tokenizer(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)


@lru_cache(maxsize=_ENCODED_TEXTS)
def _encoded(path: str, text: str) -> tuple[int, ...]:
    return tuple(_tokenizer(path).encode(text, add_special_tokens=False).ids)


def _message_text(message: Mapping[str, Any]) -> str:
    """What the template shows of a message: its text, then its tool calls."""
    calls = message.get("tool_calls") or ()
    shown = [json.dumps(call.get("function"), sort_keys=True) for call in calls]
    return "\n".join([_text_of(message.get("content")), *shown])


def _text_of(content: Any) -> str:
    """A message's text: a string, or OpenAI's list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
