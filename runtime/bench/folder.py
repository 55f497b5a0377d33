"""The files of one pass: what was measured is on the disk before the next turn starts."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from runtime.bench.turn import TurnResult
from runtime.bench.write import write_whole
from runtime.contract.bench import BenchSpec
from runtime.contract.explain import explain
from runtime.contract.profile import Profile
from runtime.engine_api import Receipt
from runtime.errors import BadInput

PASS, TURNS, SAMPLES = "pass.json", "turns.jsonl", "samples.jsonl"
PASS_FORMAT = 1


@dataclass(frozen=True)
class PassInfo:
    """What ran.

    Attributes:
        name: of the pass, in a report that has several.
        created_utc: ISO time.
        profile: sizes of engines and workload.
        bench: how it was played.
        workload: where the texts come from: a profile's name or a file's.
        prefill_prefix_caching: start flag of P, the same for both arms.
        is_feature_on: both servers were started with bidirectional KV transfer; without
            it there is one arm, `one_way`.
        environment: versions and machine; `engine` is `vllm` or `mock`.
        stopped_by: what ended it early; None when it ran to its end.
    """

    name: str
    created_utc: str
    profile: Profile
    bench: BenchSpec
    workload: str
    prefill_prefix_caching: bool
    is_feature_on: bool = True
    environment: dict[str, Any] = field(default_factory=dict)
    stopped_by: str | None = "it has not ended"

    @property
    def run_id(self) -> str:
        """Part of every conversation's id and salt: no other pass has it."""
        return f"{self.created_utc}-{self.name}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("profile", "bench"):
            told[name] = told[name].model_dump(mode="json")
        return {"format": PASS_FORMAT, **told}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Read it back.

        Raises:
            KeyError, TypeError, ValueError: it is another thing.
        """
        told = {name: value for name, value in raw.items() if name != "format"}
        told["profile"] = Profile.model_validate(told["profile"])
        told["bench"] = BenchSpec.model_validate(told["bench"])
        return cls(**told)


@dataclass(frozen=True)
class Sample:
    """One reading of a server's metrics.

    Attributes:
        at_s: since the pass began; negative: before its first measured turn.
        role: `prefill`, `decode` or `router`.
        url: of the server, without a path.
        values: by the report's names; see runtime/bench/scrape.py.
    """

    at_s: float
    role: str
    url: str
    values: dict[str, float]


@dataclass(frozen=True)
class PassFolder:
    """One pass on the disk.

    Args:
        path: folder of its three files.
    """

    path: Path

    @property
    def is_begun(self) -> bool:
        """Whether there is anything to read."""
        return (self.path / PASS).exists()

    def begin(self, info: PassInfo) -> None:
        """Make the folder and say what will run."""
        self._write_info(info)

    def end(self, info: PassInfo, stopped_by: str | None) -> PassInfo:
        """Say how it ended; the info that says so."""
        ended = replace(info, stopped_by=stopped_by)
        self._write_info(ended)
        return ended

    def _write_info(self, info: PassInfo) -> None:
        write_whole(self.path / PASS, json.dumps(info.to_dict(), indent=2) + "\n")

    def add_turn(self, result: TurnResult) -> None:
        """Append a turn."""
        self._append(TURNS, result.to_dict())

    def add_sample(self, sample: Sample) -> None:
        """Append a reading."""
        self._append(SAMPLES, asdict(sample))

    def _append(self, name: str, value: dict[str, Any]) -> None:
        # Opened anew for each line: closing is what makes it outlive a crash.
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")

    def read(self) -> tuple[PassInfo, list[TurnResult], list[Sample]]:
        """All of it; a last line that was cut short is left out.

        Raises:
            BadInput: a file is missing or is not one of these.
        """
        try:
            raw = json.loads((self.path / PASS).read_text("utf-8"))
            if raw.get("format") != PASS_FORMAT:
                raise ValueError(f"format {raw.get('format')!r}")
            info = PassInfo.from_dict(raw)
        except ValidationError as error:
            raise explain(error, str(self.path / PASS)) from None
        except (AttributeError, OSError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(self.path / PASS, error) from None
        turns = [_turn(raw, self.path / TURNS) for raw in self._lines(TURNS)]
        samples = [_sample(raw, self.path / SAMPLES) for raw in self._lines(SAMPLES)]
        return info, turns, samples

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        if not path.exists():
            return []
        *whole, _cut_short = path.read_text("utf-8").split("\n")
        try:
            return [json.loads(line) for line in whole]
        except ValueError as error:
            raise _unreadable(path, error) from None


def _turn(raw: dict[str, Any], path: Path) -> TurnResult:
    try:
        told = dict(raw)
        for name in ("receipt", "decode_receipt"):
            told[name] = None if told[name] is None else Receipt.from_dict(told[name])
        for name in ("token_ids", "logprobs"):
            told[name] = tuple(told[name])
        told["top2"] = tuple(tuple(each) for each in told["top2"])
        return TurnResult(**told)
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from None


def _sample(raw: dict[str, Any], path: Path) -> Sample:
    try:
        return Sample(**raw)
    except TypeError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> BadInput:
    return BadInput(
        "this is no file of a benchmark's pass",
        got=f"{path}: {error!r}",
        allowed=f"a folder with {PASS} of format {PASS_FORMAT}, {TURNS} and {SAMPLES}",
        fix="give the folder that `turnback bench` has written",
    )
