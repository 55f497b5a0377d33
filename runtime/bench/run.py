"""The loop: conversation by conversation, one arm after the other, one request at a time."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tokenizers import Tokenizer

from runtime.bench.client import run_turn
from runtime.bench.turn import ARMS, Arm, Message, TurnRequest, TurnResult
from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.synthetic import allowed_ids, build_conversations, usable_ids
from runtime.contract.profile import WorkloadSpec
from runtime.errors import BadInput

WARMUP_TURNS = 2
"""The second turn is the first that can take a handle."""


@dataclass(frozen=True)
class BenchPlan:
    """One benchmark run.

    Attributes:
        router_url: address without a path.
        tokenizer_path: the served model's tokenizer.json.
        run_id: part of every conversation id and cache salt, so that two runs
            against one fleet share nothing.
        timeout_s: longest time for one turn.
        api_key: a client's key, where the router wants one.
    """

    router_url: str
    served_model_name: str
    tokenizer_path: Path
    workload: WorkloadSpec
    run_id: str
    timeout_s: float = 300.0
    api_key: str | None = field(default=None, repr=False)


async def run_benchmark(
    plan: BenchPlan,
    results: list[TurnResult],
    results_path: Path,
    on_turn: Callable[[TurnResult], None] = lambda _: None,
    on_warm: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run the workload through both arms.

    Cancellation propagates; whatever finished before is in `results` and in the file.

    Args:
        plan: what to run.
        results: every measured turn is appended as it ends.
        results_path: JSON lines; each turn is in the file before the next one starts.
        on_turn: called after each measured turn, for progress.
        on_warm: awaited once between warm-up and the first measured turn; the place
            for an opening scrape that leaves the warm-up out.

    Raises:
        BadInput: the tokenizer cannot be read or has too few usable tokens.
    """
    tokenizer = _load_tokenizer(plan.tokenizer_path)
    conversations = build_conversations(tokenizer, plan.workload)
    ids = allowed_ids(usable_ids(tokenizer))

    def record(result: TurnResult) -> None:
        _append(results_path, result)
        results.append(result)
        on_turn(result)

    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        player = _Player(plan, session, ids)
        for conversation in (c for c in conversations if c.is_warmup):
            await player.play(conversation, WARMUP_TURNS, lambda _: None)
        if on_warm is not None:
            await on_warm()
        for conversation in (c for c in conversations if not c.is_warmup):
            await player.play(conversation, plan.workload.turns, record)


@dataclass(frozen=True)
class _Player:
    """Plays conversations against the router."""

    plan: BenchPlan
    session: aiohttp.ClientSession
    ids: tuple[int, ...]

    async def play(
        self, conversation: Conversation, turns: int, record: Callable[[TurnResult], None]
    ) -> None:
        """One arm runs all its turns, then the other replays its answers as history.

        A failed turn of the first arm ends the conversation for both: nothing after
        it could be compared.
        """
        first, second = ARMS if conversation.index % 2 == 0 else reversed(ARMS)
        answers: list[str] = []
        for turn in range(1, turns + 1):
            result = await self._turn(conversation, first, turn, answers)
            record(result)
            if not result.is_successful:
                break
            answers.append(result.text)
        for turn in range(1, len(answers) + 1):
            record(await self._turn(conversation, second, turn, answers))

    async def _turn(
        self, conversation: Conversation, arm: Arm, turn: int, answers: list[str]
    ) -> TurnResult:
        plan = self.plan
        kind = "w" if conversation.is_warmup else "c"
        request = TurnRequest(
            conversation=conversation.index,
            turn=turn,
            arm=arm,
            model=plan.served_model_name,
            messages=history(conversation, turn, answers),
            answer_tokens=plan.workload.answer_tokens,
            allowed_token_ids=self.ids,
            conversation_key=f"{plan.run_id}-{kind}{conversation.index}-{arm}",
            timeout_s=plan.timeout_s,
        )
        return await run_turn(self.session, plan.router_url, request)


def history(conversation: Conversation, turn: int, answers: list[str]) -> tuple[Message, ...]:
    """The messages of a turn (1-based): all before it, and its own user message."""
    messages: list[Message] = list(conversation.opening)
    for planned, answer in zip(conversation.turns[: turn - 1], answers[: turn - 1], strict=True):
        messages.extend((*planned.messages, {"role": "assistant", "content": answer}))
    messages.extend(conversation.turns[turn - 1].messages)
    return tuple(messages)


def _append(path: Path, result: TurnResult) -> None:
    # Opened anew for each turn: closing is what makes the line outlive a crash.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result.to_dict(), separators=(",", ":")) + "\n")


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no exception type of its own
        raise BadInput(
            "tokenizer cannot be read",
            got=f"{path}: {error}",
            allowed="a tokenizer.json of the tokenizers library",
            fix="give the tokenizer.json of the served model",
        ) from error
