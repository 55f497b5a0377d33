"""One pass against servers that run: turns through the router, metrics beside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from runtime.bench.folder import PassFolder, PassInfo
from runtime.bench.order import plan_blocks
from runtime.bench.player import Target
from runtime.bench.run import run_pass
from runtime.bench.scrape import Sampler, Server
from runtime.bench.turn import ARMS, TurnResult
from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.load import WorkloadFile, load_workload
from runtime.bench.workloads.synthetic import allowed_ids, usable_ids
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.errors import BadInput, EngineDied

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Workload:
    """What is played.

    Attributes:
        source: a profile's name or a file's.
        conversations: the warm-up's first.
        allowed_token_ids: the only ones that answers may hold; empty: all.
    """

    source: str
    conversations: Sequence[Conversation]
    allowed_token_ids: tuple[int, ...] = ()

    def pass_of(
        self, name: str, profile: Profile, bench: BenchSpec, environment: dict[str, Any]
    ) -> PassInfo:
        """What a pass says of itself that begins now.

        Args:
            name: of the pass.
            profile: what the servers were started with.
            bench: how it is played.
            environment: versions and machine.
        """
        return PassInfo(
            name=name,
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            profile=profile,
            bench=bench,
            workload=self.source,
            prefill_prefix_caching=profile.serving.prefill_prefix_caching,
            is_feature_on=profile.kv.bidirectional,
            environment=environment,
        )

    def turns(self, info: PassInfo) -> int:
        """How many turns a pass measures, when none fails."""
        blocks = plan_blocks(self.conversations, info.bench, is_feature_on=info.is_feature_on)
        return sum(
            len(block.parts) * len(conversation.turns)
            for block in blocks
            for conversation in block.conversations
        )


def read_workload(
    profile: Profile,
    tokenizer: Path,
    bench: BenchSpec,
    file: WorkloadFile | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Workload:
    """Build a workload.

    Args:
        profile: sizes.
        tokenizer: tokenizer.json of the served model, or the model's folder.
        bench: how it will be played.
        file: in place of the profile's workload.
        on_note: told what was left out.

    Raises:
        BadInput: a file cannot be read or used.
    """
    reader = _tokenizer(tokenizer)
    conversations = load_workload(profile, reader, file, bench, on_note=on_note)
    is_free = profile.workload.answers != "round_trip"
    ids = () if is_free else allowed_ids(usable_ids(reader))
    return Workload(file.path.name if file else profile.name, conversations, ids)


def _tokenizer(path: Path) -> Tokenizer:
    path = path / TOKENIZER if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no exception type of its own
        raise BadInput(
            "tokenizer cannot be read",
            got=f"{path}: {error}",
            allowed="a tokenizer.json of the tokenizers library, or a model's folder with one",
            fix="give the tokenizer.json of the served model",
        ) from error


async def measure(
    target: Target,
    servers: Sequence[Server],
    workload: Workload,
    folder: PassFolder,
    info: PassInfo,
    on_turn: Callable[[TurnResult], None],
    on_warm: Callable[[], None],
) -> None:
    """Run a pass, with readings of servers before, during and after it.

    Args:
        target: where turns go.
        servers: whose metrics are read; may be empty.
        workload: what is played.
        folder: takes all that is measured, as it is measured.
        info: what runs.
        on_turn: called after each measured turn.
        on_warm: called once, before the first of them.

    Raises:
        BadInput, StartFailed, EngineDied: as in `run_pass`; EngineDied also where no turn
            of an arm succeeded.
    """
    async with aiohttp.ClientSession() as session:
        sampler = Sampler(session, servers, folder.add_sample)

        async def begin() -> None:
            await sampler.settle()
            sampler.begin()
            on_warm()

        folder.begin(info)
        async with sampler.running():
            results = await run_pass(
                target, workload.conversations, folder, info, on_turn=on_turn, on_warm=begin
            )
        await sampler.settle()
    _refuse_empty(results, info, folder)


def _refuse_empty(results: Sequence[TurnResult], info: PassInfo, folder: PassFolder) -> None:
    """An arm without one good turn has measured nothing, whatever the other has."""
    for arm in ARMS if info.is_feature_on else ARMS[:1]:
        mine = [result for result in results if result.arm == arm and not result.is_again]
        if any(result.is_successful for result in mine):
            continue
        errors = [result.error for result in mine if result.error]
        raise EngineDied(
            f"no turn of the {arm} arm succeeded",
            got=errors[0] if errors else "no turn was run to its end",
            allowed="at least one successful turn of each arm",
            fix=f"read the servers' logs; what was measured is in {folder.path}",
        )
