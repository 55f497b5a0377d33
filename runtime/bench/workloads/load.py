"""A profile, or a file of a user's own traffic, into what the player plays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from runtime.bench.workloads.agentic import build_agents
from runtime.bench.workloads.conversation import Conversation
from runtime.bench.workloads.edits import with_edits
from runtime.bench.workloads.fit import WARMUP_TURNS, fitting, warmup_of
from runtime.bench.workloads.generator import read_generator
from runtime.bench.workloads.json_file import read_json
from runtime.bench.workloads.messages import read_conversations
from runtime.bench.workloads.synthetic import build_conversations
from runtime.contract.bench import BenchSpec
from runtime.contract.profile import Profile
from runtime.errors import BadInput


@dataclass(frozen=True)
class WorkloadFile:
    """Conversations in place of a profile's.

    Attributes:
        path: JSON, or JSON lines.
        conversations: of the file, in its order; None: all.
        turns: of each, from the first on; None: all.
    """

    path: Path
    conversations: int | None = None
    turns: int | None = None


def load_workload(
    profile: Profile,
    tokenizer: Tokenizer,
    file: WorkloadFile | None,
    bench: BenchSpec,
    *,
    on_note: Callable[[str], None] = lambda _: None,
) -> list[Conversation]:
    """Build the conversations: the warm-up first, with texts of its own.

    Args:
        profile: sizes, and the longest sequence that its engines take.
        tokenizer: of the served model.
        file: in place of the profile's workload; None: the profile's.
        bench: which share of turns edits its history.
        on_note: told what was left out.

    Returns:
        Conversations of at least one turn; turns that the engines cannot take are left out.

    Raises:
        BadInput: the file cannot be read or used, nothing of it can be played, or the
            tokenizer cannot make the texts.
    """

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    work, most = profile.workload, profile.serving.max_model_len
    source = str(file.path if file else f"profile {profile.name}")
    if file is not None:
        planned = _from_file(file, profile, tokenizer, count)
    elif work.answers == "recorded":
        raise _nothing_recorded(source)
    elif work.agentic is not None:
        ttl_s = profile.kv.decoder_kv_blocks_ttl_s
        planned = build_agents(tokenizer, work, work.agentic, ttl_s)
    else:
        planned = build_conversations(tokenizer, work)

    made = [fit for each in planned if (fit := fitting(each, most, count)) is not None]
    _say_what_is_left_out(planned, made, most, on_note)
    measured = [each for each in made if not each.is_warmup]
    _refuse_without_second_turn(measured, source, most)
    warmup = [
        replace(each, turns=each.turns[:WARMUP_TURNS]) for each in made if each.is_warmup
    ] or warmup_of(measured, work.warmup_conversations)
    return with_edits([*warmup, *measured], bench.edit_share, bench.seed)


def _from_file(
    file: WorkloadFile, profile: Profile, tokenizer: Tokenizer, count: Callable[[str], int]
) -> list[Conversation]:
    work, path, read = profile.workload, file.path, read_json(file.path)
    is_generator = isinstance(read.whole, dict) and "filetype" in read.whole
    if not is_generator:
        # What is not asked for is not read either: public sets have some that cannot be used.
        found = read_conversations(read.items[: file.conversations], str(path), work, count)
    elif work.answers == "recorded":
        raise _nothing_recorded(str(path))
    else:
        most = profile.serving.max_model_len
        found = read_generator(read.whole, path, tokenizer, seed=work.seed, most_tokens=most)
    kept = found[: file.conversations]
    return [replace(each, turns=each.turns[: file.turns]) for each in kept]


def _nothing_recorded(source: str) -> BadInput:
    return BadInput(
        f"{source} has no answers to replay",
        got='workload.answers = "recorded"',
        allowed='"recorded" with a file of conversations; "round_trip" or "free" without',
        fix="give such a file, or set workload.answers to another",
    )


def _say_what_is_left_out(
    planned: Sequence[Conversation],
    made: Sequence[Conversation],
    most: int,
    on_note: Callable[[str], None],
) -> None:
    turns, left = (sum(len(each.turns) for each in some) for some in (planned, made))
    if turns > left:
        on_note(
            f"{turns - left} of {turns} turns are left out, and {len(planned) - len(made)} whole "
            f"conversations: with their history they are longer than {most} tokens"
        )


def _refuse_without_second_turn(measured: Sequence[Conversation], source: str, most: int) -> None:
    if any(len(each.turns) > 1 for each in measured):
        return
    raise BadInput(
        f"{source}: nothing can be returned, since no conversation has a second turn",
        got=f"{len(measured)} conversations that begin within {most} tokens",
        allowed="at least one conversation of two turns that fit into serving.max_model_len",
        fix="record longer conversations, or shorten their first turns",
    )
