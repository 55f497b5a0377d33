"""A small tokenizer, a stub server and ready-made results."""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.bench.turn import TurnResult
from runtime.contract.profile import Profile

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE with some hundred whole words."""
    words = ["".join(parts) for parts in itertools.product(("ka", "lo", "mi", "tu"), repeat=4)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([f" {word} {word}" for word in words], trainer)
    return bpe


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The same, for all tests of a run."""
    return trained_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_path(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer as a file."""
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Starts a server that gives every request to one handler; returns its address."""
    servers: list[TestServer] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        servers.append(server)
        # A handler that still hangs belongs to a failed test; do not wait for it.
        await server.start_server(shutdown_timeout=0.1)
        return str(server.make_url("/"))

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
def answer_events() -> Callable[[Sequence[int], Sequence[str], int], list[bytes]]:
    """The events of one streamed answer, as an engine sends them."""

    def build(ids: Sequence[int], words: Sequence[str], prompt_tokens: int) -> list[bytes]:
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        ]
        for at, (token, word) in enumerate(zip(ids, words, strict=True)):
            tops = [{"token": "x", "logprob": -1.5}, {"token": word, "logprob": -0.5}]
            logprobs = {"content": [{"token": word, "logprob": -0.5, "top_logprobs": tops}]}
            choice = {
                "index": 0,
                "delta": {"content": word},
                "token_ids": [token],
                "logprobs": logprobs,
                "finish_reason": "length" if at == len(ids) - 1 else None,
            }
            chunks.append({"choices": [choice], "usage": None})
        chunks.append({"choices": [], "usage": {"prompt_tokens": prompt_tokens}})
        return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [
            b"data: [DONE]\n\n"
        ]

    return build


@pytest.fixture(scope="session")
def make_turn() -> Callable[..., TurnResult]:
    """A successful turn with the given fields put in its place."""
    usual = TurnResult(
        conversation=0,
        turn=1,
        arm="one_way",
        outcome="successful",
        error=None,
        ttft_ms=100.0,
        e2e_ms=200.0,
        prompt_tokens=100,
        text=" a b",
        token_ids=(5, 6),
        logprobs=(-0.5, -0.5),
        top2=((-0.5, -1.5), (-0.5, -1.5)),
        receipt=None,
        path="cold",
    )

    def make(**changes: Any) -> TurnResult:
        return replace(usual, **changes)

    return make


@pytest.fixture
def profile() -> Profile:
    """Two conversations of three turns."""
    return Profile.model_validate(
        {
            "name": "test",
            "serving": {
                "dtype": "float32",
                "max_model_len": 4096,
                "max_num_seqs": 2,
                "prefill_prefix_caching": False,
                "kv_cache_gib": 1,
            },
            "kv": {"block_size_tokens": 32},
            "workload": {
                "conversations": 2,
                "turns": 3,
                "common_prefix_tokens": 20,
                "own_prefix_tokens": 30,
                "user_tokens": 10,
                "answer_tokens": 40,
            },
        }
    )
