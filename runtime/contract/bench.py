"""How a benchmark plays its workload, and what its user wants to see."""

from typing import Literal

from pydantic import Field

from runtime.contract.node import Frozen

REPORT = "report.json"
"""The report, in the folder of its run and in the results bucket."""

Arm = Literal["one_way", "bidirectional"]
ARMS: tuple[Arm, Arm] = ("one_way", "bidirectional")
"""Baseline first: ratios and differences are read from the first to the second."""


class Objectives(Frozen):
    """What a turn must keep to count as good; None: nothing is asked."""

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)


class Price(Frozen):
    """What prefill time costs."""

    usd_per_node_hour: float | None = Field(default=None, ge=0)
    """None: no sum of money is reported."""
    gpus_per_node: int = Field(default=8, ge=1)


class BenchSpec(Frozen):
    """One pass over a workload; both arms get the same."""

    clients: int = Field(default=1, ge=1, le=4096)
    """Conversations at a time; above 1, arms run in ABBA blocks, drained between."""
    arrivals_per_s: float | None = Field(default=None, gt=0)
    """Open loop: conversations begin at Poisson moments of this rate, in place of `clients`."""
    block_conversations: int | None = Field(default=None, ge=1)
    """Conversations of one block, at most; None: one for one client, else twice `clients`, and
    at least 16 in an open loop, whose blocks begin and end empty."""
    repeats: int = Field(default=1, ge=1, le=100)
    """The whole workload so many times, each with salts of its own."""
    again_share: float = Field(default=0.1, ge=0, le=1)
    """Of one-way turns that run twice (A/A), so that noise can be told from difference; whole
    blocks, at least one where it is above 0."""
    abort_share: float = Field(default=0.0, ge=0, le=1)
    """Of turns whose client leaves in mid-answer; both arms' do, at the same token."""
    edit_share: float = Field(default=0.0, ge=0, le=1)
    """Of turns from the second on that change an earlier message; both arms' do."""
    think_scale: float = Field(default=1.0, ge=0)
    """Times the workload's think times; 0: none."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Longest time for one turn."""
    seed: int = Field(default=0, ge=0)
    """Of arrivals, and of which turns are repeated, aborted or edited."""
    objectives: Objectives = Objectives()
    price: Price = Price()
