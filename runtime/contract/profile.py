"""Profiles: the serving sizes and the benchmark workload that belong together."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runtime.contract.bench import BenchSpec
from runtime.contract.node import Frozen, KvTransferSpec

PROFILES = Path(__file__).parent / "profiles"


Answers = Literal["round_trip", "free", "recorded"]


class AgenticSpec(Frozen):
    """Agents that call tools; the sizes and times beside it are those of what their users say."""

    tool_share: float = Field(default=0.8, ge=0, le=1)
    """Of turns from the second on that bring results of tools, in place of a user's message."""
    tool_result_tokens: int = Field(default=400, ge=1)
    """Average; most are smaller and a few much larger (log-normal)."""
    tool_result_median_ratio: float = Field(default=0.4, gt=0, lt=1)
    """Median over average: the smaller, the more skewed."""
    tool_result_max_tokens: int = Field(default=4000, ge=1)
    tool_gap_s: float = Field(default=2.0, ge=0)
    """Average time that tools take (log-normal)."""
    beyond_ttl_share: float = Field(default=0.05, ge=0, le=1)
    """Of pauses that last longer than D keeps the KV."""


class WorkloadSpec(Frozen):
    """A multi-turn workload; sizes are prompt tokens before the chat template."""

    conversations: int = Field(ge=2)
    turns: int = Field(ge=2)
    common_prefix_tokens: int = Field(ge=0)
    """Shared by all conversations."""
    own_prefix_tokens: int = Field(ge=0)
    """Different in every conversation; with a sweep, of the warm-up conversations alone."""
    sweep_own_prefix_tokens: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """In place of it, one after the other, each with `conversations` of its own."""
    user_tokens: int = Field(ge=1)
    """Added by every user turn."""
    answer_tokens: int = Field(ge=2)
    """Generated in every turn, exactly."""
    answers: Answers = "round_trip"
    """`round_trip`: held to tokens that stay themselves when sent back as text; `free`: any
    tokens; `recorded`: any, and the next turn's history has the file's answer."""
    think_s: float = Field(default=0.0, ge=0)
    """Before every user message from the second on; with `agentic` its average."""
    agentic: AgenticSpec | None = None
    """Given: conversations are agents with tools."""
    warmup_conversations: int = Field(default=1, ge=0)
    """Run first, with texts of their own, and left out of every figure."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _points_differ(self) -> Self:
        if len(set(self.sweep_own_prefix_tokens)) < len(self.sweep_own_prefix_tokens):
            raise ValueError("sweep_own_prefix_tokens has a size twice")
        return self

    @model_validator(mode="after")
    def _agents_do_not_sweep(self) -> Self:
        if self.agentic is not None and self.sweep_own_prefix_tokens:
            raise ValueError("agentic and sweep_own_prefix_tokens cannot both be given")
        return self


class ProfileServing(Frozen):
    """Engine sizes of a profile."""

    dtype: Literal["float32", "bfloat16", "auto"]
    max_model_len: int = Field(ge=64)
    max_num_seqs: int = Field(ge=1)
    prefill_prefix_caching: bool
    """The published runs turn it off on P; a setting of a whole pass, never of a request."""
    kv_cache_gib: int | None = Field(default=None, ge=1)
    """KV memory of a CPU engine; a GPU engine takes what the weights leave."""


class Profile(Frozen):
    """One named set-up."""

    name: str
    serving: ProfileServing
    kv: KvTransferSpec
    workload: WorkloadSpec
    bench: BenchSpec = BenchSpec()
    """How the workload is played, where the user does not say otherwise."""

    @model_validator(mode="after")
    def _history_fits(self) -> Self:
        work = self.workload
        longest = (
            work.common_prefix_tokens
            + max(work.own_prefix_tokens, *work.sweep_own_prefix_tokens, 0)
            + work.turns * (work.user_tokens + work.answer_tokens)
        )
        if longest > self.serving.max_model_len:
            raise ValueError(
                f"the last turn needs {longest} tokens, "
                f"serving.max_model_len is {self.serving.max_model_len}"
            )
        return self


def load_profile(name: str) -> Profile:
    """Read a committed profile by its name, or a file of a user's by a path that ends in .toml.

    Raises:
        OSError, ValueError: there is none, or it is no TOML; pydantic's ValidationError
            names bad fields.
    """
    path = Path(name) if name.endswith(".toml") else PROFILES / f"{name}.toml"
    return Profile.model_validate(tomllib.loads(path.read_text("utf-8")))
