"""What a report's turns say about pulls, prefills and gaps. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.bench.turn import Arm, Outcome
from runtime.contract.explain import explain
from runtime.contract.node import KvTransferSpec
from runtime.errors import BadInput


class _Lenient(BaseModel):
    """Keys that are not asked for pass: a report's version is what vouches for the rest."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class StagesMs(_Lenient):
    """The stages of a turn that tuning reads."""

    pull: float | None = None
    prefill: float | None = None


class Row(_Lenient):
    """One turn, as a report's `requests` tell it."""

    conversation: int
    turn: int
    arm: Arm
    is_again: bool = False
    point: int = 0
    repeat: int = 0
    block: int = 0
    outcome: Outcome
    reason: str | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    pulled_tokens: int | None = None
    local_tokens: int | None = None
    computed_tokens: int | None = None
    started_s: float
    ended_s: float
    think_s: float = 0.0
    stages_ms: StagesMs | None = None

    @property
    def is_measured(self) -> bool:
        """Whether its times count, and were told."""
        return self.outcome == "successful" and not self.is_again and self.stages_ms is not None


class _Bench(_Lenient):
    think_scale: float = Field(default=1.0, ge=0)


class _Pass(_Lenient):
    name: str = "main"
    bench: _Bench = _Bench()


class _Capacity(_Lenient):
    decode: int | None = Field(default=None, gt=0)


class _Workload(_Lenient):
    name: str
    kv: KvTransferSpec


@dataclass(frozen=True)
class Observations:
    """One pass of a report.

    Attributes:
        name: of the pass.
        profile: name of the profile whose sizes it had.
        kv: the settings that it ran with.
        rows: every turn, in the order in which they were sent.
        kv_capacity_tokens: of all D together; None: not told.
        think_scale: the workload's think times were waited so many times.
        is_mock: mock engines: the times say nothing.
        stopped_by: what ended it early; None when it is whole.
    """

    name: str
    profile: str
    kv: KvTransferSpec
    rows: tuple[Row, ...]
    kv_capacity_tokens: int | None = None
    think_scale: float = 1.0
    is_mock: bool = False
    stopped_by: str | None = None

    @property
    def pulls(self) -> list[Row]:
        """Turns whose pull was timed."""
        return [row for row in self._timed if row.pulled_tokens and _ms(row, "pull") > 0]

    @property
    def prefills(self) -> list[Row]:
        """Turns whose prefill was timed, of both arms."""
        return [row for row in self._timed if row.computed_tokens and _ms(row, "prefill") > 0]

    @property
    def warmable(self) -> list[Row]:
        """Bidirectional turns that brought a handle: those that settings can touch."""
        return [
            row
            for row in self._timed
            if row.arm == "bidirectional" and row.turn >= 2 and row.reason != "none_offered"
        ]

    @property
    def finished(self) -> list[Row]:
        """Bidirectional turns that ran to their end, and so may pin."""
        return [
            row
            for row in self.rows
            if row.arm == "bidirectional" and row.outcome == "successful" and not row.is_again
        ]

    @property
    def _timed(self) -> list[Row]:
        return [row for row in self.rows if row.is_measured]

    def gaps_s(self) -> list[float]:
        """Seconds from the end of a turn to the next one of its conversation.

        Think times that were scaled when they were played are scaled back. Empty where
        the workload has none: then the gaps are the benchmark's and not its users'.
        """
        played: dict[tuple[int, int], list[Row]] = {}
        for row in self.finished:
            played.setdefault((row.repeat, row.conversation), []).append(row)
        found, thought_s = [], 0.0
        for rows in played.values():
            rows.sort(key=lambda row: row.turn)
            for before, after in pairwise(rows):
                if after.turn == before.turn + 1 and self.think_scale > 0:
                    thought_s += after.think_s
                    stretched_s = after.think_s * (1 / self.think_scale - 1)
                    found.append(max(0.0, after.started_s - before.ended_s + stretched_s))
        return found if thought_s > 0 else []

    def returning_share(self) -> float | None:
        """Share of finished turns that another turn of their conversation followed."""
        asked = {
            (row.repeat, row.conversation, row.turn)
            for row in self.rows
            if row.arm == "bidirectional"
        }
        followed = [(row.repeat, row.conversation, row.turn + 1) in asked for row in self.finished]
        return sum(followed) / len(followed) if followed else None

    def finished_per_s(self) -> float | None:
        """Bidirectional turns that finished in a second of the time in which that arm ran."""

        def played(row: Row) -> tuple[int, int]:
            return row.repeat, row.block

        rows = sorted(self.finished, key=played)
        blocks = [list(block) for _, block in groupby(rows, key=played)]
        ran_s = sum(
            max(row.ended_s for row in block) - min(row.started_s for row in block)
            for block in blocks
        )
        return len(rows) / ran_s if ran_s > 0 else None

    def pinned_tokens(self) -> list[int]:
        """KV tokens that the handle of each finished turn holds, in whole blocks."""
        size = self.kv.block_size_tokens
        return [
            math.ceil((row.prompt_tokens + row.answer_tokens) / size) * size
            for row in self.finished
            if row.prompt_tokens is not None and row.answer_tokens is not None
        ]


def _ms(row: Row, stage: str) -> float:
    told: float | None = None if row.stages_ms is None else getattr(row.stages_ms, stage)
    return told or 0.0


def observe(report: Mapping[str, Any], source: str, pass_name: str | None = None) -> Observations:
    """Read one pass of a report.

    Args:
        report: as read_report gives it.
        source: its file, for messages.
        pass_name: of the pass; None: the main one.

    Raises:
        BadInput: there is no such pass, it has no rows, or a row is none.
    """
    told = _passed(report, source, pass_name)
    try:
        about = _Pass.model_validate(told["pass"])
        workload = _Workload.model_validate(report["workload"])
        capacity = _Capacity.model_validate(told.get("kv_capacity_tokens", {}))
        rows = tuple(Row.model_validate(row) for row in told["requests"])
    except ValidationError as error:
        raise explain(error, source) from None
    return Observations(
        about.name,
        workload.name,
        workload.kv,
        tuple(sorted(rows, key=lambda row: row.started_s)),
        capacity.decode,
        about.bench.think_scale,
        report["environment"].get("engine") == "mock",
        told["stopped_by"],
    )


def _passed(report: Mapping[str, Any], source: str, name: str | None) -> Mapping[str, Any]:
    passes: Sequence[Mapping[str, Any]] = [report, *report["other_passes"]]
    named = {str(each["pass"]["name"]): each for each in passes}
    found = passes[0] if name is None else named.get(name)
    if found is None:
        raise BadInput(
            "the report has no such pass",
            got=f"{source}: --pass {name}",
            allowed=", ".join(named),
            fix="give one of these, or leave --pass out for the first",
        )
    if not found["requests"]:
        raise BadInput(
            "the report has no turns",
            got=f"{source}: pass {found['pass']['name']}, 0 requests",
            allowed="a pass with turns of both arms",
            fix="run `turnback bench` again; its `problems` say what went wrong",
        )
    return found
