"""Fuzz two real servers: every edited history is answered as a cold run answers it.

    make fuzz TURNS=500 SEED=1

The last line is `fuzz: turns=.. reusable=.. reused=.. compared=.. equal=.. ties=..`; the
exit code is 1 when an answer differed or a reusable prefix was not pulled exactly.
"""

import argparse
import asyncio
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.engine_api import EXTERNAL_HIT_TOKENS
from runtime.local.model import build_model
from tests.engine.pairs import ROOT, running_pair
from tests.engine.play import Answer, PairClient, Prefilled, first_difference
from tests.engine.words import plain_words
from tests.fuzz.script import Script, first_messages, next_messages, scripts, shrink

BLOCK_TOKENS = 32
THRESHOLD_TOKENS = 64
_SHRINK_TRIES = 40
_AGAIN_EVERY = 5
"""Each so many turns are asked once more without a handle: is a cache poisoned?"""


@dataclass
class Tally:
    """What a run has seen; all counts are turns.

    Attributes:
        reusable: a verifiable prefix beyond the local hit reached the threshold.
        reused: of those, exactly that prefix was pulled.
        pulled_tokens: by P's receipts.
        failures: what went wrong, in words.
    """

    turns: int = 0
    reusable: int = 0
    reused: int = 0
    compared: int = 0
    equal: int = 0
    ties: int = 0
    pulled_tokens: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = ("turns", "reusable", "reused", "compared", "equal", "ties")
        return "fuzz: " + " ".join(f"{name}={getattr(self, name)}" for name in names)


def common_tokens(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the common start."""
    pairs = zip(mine, theirs, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))


def verifiable_tokens(held: Sequence[int], prompt: Sequence[int]) -> int:
    """What verification must find: all that D holds, or the whole blocks of the common start."""
    common = common_tokens(held, prompt)
    return common if common == len(held) else common // BLOCK_TOKENS * BLOCK_TOKENS


async def play(client: PairClient, script: Script, words: Sequence[str], tally: Tally) -> None:
    """Play one conversation, each turn with the last one's handle and then cold."""
    salt = uuid.uuid4().hex
    history = first_messages(script, words)
    held: list[int] = []
    handle = None
    for at, turn in enumerate(script.turns):
        messages = next_messages(history, turn, words)
        prefilled, warm = await client.turn(
            messages, salt=salt, handle=handle, max_tokens=turn.answer_tokens
        )
        where = f"turn {at} after {[edit.kind for edit in turn.edits]}"
        tally.turns += 1
        tally.pulled_tokens += prefilled.receipt.pulled_tokens
        if problem := _reuse_problem(prefilled, held, tally):
            tally.failures.append(f"{where}: {problem}")
        cold = await client.cold(messages, max_tokens=turn.answer_tokens)
        _compare(warm, cold, tally, where)
        if tally.turns % _AGAIN_EVERY == 0:
            _, again = await client.turn(messages, salt=salt, max_tokens=turn.answer_tokens)
            _compare(again, cold, tally, f"{where}, asked again without a handle")
            assert again.handle is not None
            await client.release(client.decode_url, again.handle)
        history = [*messages, {"role": "assistant", "content": warm.text}]
        held, handle = warm.held_ids, warm.handle
    await client.release_all()


def _reuse_problem(prefilled: Prefilled, held: Sequence[int], tally: Tally) -> str | None:
    receipt = prefilled.receipt
    wanted = verifiable_tokens(held, prefilled.prompt_ids) - receipt.local_tokens
    is_reusable = wanted >= THRESHOLD_TOKENS
    expected = wanted if is_reusable else 0
    tally.reusable += is_reusable
    if receipt.pulled_tokens != expected:
        return f"{receipt.pulled_tokens} tokens pulled, {expected} were verifiable ({receipt})"
    tally.reused += is_reusable
    return None


def _compare(answer: Answer, cold: Answer, tally: Tally, where: str) -> None:
    tally.compared += 1
    at, is_tie = first_difference(answer, cold)
    if at is None:
        tally.equal += 1
    elif is_tie:
        tally.ties += 1
    else:
        tally.failures.append(
            f"{where}: token {at} is {answer.token_ids[at]} ({answer.logprobs[at]:.5f}), "
            f"cold {cold.token_ids[at]} ({cold.logprobs[at]:.5f})"
        )


async def fuzz(
    client: PairClient, words: Sequence[str], *, seed: int, turns: int, report: bool = False
) -> Tally:
    """Play random conversations; after the first failure a smaller one is looked for.

    Args:
        client: the pair.
        words: the vocabulary.
        seed: of everything.
        turns: how many in all.
        report: print progress, one line a conversation.
    """
    tally, began = Tally(), time.perf_counter()
    pulled_before = await client.metric(client.prefill_url, EXTERNAL_HIT_TOKENS)
    for script in scripts(seed, turns):
        await play(client, script, words, tally)
        if report:
            taken_s = time.perf_counter() - began
            print(f"{taken_s:6.0f} s  {tally}", flush=True)  # noqa: T201
        if tally.failures:
            small = await shrink(
                script, lambda one: _fails(client, one, words), tries=_SHRINK_TRIES
            )
            tally.failures.append(f"smallest conversation that fails: {small}")
            return tally
    pulled = await _settled(client, pulled_before, tally.pulled_tokens)
    if pulled != tally.pulled_tokens:
        tally.failures.append(f"receipts say {tally.pulled_tokens} pulled tokens, P {pulled}")
    return tally


async def _fails(client: PairClient, script: Script, words: Sequence[str]) -> bool:
    tally = Tally()
    await play(client, script, words, tally)
    return bool(tally.failures)


async def _settled(client: PairClient, before: float, expected: int) -> float:
    """P's count of pulled tokens; vLLM publishes it a little late."""
    for _ in range(50):
        pulled = await client.metric(client.prefill_url, EXTERNAL_HIT_TOKENS) - before
        if pulled == expected:
            break
        await asyncio.sleep(0.1)
    return pulled


async def _run(turns: int, seed: int) -> Tally:
    model = build_model(ROOT / "out" / "models").resolve()
    with tempfile.TemporaryDirectory() as logs:
        print("starting two engines (1 to 3 minutes)", flush=True)  # noqa: T201
        async with running_pair(model, Path(logs)) as client:
            return await fuzz(client, plain_words(model), seed=seed, turns=turns, report=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns: at least 1")
    tally = asyncio.run(_run(options.turns, options.seed))
    for line in tally.failures:
        print(line)  # noqa: T201
    print(tally)  # noqa: T201
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
