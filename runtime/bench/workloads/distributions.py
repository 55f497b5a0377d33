"""The random sizes of vLLM's multi-turn generator, seeded. Pure.

Source: names, fields and meaning are those of vLLM's `benchmarks/multi_turn/README.md`.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from runtime.contract.node import Frozen

Sizes = NDArray[np.int64]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Cap = Annotated[float | None, Field(strict=True, ge=1, allow_inf_nan=False)]
_Place = TypeVar("_Place")

LARGEST = 1_000_000_000
"""Samples stop here, which is more than any prompt: an uncapped zipf has no end."""
MEDIAN_RATIO = 0.85
"""Of a log-normal that gives its average alone."""


class Constant(Frozen):
    """Always the same."""

    distribution: Literal["constant"]
    value: Annotated[_Number, Field(ge=0, le=LARGEST)]

    def sample(self, _rng: np.random.Generator, count: int) -> Sizes:
        """So many of them."""
        return _whole(np.full(count, self.value), None)


class Uniform(Frozen):
    """All equally likely, both ends included."""

    distribution: Literal["uniform"]
    min: Annotated[_Number, Field(gt=0, le=LARGEST)]
    max: Annotated[_Number, Field(gt=0, le=LARGEST)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max:g} is below min {self.min:g}")
        return self

    def sample(self, rng: np.random.Generator, count: int) -> Sizes:
        """So many of them."""
        if self.min.is_integer() and self.max.is_integer():
            return rng.integers(int(self.min), int(self.max), count, endpoint=True)
        return _whole(rng.uniform(self.min, self.max, count), None)


class Lognormal(Frozen):
    """By `average` and `median_ratio`, or by `mean` and `sigma` of the normal one beneath."""

    distribution: Literal["lognormal"]
    average: float | None = Field(default=None, strict=True, ge=1, le=LARGEST)
    median_ratio: float | None = Field(default=None, strict=True, gt=0, lt=1)
    mean: float | None = Field(default=None, strict=True, gt=0, le=20)
    sigma: float | None = Field(default=None, strict=True, ge=0, le=10)
    max: _Cap = None

    @model_validator(mode="after")
    def _one_of_both_ways(self) -> Self:
        given = self.model_fields_set - {"distribution", "max"}
        if given not in ({"average"}, {"average", "median_ratio"}, {"mean", "sigma"}):
            raise ValueError(
                "needs average (and median_ratio, if wanted), or mean and sigma; "
                f"has {', '.join(sorted(given)) or 'neither'}"
            )
        return self

    def sample(self, rng: np.random.Generator, count: int) -> Sizes:
        """So many of them; with `average` the ones drawn have it, before they are capped."""
        if self.average is not None:
            ratio = self.median_ratio or MEDIAN_RATIO
            return _whole(lognormal(rng, self.average, ratio, count), self.max)
        return _whole(rng.lognormal(self.mean or 0.0, self.sigma or 0.0, count), self.max)


class Zipf(Frozen):
    """Mostly small; `alpha` is the exponent."""

    distribution: Literal["zipf"]
    alpha: Annotated[_Number, Field(gt=1)]
    max: _Cap = None

    def sample(self, rng: np.random.Generator, count: int) -> Sizes:
        """So many of them."""
        return _whole(rng.zipf(self.alpha, count).astype(float), self.max)


class Poisson(Frozen):
    """`alpha` is the average."""

    distribution: Literal["poisson"]
    alpha: Annotated[_Number, Field(ge=0, le=LARGEST)]
    max: _Cap = None

    def sample(self, rng: np.random.Generator, count: int) -> Sizes:
        """So many of them."""
        return _whole(rng.poisson(self.alpha, count).astype(float), self.max)


Distribution = Annotated[
    Constant | Uniform | Lognormal | Zipf | Poisson, Field(discriminator="distribution")
]


def lognormal(
    rng: np.random.Generator, average: float, median_ratio: float, count: int
) -> NDArray[np.float64]:
    """Log-normal values, scaled so that the values drawn have the average.

    Source: median / mean of a log-normal is exp(-sigma^2 / 2).
    """
    sigma = math.sqrt(-2 * math.log(median_ratio))
    drawn = rng.lognormal(math.log(average * median_ratio), sigma, count)
    return drawn * (average / drawn.mean()) if count else drawn


def chosen(rng: np.random.Generator, places: Sequence[_Place], share: float) -> set[_Place]:
    """A share of places: the nearest whole number of them, and one where a share is asked for."""
    count = max(round(share * len(places)), 1 if share > 0 and places else 0)
    return {places[at] for at in rng.choice(len(places), count, replace=False)} if count else set()


def _whole(values: NDArray[np.float64], cap: float | None) -> Sizes:
    return np.round(np.minimum(values, min(cap or LARGEST, LARGEST))).astype(np.int64)
