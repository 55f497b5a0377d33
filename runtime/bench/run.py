"""One pass: the workload through both arms, into a folder."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from runtime.bench.client import open_session
from runtime.bench.folder import PassFolder, PassInfo
from runtime.bench.order import Block, Part, plan_aborts, plan_blocks
from runtime.bench.player import Player, Target
from runtime.bench.probe import check_router
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.fit import WARMUP_TURNS
from runtime.contract.bench import BenchSpec
from runtime.errors import BadInput, TurnbackError

Record = Callable[[TurnResult], None]
OnWarm = Callable[[], Awaitable[None]]
"""The pass begins when it returns: from then on all of its times count."""

T = TypeVar("T")
_TOLD_CHARS = 300


def on_uvloop(main: Coroutine[Any, Any, T]) -> T:
    """Run a benchmark to its end, on the loop whose wake-ups are the shortest.

    What exists by now is left out of garbage collections, which stop all streams at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    return uvloop.run(main)


async def run_pass(
    target: Target,
    conversations: Sequence[Conversation],
    folder: PassFolder,
    info: PassInfo,
    on_turn: Record = lambda _: None,
    on_warm: OnWarm | None = None,
) -> list[TurnResult]:
    """Play a workload as `info.bench` says, and keep all of it in the folder.

    Every turn is in the folder before its conversation goes on. Whatever ends the pass
    early, cancellation too, passes through, and pass.json says what it was.

    Args:
        target: where turns go.
        conversations: warm-up conversations among them; those are not recorded.
        folder: of this pass; made here.
        info: of this pass; without the feature it has the one-way arm alone.
        on_turn: called after each measured turn, for progress.
        on_warm: awaited once between warm-up and the first measured turn.

    Returns:
        The measured turns, in the order in which they ended.

    Raises:
        BadInput: nobody answers, the key is refused, or there is nothing to play.
        StartFailed: the router has no engines.
        EngineDied: nothing succeeds any more.
    """
    results: list[TurnResult] = []
    folder.begin(info)

    def record(result: TurnResult) -> None:
        folder.add_turn(result)
        results.append(result)
        on_turn(result)

    client: dict[str, Any] = {}
    stopped_by: str | None = None
    try:
        await play_workload(
            target,
            conversations,
            info.bench,
            record,
            on_warm,
            is_feature_on=info.is_feature_on,
            client=client,
        )
    except BaseException as reason:
        stopped_by = told(reason)
        raise
    finally:
        environment = info.environment | {"client": client}
        folder.end(replace(info, environment=environment), stopped_by)
    return results


async def play_workload(
    target: Target,
    conversations: Sequence[Conversation],
    bench: BenchSpec,
    record: Record,
    on_warm: OnWarm | None = None,
    *,
    is_feature_on: bool = True,
    client: dict[str, Any] | None = None,
) -> None:
    """Play a workload; see `run_pass`.

    Args:
        record: called with each measured turn before its conversation goes on.
        client: is filled with how busy this process was, whatever ends the play.
    """
    blocks = plan_blocks(conversations, bench, is_feature_on=is_feature_on)
    if not blocks:
        raise BadInput(
            "the workload has nothing to measure",
            got=f"{len(conversations)} conversations, all for warm-up",
            allowed="at least one measured conversation",
            fix="give a workload with conversations",
        )
    async with open_session(target.api_key) as session:
        await check_router(session, target.router_url, target.served_model_name)
        player = Player(target, bench, session)
        await player.play(_warm_up(conversations, blocks[0].parts), lambda _: None)
        if on_warm is not None:
            await on_warm()
        player.begin(plan_aborts(conversations, bench))
        try:
            for block in blocks:
                await player.play(block, record)
        finally:
            (client if client is not None else {}).update(player.client_load())


def _warm_up(conversations: Sequence[Conversation], parts: Sequence[Part]) -> Block:
    """The warm-up conversations as a block: their first turns, without pauses."""
    warm = [each for each in conversations if each.is_warmup]
    cut = [
        replace(each, turns=tuple(replace(turn, think_s=0.0) for turn in each.turns[:WARMUP_TURNS]))
        for each in warm
    ]
    arms = tuple(part for part in parts if not part.is_again)
    return Block(0, 0, tuple(cut), arms, (0.0,) * len(cut))


def told(reason: BaseException) -> str:
    """What ended a run, in one line."""
    if isinstance(reason, TurnbackError):
        return " ".join(f"{reason.what}: {reason.got}".split())[:_TOLD_CHARS]
    is_interrupt = isinstance(reason, asyncio.CancelledError | KeyboardInterrupt)
    return "interrupted" if is_interrupt else repr(reason)
