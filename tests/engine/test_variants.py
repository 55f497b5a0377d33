"""The same exactness on other pairs: tensor parallel, prefix caching, LoRA, several KV groups.

Each test starts a pair of its own.
"""

import asyncio
import uuid
from pathlib import Path

import pytest

from runtime.contract.node import NodeSpec, Role
from runtime.engine_api import NIXL_AFTER_EXPIRY, NIXL_FAILED
from runtime.launch.command import Command
from tests.engine.cases import FOLLOW_UPS, NOTHING_SHARED, following, opening, play, play_next
from tests.engine.models import WINDOW_TOKENS, build_adapter, build_gemma
from tests.engine.pairs import running_pair
from tests.engine.play import KV_USAGE, PairClient, difference
from tests.engine.words import plain_words
from tests.fuzz.run import BLOCK_TOKENS
from tests.fuzz.script import Texts

pytestmark = pytest.mark.engine

_SETTLE_S = 40.0
"""P's lease of 30 s and some."""


def split(role: Role, spec: NodeSpec) -> NodeSpec:
    """Two tensor-parallel ranks, one a core, on one role; a prefix cache on both."""
    serving = spec.serving.model_copy(
        update={
            "enable_prefix_caching": True,
            "tensor_parallel_size": 2 if spec.role == role else 1,
        }
    )
    assert spec.cpu is not None
    cores = (0, 1) if spec.role == role else spec.cpu.cores
    return spec.model_copy(
        update={"serving": serving, "cpu": spec.cpu.model_copy(update={"cores": cores})}
    )


def unbound(command: Command) -> Command:
    """Three ranks share two cores: the one that is alone in its engine goes where it can run.

    With both roles bound, one engine's polling threads can keep another's rank off its core
    for longer than a lease on kernels with session groups.
    """
    bound = command.env["VLLM_CPU_OMP_THREADS_BIND"]
    free = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return command if "|" in bound else Command(command.argv, {**command.env, **free})


async def assert_nothing_failed(client: PairClient) -> None:
    """No transfer failed, nothing was read after it was freed, and no block is held."""
    await client.release_all()
    for url in (client.prefill_url, client.decode_url):
        assert await client.metric(url, NIXL_FAILED) == 0
        assert await client.metric(url, NIXL_AFTER_EXPIRY) == 0
        async with asyncio.timeout(_SETTLE_S):
            while await client.metric(url, KV_USAGE) > 0:
                await asyncio.sleep(0.1)


async def play_all(client: PairClient, words: list[str]) -> None:
    """All follow-ups; the prompt asked again finds P's prefix cache as the handle left it."""
    for seed, kind in enumerate(FOLLOW_UPS):
        played = await play(client, Texts(words, seed), kind)
        receipt = played.prefilled.receipt
        assert difference(played.warm, played.cold) is None, kind
        assert difference(played.again, played.cold) is None, kind
        # P has the first turn in its own cache: what it lacks is the answer.
        assert receipt.local_tokens > 0 or kind in NOTHING_SHARED, (kind, receipt)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_tensor_parallel_two_against_one(role: Role, model: Path, tmp_path: Path) -> None:
    """Either way round, with prefix caches on: ids and logprobs are the cold run's."""
    words = plain_words(model)
    async with running_pair(
        model, tmp_path, change=lambda spec: split(role, spec), edit=unbound
    ) as client:
        await play_all(client, words)
        # Token ids that go on from all that D holds: the whole answer is pulled.
        salt = uuid.uuid4().hex
        opened = (await client.prefill(opening(Texts(words, 50)), salt=salt)).prompt_ids
        _, answer = await client.turn(opened, salt=salt, max_tokens=100)
        assert answer.handle is not None
        asked = [*answer.held_ids, *opened[100:160]]
        played = await play_next(client, asked, salt, answer.handle)
        receipt = played.prefilled.receipt
        assert receipt.pulled_tokens == len(answer.held_ids) - receipt.local_tokens >= 64
        assert difference(played.warm, played.cold) is None
        assert difference(played.again, played.cold) is None
        await assert_nothing_failed(client)


async def test_adapters_part_equal_tokens(model: Path, tmp_path: Path) -> None:
    """Hazard 8: one adapter's KV is not read for another's equal prompt."""
    adapters = {
        name: build_adapter(model, tmp_path / name, seed) for seed, name in enumerate(("a", "b"))
    }
    modules = [f"{name}={folder}" for name, folder in adapters.items()]
    arguments = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"]
    async with running_pair(
        model, tmp_path, arguments=[*arguments, "--lora-modules", *modules]
    ) as client:
        texts = Texts(plain_words(model), seed=1)
        first, salt = opening(texts), uuid.uuid4().hex
        client.model = "a"
        _, answer = await client.turn(first, salt=salt)
        messages = following("unedited", first, answer.text, texts)
        assert answer.handle is not None
        own = dict(answer.handle)
        client.model = "b"
        other = await play_next(client, messages, salt, own)
        assert other.prefilled.receipt.reason == "no_match"
        assert difference(other.warm, other.cold) is None
        assert difference(other.again, other.cold) is None
        client.model = "a"
        _, answer = await client.turn(first, salt=salt)
        assert answer.handle is not None
        mine = await play_next(client, messages, salt, answer.handle)
        assert mine.prefilled.receipt.reason == "pulled"
        assert difference(mine.warm, mine.cold) is None
        assert mine.cold.token_ids != other.cold.token_ids
        await assert_nothing_failed(client)


async def test_several_groups_are_read_whole_or_not_at_all(model: Path, tmp_path: Path) -> None:
    """A random Gemma3 with three KV-cache groups, by logprobs: its tokens have no power."""
    gemma = build_gemma(model, tmp_path / "gemma")
    async with running_pair(gemma, tmp_path) as client:
        texts = Texts(plain_words(model), seed=1)
        opened = (await client.prefill(opening(texts), salt="opened")).prompt_ids
        for missing, rest in ((0, 0), (0, 31), (1, 5), (1, 31), (WINDOW_TOKENS, 0)):
            await play_groups(client, opened, missing, rest)
        await assert_nothing_failed(client)


async def play_groups(client: PairClient, opened: list[int], missing: int, rest: int) -> None:
    """A prompt that goes on from all, or not quite all, that D holds.

    Args:
        client: the pair.
        opened: token ids of a first turn.
        missing: tokens at the end of what D holds that are not in the prompt.
        rest: length of the prompt beyond whole blocks.
    """
    salt, case = uuid.uuid4().hex, (missing, rest)
    first, answer = await client.turn(opened, salt=salt)
    assert len(first.params["remote_block_ids"]) == 3
    assert answer.handle is not None
    held = answer.held_ids
    kept = held[: len(held) - missing]
    more = BLOCK_TOKENS + (rest - len(kept)) % BLOCK_TOKENS
    asked = [*kept, *opened[100 : 100 + more]]
    played = await play_next(client, asked, salt, answer.handle)
    receipt = played.prefilled.receipt
    told = (receipt.reason, receipt.pulled_tokens)
    assert told == (("several_groups", 0) if missing else ("pulled", len(held))), case
    # D computes the prompt itself where its last token's window begins in a lost block.
    lost = (len(asked) - WINDOW_TOKENS + 1) % BLOCK_TOKENS == 0
    assert lost == (rest == 31)
    assert played.warm.receipt is not None
    assert played.warm.receipt.reason == ("several_groups" if lost else "pulled"), case
    assert difference(played.warm, played.cold) is None, case
    assert difference(played.again, played.cold) is None, case
