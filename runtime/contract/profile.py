"""Profiles: the serving sizes and the benchmark workload that belong together."""

import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from runtime.contract.node import Frozen, KvTransferSpec

PROFILES = Path(__file__).parent / "profiles"


class WorkloadSpec(Frozen):
    """A closed-loop multi-turn workload; sizes are prompt tokens before the chat template."""

    conversations: int = Field(ge=2)
    turns: int = Field(ge=2)
    common_prefix_tokens: int = Field(ge=0)
    """Shared by all conversations."""
    own_prefix_tokens: int = Field(ge=0)
    """Different in every conversation."""
    user_tokens: int = Field(ge=1)
    """Added by every user turn."""
    answer_tokens: int = Field(ge=2)
    """Generated in every turn, exactly."""
    warmup_conversations: int = Field(default=1, ge=0)
    """Run first, with texts of their own, and left out of every figure."""
    seed: int = Field(default=0, ge=0)


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

    @model_validator(mode="after")
    def _history_fits(self) -> Self:
        work = self.workload
        longest = (
            work.common_prefix_tokens
            + work.own_prefix_tokens
            + work.turns * (work.user_tokens + work.answer_tokens)
        )
        if longest > self.serving.max_model_len:
            raise ValueError(
                f"the last turn needs {longest} tokens, "
                f"serving.max_model_len is {self.serving.max_model_len}"
            )
        return self


def load_profile(name: str) -> Profile:
    """Read a committed profile by name; pydantic's ValidationError names bad fields."""
    return Profile.model_validate(tomllib.loads((PROFILES / f"{name}.toml").read_text("utf-8")))
