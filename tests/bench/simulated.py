"""A benchmark's pass made up from a known ratio: turns, receipts, stage times, samples. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.bench.folder import PassInfo, Sample
from runtime.bench.scrape import COUNTERS
from runtime.bench.turn import ARMS, Arm, Outcome, TurnResult
from runtime.contract.bench import BenchSpec, Objectives, Price
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt

Floats = NDArray[np.float64]
Passed = tuple[PassInfo, list[TurnResult], list[Sample]]

COMMON, OWN, USER, ANSWER, BLOCK = 96, 2000, 100, 16, 32
CREATED_UTC = "2026-01-02T03:04:05+00:00"
P_URL, D_URL, ROUTER_URL = "http://p:8100", "http://d:8200", "http://r:8000"
CAPACITY_TOKENS = 200_000.0
_BYTES_PER_TOKEN = 4096
_UNTOLD_MS = 0.6
"""Of a TTFT: between client and router."""


def log_noise(
    rng: np.random.Generator, shape: tuple[int, ...], scale: float, kept: float = 0.5
) -> Floats:
    """Errors of log latencies: mean 0, a long upper tail, last axis (turns) correlated.

    Args:
        scale: standard deviation.
        kept: correlation of one turn with the next.
    """
    fresh = (rng.gamma(2.0, 1.0, shape) - 2.0) / np.sqrt(2.0) * scale
    noise = np.empty(shape)
    noise[..., 0] = fresh[..., 0]
    for at in range(1, shape[-1]):
        noise[..., at] = kept * noise[..., at - 1] + np.sqrt(1 - kept**2) * fresh[..., at]
    return noise


def log_ratios(
    rng: np.random.Generator, draws: int, conversations: int, turns: int, ratio: float, noise: float
) -> Floats:
    """Log ratios of whole benchmarks, turn 1 left out; shape (draws, conversations, turns - 1).

    Every conversation has an effect of its own on the ratio, as histories of another
    length and text have.
    """
    shape = (draws, conversations, turns)
    own = log_noise(rng, (draws, conversations, 1), noise)
    errors = log_noise(rng, shape, noise) - log_noise(rng, shape, noise)
    logs: Floats = (np.log(ratio) + own + errors)[..., 1:]
    return logs


@dataclass(frozen=True)
class _Plan:
    info: PassInfo
    ratio: float
    conversations: int
    turns: int
    noise: float
    points: tuple[int, ...]
    rng: np.random.Generator = field(repr=False)

    @property
    def arms(self) -> tuple[Arm, ...]:
        return ARMS if self.info.is_feature_on else ARMS[:1]


def pass_of(
    profile: Profile,
    results: Sequence[TurnResult],
    *,
    engine: Mapping[str, Mapping[str, float] | None] | None = None,
    **changes: Any,
) -> Passed:
    """A pass of these turns.

    Args:
        engine: what each role counts over it; None for a role: it was read once.
        changes: fields of PassInfo.
    """
    usual: dict[str, Any] = {
        "name": "main",
        "created_utc": CREATED_UTC,
        "bench": BenchSpec(),
        "workload": profile.name,
        "prefill_prefix_caching": False,
        "environment": {"engine": "mock"},
        "stopped_by": None,
    }
    samples = []
    for role, counted in (engine or {}).items():
        samples.append(Sample(-1.0, role, role, dict.fromkeys(COUNTERS, 0.0)))
        if counted is not None:
            values = {name: counted.get(name, 0.0) for name in COUNTERS}
            samples.append(Sample(9.0, role, role, values))
    return PassInfo(profile=profile, **(usual | changes)), list(results), samples


def profile_of(
    *, conversations: int = 10, turns: int = 5, own: int = OWN, **serving: Any
) -> Profile:
    """A profile of that size."""
    usual = {"dtype": "float32", "max_model_len": 131_072, "max_num_seqs": 8}
    return Profile.model_validate(
        {
            "name": "simulated",
            "serving": usual | {"prefill_prefix_caching": False, "kv_cache_gib": 1} | serving,
            "kv": {"block_size_tokens": BLOCK},
            "workload": {
                "conversations": max(2, conversations),
                "turns": max(2, turns),
                "common_prefix_tokens": COMMON,
                "own_prefix_tokens": own,
                "user_tokens": USER,
                "answer_tokens": ANSWER,
            },
        }
    )


def simulated_pass(
    ratio: float = 2.0,
    conversations: int = 10,
    turns: int = 5,
    *,
    noise: float = 0.1,
    is_feature_on: bool = True,
    clients: int = 1,
    points: Sequence[int] = (),
    repeats: int = 1,
    failures: float = 0.0,
    aborts: float = 0.0,
    edits: float = 0.0,
    again_share: float = 0.1,
    differences: float = 0.0,
    again_differences: float = 0.0,
    think_s: float = 0.0,
    objectives: Objectives | None = None,
    price: Price | None = None,
    name: str = "main",
    prefill_prefix_caching: bool = False,
    dtype: str = "float32",
    stopped_by: str | None = None,
    seed: int = 0,
) -> Passed:
    """A pass whose one-way TTFT is `ratio` times the bidirectional one from turn 2 on.

    Args:
        ratio: as geometric mean; 1 at turn 1, which has no handle.
        conversations: of each point.
        noise: standard deviation of log latencies; 0: none.
        is_feature_on: without it there is one arm.
        points: own prefix tokens of a sweep; none: one point that is no sweep.
        failures: share of turns that end errored or incomplete, half each.
        aborts, edits, again_share: shares of turns.
        differences: share of bidirectional turns with another answer.
        again_differences: share of A/A turns with another answer.
        think_s: before each turn from the second on.
        stopped_by: as in PassInfo; the last tenth of the turns is then missing.
    """
    bench = BenchSpec(
        clients=clients,
        repeats=repeats,
        again_share=again_share,
        abort_share=aborts,
        edit_share=edits,
        objectives=objectives or Objectives(),
        price=price or Price(),
        seed=seed,
    )
    info = PassInfo(
        name=name,
        created_utc=CREATED_UTC,
        profile=profile_of(
            conversations=conversations,
            turns=turns,
            dtype=dtype,
            prefill_prefix_caching=prefill_prefix_caching,
        ),
        bench=bench,
        workload="simulated",
        prefill_prefix_caching=prefill_prefix_caching,
        is_feature_on=is_feature_on,
        environment={"engine": "simulated", "kit": "0", "vllm": "0.32.0"},
        stopped_by=stopped_by,
    )
    rng = np.random.default_rng(seed)
    plan = _Plan(info, ratio, conversations, turns, noise, tuple(points) or (0,), rng)
    results = _spoil(_timed(plan, think_s), rng, failures, aborts)
    results = _part(results, rng, differences, again_differences)
    if stopped_by is not None:
        results = results[: len(results) * 9 // 10]
    return info, results, list(_samples(results))


def _timed(plan: _Plan, think_s: float) -> list[TurnResult]:
    """All turns of all repeats, with their moments: closed loop, blocks ABBA."""
    clients, results, now_s = plan.info.bench.clients, list[TurnResult](), 0.0
    indices = range(plan.conversations * len(plan.points))
    size = 1 if clients == 1 else 2 * clients
    for repeat in range(plan.info.bench.repeats):
        ttft_ms = _ttft_ms(plan)
        for at, first in enumerate(range(0, len(indices), size)):
            arms = plan.arms if at % 2 == 0 else plan.arms[::-1]
            for arm in arms:
                lanes_s = [now_s] * clients
                for index in indices[first : first + size]:
                    lane = min(range(clients), key=lanes_s.__getitem__)
                    made = _conversation(plan, index, arm, ttft_ms, lanes_s[lane], think_s)
                    played = [replace(one, repeat=repeat, block=at) for one in made]
                    results += played
                    lanes_s[lane] = played[-1].ended_s
                now_s = max(lanes_s) + 0.05
    return sorted(results, key=lambda result: result.started_s)


def _ttft_ms(plan: _Plan) -> dict[str, Floats]:
    """TTFT by arm (and `again`), shape (conversations, turns)."""
    rng, noise = plan.rng, plan.noise
    shape = (plan.conversations * len(plan.points), plan.turns)
    own_ms = np.repeat([own or OWN for own in plan.points], plan.conversations)[:, None]
    prompt = COMMON + own_ms + (np.arange(plan.turns) + 1) * USER + np.arange(plan.turns) * ANSWER
    base_ms = (20.0 + 0.1 * prompt) * np.exp(log_noise(rng, (shape[0], 1), noise))
    gain = np.log(plan.ratio) + log_noise(rng, (shape[0], 1), noise)
    gain = np.where(np.arange(plan.turns) == 0, 0.0, gain)
    logs: dict[str, Floats] = {"one_way": 0.0 * gain, "bidirectional": -gain, "again": 0.0 * gain}
    return {
        name: np.asarray(base_ms * np.exp(log + log_noise(rng, shape, noise)), dtype=np.float64)
        for name, log in logs.items()
    }


def _conversation(
    plan: _Plan, index: int, arm: Arm, ttft_ms: dict[str, Floats], now_s: float, think_s: float
) -> Iterator[TurnResult]:
    point = plan.points[index // plan.conversations]
    bench = plan.info.bench
    for turn in range(1, plan.turns + 1):
        waited_s = think_s if turn > 1 else 0.0
        now_s += waited_s
        is_edited = turn > 1 and _chance(plan, index, turn, 1) < bench.edit_share
        made = _turn(plan, index, turn, arm, float(ttft_ms[arm][index, turn - 1]), point)
        made = replace(made, is_edited=is_edited, think_s=waited_s)
        yield (last := _at(made, now_s))
        now_s = last.ended_s
        if arm == "one_way" and _chance(plan, index, turn, 2) < bench.again_share:
            again = _turn(plan, index, turn, arm, float(ttft_ms["again"][index, turn - 1]), point)
            yield (last := _at(replace(again, is_again=True, is_edited=is_edited), now_s))
            now_s = last.ended_s


def _chance(plan: _Plan, index: int, turn: int, kind: int) -> float:
    """The same for both arms."""
    return float(np.random.default_rng([plan.info.bench.seed, index, turn, kind]).random())


def _at(result: TurnResult, now_s: float) -> TurnResult:
    return replace(result, started_s=now_s, ended_s=now_s + (result.e2e_ms or 0.0) / 1000)


def _turn(plan: _Plan, index: int, turn: int, arm: Arm, ttft_ms: float, point: int) -> TurnResult:
    prompt = COMMON + (point or OWN) + turn * USER + (turn - 1) * ANSWER
    is_warm = arm == "bidirectional" and turn > 1
    held = COMMON + (point or OWN) + (turn - 1) * (USER + ANSWER) - 1 if turn > 1 else 0
    local = (held - ANSWER) if plan.info.prefill_prefix_caching and held else 0
    receipts = _receipts(ttft_ms, prompt, held if is_warm else 0, local // BLOCK * BLOCK)
    ids = tuple(1000 + (index * 31 + turn * 7 + at) % 500 for at in range(ANSWER))
    return TurnResult(
        conversation=index,
        turn=turn,
        arm=arm,
        outcome="successful",
        error=None,
        ttft_ms=ttft_ms,
        e2e_ms=ttft_ms + (ANSWER - 1) * 8.0,
        prompt_tokens=prompt,
        text=" word" * ANSWER,
        token_ids=ids,
        logprobs=(-0.5,) * ANSWER,
        top2=((-0.5, -1.5),) * ANSWER,
        receipt=receipts[0],
        path="warm" if is_warm else "cold",
        decode_receipt=receipts[1],
        point=point,
        router_ms=_router_ms(ttft_ms),
    )


def _router_ms(ttft_ms: float) -> dict[str, float]:
    """What the router says; with the way to the client it adds up to the TTFT."""
    told_ms = max(0.0, ttft_ms - _UNTOLD_MS)
    return {
        "queue": 0.001 * told_ms,
        "take": 0.002 * told_ms,
        "prefill": 0.897 * told_ms,
        "first_byte": 0.1 * told_ms,
    }


def _receipts(ttft_ms: float, prompt: int, held: int, local: int) -> tuple[Receipt, Receipt]:
    """Of P and D: P's queue, pull and compute fill its leg but for 3 %; D's likewise.

    Args:
        held: tokens that the handle holds; 0: there is none.
        local: tokens in P's own cache.
    """
    leg_ms, first_ms = _router_ms(ttft_ms)["prefill"], _router_ms(ttft_ms)["first_byte"]
    verified = held // BLOCK * BLOCK
    pulled = max(0, verified - local)
    queue_ms, end_ms = 0.01 * leg_ms, 0.97 * leg_ms
    begin_ms = queue_ms + (0.3 * leg_ms if pulled else 0.0)
    prefill = Receipt(
        offered_tokens=held,
        verified_tokens=verified,
        local_tokens=local,
        pulled_tokens=pulled,
        reason="pulled" if pulled else "none_offered",
        arrival_unix_s=1.0,
        pull_started_ms=queue_ms if pulled else None,
        pull_ended_ms=begin_ms - 0.1 if pulled else None,
        scheduled_ms=begin_ms,
        finished_ms=end_ms,
    )
    decode = Receipt(
        offered_tokens=prompt - 1,
        verified_tokens=prompt - 1,
        local_tokens=0,
        pulled_tokens=prompt - 1,
        reason="pulled",
        arrival_unix_s=1.1,
        pull_started_ms=0.05 * first_ms,
        pull_ended_ms=0.45 * first_ms,
        scheduled_ms=0.5 * first_ms,
        finished_ms=first_ms + (ANSWER - 1) * 8.0,
    )
    return prefill, decode


def _spoil(
    results: list[TurnResult], rng: np.random.Generator, failures: float, aborts: float
) -> list[TurnResult]:
    """Let some turns fail, or their clients leave."""
    told: dict[str, tuple[Outcome, str | None]] = {
        "errored": ("errored", "HTTP 500: the engine failed"),
        "incomplete": ("incomplete", f"3 of {ANSWER} tokens came (None)"),
        "aborted": ("aborted", None),
    }
    words = rng.choice(
        ["good", *told],
        len(results),
        p=[1 - failures - aborts, failures / 2, failures / 2, aborts],
    )
    return [
        result
        if word == "good"
        else replace(
            result,
            outcome=told[word][0],
            error=told[word][1],
            ttft_ms=None,
            e2e_ms=None,
            prompt_tokens=None,
            token_ids=result.token_ids[:3],
            logprobs=result.logprobs[:3],
            top2=result.top2[:3],
            receipt=None,
            decode_receipt=None,
            router_ms={},
        )
        for result, word in zip(results, words, strict=True)
    ]


def _part(
    results: list[TurnResult], rng: np.random.Generator, differences: float, again: float
) -> list[TurnResult]:
    """Let some answers differ at their third token."""

    def parted(result: TurnResult) -> TurnResult:
        share = again if result.is_again else differences * (result.arm == "bidirectional")
        if not result.is_successful or rng.random() >= share:
            return result
        ids = (*result.token_ids[:2], result.token_ids[2] + 1, *result.token_ids[3:])
        return replace(result, token_ids=ids)

    return [parted(result) for result in results]


def _samples(results: Sequence[TurnResult], every_s: float = 1.0) -> Iterator[Sample]:
    """Readings of P, D and the router: one before the first turn, one after the last."""
    end_s = max((result.ended_s for result in results), default=0.0)
    for at_s in (-0.5, *np.arange(0.0, end_s, every_s).tolist(), end_s + 0.5):
        ended = [one for one in results if one.ended_s <= at_s]
        running = float(sum(one.started_s <= at_s < one.ended_s for one in results))
        pinned = float(sum(one.prompt_tokens or 0 for one in ended[-4:]))
        yield Sample(at_s, "prefill", P_URL, _engine(ended, running, "receipt", 0.0))
        yield Sample(at_s, "decode", D_URL, _engine(ended, running, "decode_receipt", pinned))
        values = {"running": running, "waiting": 0.0, "pinned_tokens": pinned}
        yield Sample(at_s, "router", ROUTER_URL, values)


def _engine(
    ended: Sequence[TurnResult], running: float, which: str, pinned: float
) -> dict[str, float]:
    receipts: list[Receipt | None] = [getattr(one, which) for one in ended]
    pulled = [one.pulled_tokens for one in receipts if one is not None and one.pulled_tokens]
    return {
        "nixl_reads": float(len(pulled)),
        "nixl_bytes": float(sum(pulled) * _BYTES_PER_TOKEN),
        "nixl_seconds": 0.01 * len(pulled),
        "failed_transfers": 0.0,
        "reads_after_free": 0.0,
        "expired": 0.0,
        "pulled_tokens": float(sum(pulled)),
        "preemptions": 0.0,
        "kv_usage": min(1.0, (pinned + 3000 * running) / CAPACITY_TOKENS),
        "running": running,
        "waiting": 0.0,
        "capacity_tokens": CAPACITY_TOKENS,
    }
