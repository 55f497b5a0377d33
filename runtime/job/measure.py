"""One pass through a deployment's address, into a run folder."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from runtime.bench.folder import PassFolder, PassInfo
from runtime.bench.player import Target
from runtime.bench.report import build_report, write_report
from runtime.bench.run import run_pass
from runtime.bench.scrape import Sampler, Server
from runtime.bench.turn import TurnResult
from runtime.bench.workloads.load import load_workload
from runtime.bench.workloads.synthetic import allowed_ids, usable_ids
from runtime.contract.node import NodeAddress
from runtime.contract.profile import Profile
from runtime.errors import BadInput

REPORT = "report.json"
FIRST = "pass-1"
_SETTLE_S = 15.0


@dataclass(frozen=True)
class Where:
    """What is measured.

    Attributes:
        url: of the routers, without a path.
        api_key: a client's.
        served_model_name: as clients send it.
        tokenizer: file of the served model.
        nodes: whose metrics are read.
        run_id: of the run; two runs share no conversation.
        environment: what the report says of it.
    """

    url: str
    api_key: str | None = field(repr=False)
    served_model_name: str
    tokenizer: Path
    nodes: Sequence[NodeAddress]
    run_id: str
    environment: dict[str, Any] = field(default_factory=dict)


async def measure(
    where: Where, profile: Profile, folder: Path, say: Callable[[str], None], limit_s: float
) -> tuple[dict[str, Any], list[TurnResult]]:
    """Play a profile's workload; whatever ends it, its report is in the folder.

    Args:
        where: what is measured.
        profile: sizes, workload and how it is played.
        folder: of the run; the pass has one below it.
        say: told now and then.
        limit_s: longest run; what was measured by then is kept, and marked.

    Returns:
        The report and the measured turns.

    Raises:
        BadInput, StartFailed, EngineDied: as of `run_pass`; the report is written where a
            turn was measured.
    """
    tokenizer = _tokenizer(where.tokenizer)
    conversations = load_workload(profile, tokenizer, None, profile.bench, on_note=say)
    total = sum(len(each.turns) for each in conversations if not each.is_warmup)
    kept = PassFolder(folder / FIRST)
    target = Target(
        where.url,
        where.served_model_name,
        where.run_id,
        allowed_ids(usable_ids(tokenizer)),
        where.api_key,
    )
    count = 0

    def on_turn(_: TurnResult) -> None:
        nonlocal count
        count += 1
        if count % 20 == 0:
            say(f"{count} turns measured; a repeat of both arms has {2 * total}")

    try:
        async with aiohttp.ClientSession() as session:
            sampler = Sampler(session, _servers(where), kept.add_sample)

            async def on_warm(_began_s: float) -> None:
                await sampler.settle()
                sampler.begin()

            # Samples go into the folder that `run_pass` makes: it must be there before them.
            kept.path.mkdir(parents=True, exist_ok=True)
            async with sampler.running(), asyncio.timeout(limit_s):
                await run_pass(target, conversations, kept, _info(where, profile), on_turn, on_warm)
            await asyncio.wait_for(sampler.settle(), _SETTLE_S)
    except TimeoutError:
        say(f"the limit of {limit_s:.0f} s is over: what was measured is kept")
    finally:
        passed = kept.read() if count else None
        if passed is not None:
            write_report(build_report([passed]), folder / REPORT)
    if passed is None:
        raise BadInput(
            "no turn was measured",
            got=f"none within {limit_s:.0f} s",
            allowed="at least one turn",
            fix="read the routers' and the nodes' logs; a longer limit where warm-up takes long",
        )
    return build_report([passed]), passed[1]


def _servers(where: Where) -> list[Server]:
    engines = [Server(each.role, each.url) for each in where.nodes]
    return [*engines, Server("router", where.url)]


def _info(where: Where, profile: Profile) -> PassInfo:
    return PassInfo(
        name="main",
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        profile=profile,
        bench=profile.bench,
        workload=profile.name,
        prefill_prefix_caching=profile.serving.prefill_prefix_caching,
        environment={"kit": version("turnback"), **where.environment},
    )


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no exception type of its own
        raise BadInput(
            "tokenizer cannot be read",
            got=f"{path}: {error}",
            allowed="a tokenizer.json of the tokenizers library",
            fix="stage the whole model: turnback model stage",
        ) from error
